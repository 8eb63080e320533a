"""The nine large networks of ONNX's own tests, compiled without tuning.

ONNX ships their architectures with every weight of a tensor alike, and the outputs. A network whose weights are alike
forgets most of its input, so each is compared with ONNX Runtime once more, with random weights in their place.
"""

import unittest
import warnings
from collections.abc import Iterator
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test import BackendTest

from tests.support.onnx_backend import RetuneBackend

NETWORKS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
TIERS: dict[str, Any] = {"squeezenet": (), "shufflenet": pytest.mark.long}
"""What is not slow, and the mark that says when it runs."""

_LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_TOLERANCE = 1e-4

EACH = [pytest.param(name, marks=TIERS.get(name, pytest.mark.slow)) for name in NETWORKS]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[unittest.TestCase]]:
    """ONNX's tests of real networks."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("ONNX_HOME", str(tmp_path_factory.mktemp("onnx")))
        warnings.simplefilter("ignore")
        yield BackendTest(RetuneBackend, __name__).test_cases["OnnxBackendRealModelTest"]


def test_every_network_of_the_suite_is_tested(suite: type[unittest.TestCase]) -> None:
    names = unittest.defaultTestLoader.getTestCaseNames(suite)
    assert sorted(name for name in names if name.endswith("_cpu")) == [f"test_{name}_cpu" for name in NETWORKS]


@pytest.mark.parametrize("name", EACH)
def test_as_the_suite_expects(name: str, suite: type[unittest.TestCase]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite(f"test_{name}_cpu").debug()


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
def test_with_random_weights(name: str) -> None:
    model = _with_random_weights(onnx.load(str(_LIGHT / f"light_{name}.onnx")))
    known = {tensor.name for tensor in model.graph.initializer}
    (image,) = (entry for entry in model.graph.input if entry.name not in known)
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    wanted = session.run(None, {image.name: x})
    found = RetuneBackend.prepare(model).run([x])
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.ptp(theirs) > 0
        assert np.abs(ours - theirs).max() <= _TOLERANCE * np.abs(theirs).max()


def _with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with initializers in place of its tensors of one number, in scales that keep activations in bounds."""
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    use = {name: (node.op_type, place) for node in model.graph.node for place, name in enumerate(node.input)}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        (name,) = node.output
        shape = tuple(int(extent) for extent in shapes[node.input[0]])
        array = _random_weight(rng, shape, *use.get(name, ("", 0)))
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = 4  # the oldest in which an initializer need not be an input
    return model


def _random_weight(rng: np.random.Generator, shape: tuple[int, ...], op: str, place: int) -> NDArray[Any]:
    if op in ("Conv", "Gemm") and place == 1:
        return (rng.standard_normal(shape) * sqrt(2 / prod(shape[1:]))).astype(np.float32)
    if op == "BatchNormalization" and place in (1, 4):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    if op == "Unsqueeze":  # a scale or shift that is written apart from its batch normalization
        return rng.uniform(0.5, 1.0, shape).astype(np.float32)
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)
