"""A network is found by name or path, and its bytes are what other runtimes read."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.frontend import zoo
from retune.compiler.frontend.network import load_network, load_network_program, network_bytes


def test_a_name_of_the_zoo() -> None:
    graph = load_network("mlp")
    assert graph.name == "mlp"
    assert any(node.op == "dense" for node in graph.nodes)
    assert network_bytes("mlp") == zoo.build("mlp").SerializeToString()


def test_network_is_loaded_from_a_path_and_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "my_net.onnx"
    path.write_bytes(zoo.build("mlp", widths=(4, 3)).SerializeToString())
    graph = load_network(str(path))
    assert graph.name == "my_net"
    assert graph.output_values()[0].shape == (1, 3)
    assert onnx.load_model_from_string(network_bytes(str(path))).graph.name == "mlp"


def test_a_program_by_name_or_path(tmp_path: Path) -> None:
    path = tmp_path / "my_net.onnx"
    path.write_bytes(zoo.build("mlp", widths=(4, 3)).SerializeToString())
    assert load_network_program("mlp").name == "mlp"
    (image,) = load_network_program(str(path)).inputs
    assert image.shape == (1, 4)
    fixed = load_network_program(str(path), constants={image.name: np.ones((1, 4), np.float32)})
    assert fixed.name == "my_net"
    assert fixed.inputs == ()


@pytest.mark.parametrize("load", [load_network, load_network_program, network_bytes])
def test_a_name_that_is_neither_file_nor_network_is_refused(load: object) -> None:
    assert callable(load)
    with pytest.raises(ModelFormatError, match=r"no network 'resnet': neither .*; did you mean resnet50 or resnet18"):
        load("resnet")
    with pytest.raises(ModelFormatError, match=r"no network 'a/b\.onnx': neither .*; `retune networks` lists the zoo"):
        load("a/b.onnx")


@pytest.mark.parametrize("load", [load_network, load_network_program, network_bytes])
def test_a_folder_is_called_one(load: Callable[[str], object], tmp_path: Path) -> None:
    (folder := tmp_path / "dir.onnx").mkdir()
    with pytest.raises(ModelFormatError, match=r"dir\.onnx is a folder: name the ONNX file in it"):
        load(str(folder))


def test_loading_twice_gives_the_same_text_and_fingerprint() -> None:
    first, second = load_network("mlp"), load_network("mlp")
    assert str(first) == str(second)
    assert first.fingerprint() == second.fingerprint()
