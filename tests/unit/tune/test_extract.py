"""What a run extracts of a network, and what is checked before it."""

from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import ModelFormatError, OptionError, TargetError, UnsupportedOperatorError
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.ir import Graph
from retune.compiler.tune.extract import ImportedNetwork, extract_network
from retune.compiler.tune.operators import Operator, extract
from tests.support.flows.networks import write_mlp, write_unsupported


def test_the_check_of_a_network_imports_what_is_no_part_of_the_zoo(tmp_path: Path) -> None:
    ImportedNetwork("bert_base").check()
    ImportedNetwork(str(write_mlp(tmp_path / "dynamic.onnx", batch="many")), ["x=2,16"]).check()
    with pytest.raises(UnsupportedOperatorError):
        ImportedNetwork(str(write_unsupported(tmp_path / "unsupported.onnx"))).check()
    with pytest.raises(ModelFormatError):
        ImportedNetwork("no_such_network").check()
    with pytest.raises(TargetError, match="abacus"):
        ImportedNetwork("mlp").check("llvm -mcpu=abacus")
    with pytest.raises(OptionError, match="NAME=1,3,224,224"):
        ImportedNetwork("mlp", ["x"])


def test_every_extraction_is_made_again(tmp_path: Path) -> None:
    path = write_mlp(tmp_path / "changed.onnx")
    first = extract_network(str(path), "llvm", 1)
    write_mlp(path, widths=(16, 64, 8))
    second = extract_network(str(path), "llvm", 1)
    assert first.task_keys != second.task_keys
    assert (second.name, second.constant_bytes) == ("changed", 4 * (16 * 64 + 64 * 8))


def test_a_network_is_imported_once_whatever_is_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = str(write_mlp(tmp_path / "one.onnx")), []

    def watched(name: str, **given: Any) -> Graph:
        read.append(name)
        return load_network(name, **given)

    monkeypatch.setattr("retune.compiler.tune.extract.load_network", watched)
    network = ImportedNetwork(path)
    network.check("llvm")
    network.begin("llvm", 1, True)
    first, other, again = (network.extract("llvm", threads, True) for threads in (1, 2, 1))
    assert read == [path]
    assert first.task_keys == again.task_keys
    assert (first.threads, other.threads) == (1, 2)
    missing = ImportedNetwork("no_such_network")
    missing.begin("llvm", 1, True)
    with pytest.raises(ModelFormatError):
        missing.extract("llvm", 1, True)


def test_an_operator_is_extracted_as_a_network_with_one_task() -> None:
    found = extract(str(Operator.of("matmul", (8, 8, 8))), "llvm", 1)
    assert (len(found.tasks), found.weights, found.layers) == (1, (1,), (0,))
