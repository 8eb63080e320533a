"""Networks of the zoo are deterministic, sane in scale, and mean the same to ONNX Runtime and after every pass."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.errors import ModelFormatError, OptionError
from compiler.frontend import zoo
from compiler.frontend.onnx.importer import load_model
from compiler.graph.evaluate import evaluate

Agrees = Callable[[onnx.ModelProto], Any]

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"batch": 3},
    "mobilenet_v2": {"image": 64, "width": 0.25, "classes": 10},
    "resnet18": {"image": 64, "width": 16, "classes": 10, "batch": 2},
}


def test_every_network_is_tested() -> None:
    assert tuple(SMALL) == zoo.NAMES


@pytest.mark.parametrize("name", zoo.NAMES)
def test_agrees_with_onnxruntime(name: str, agrees_with_onnxruntime: Agrees) -> None:
    graph = agrees_with_onnxruntime(zoo.build(name, **SMALL[name]))
    ops = Counter(node.op for node in graph.nodes)
    # the image is brought to channels-last once; nothing else is moved
    assert ops["transpose"] == (0 if name == "mlp" else 1)
    assert ops["reshape"] == (0 if name == "mlp" else 1)
    assert ops["batch_norm"] == ops["identity"] == ops["mul"] == 0


@pytest.mark.parametrize("name", zoo.NAMES)
def test_weights_come_from_the_seed(name: str) -> None:
    first, again, other = (zoo.build(name, **SMALL[name], seed=seed).SerializeToString() for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", zoo.NAMES)
def test_outputs_keep_a_sane_scale_and_depend_on_the_input(name: str) -> None:
    graph = load_model(zoo.build(name, **SMALL[name]))
    (image,) = graph.inputs
    rng = np.random.default_rng(1)
    outputs = [evaluate(graph, {image.name: rng.standard_normal(image.shape, dtype=np.float32)})[0] for _ in range(2)]
    assert 0.1 < outputs[0].std() < 20
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1


def test_full_size_structure() -> None:
    graph = load_model(zoo.build("resnet18"))
    assert graph.inputs[0].shape == (1, 3, 224, 224)
    assert graph.output_values()[0].shape == (1, 1000)
    assert Counter(node.op for node in graph.nodes)["conv2d"] == 20
    weights = sum(array.size for array in graph.constants.values())
    assert 11.6e6 < weights < 11.8e6
    assert Counter(node.op for node in load_model(zoo.build("mobilenet_v2")).nodes)["conv2d"] == 52


def test_unknown_names_and_options() -> None:
    with pytest.raises(ModelFormatError, match="no network 'vgg' in the zoo; it has mlp, mobilenet_v2, resnet18"):
        zoo.build("vgg")
    with pytest.raises(OptionError, match="depth"):
        zoo.build("mlp", depth=3)
