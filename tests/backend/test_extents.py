"""Extents of 0 and 1 in place of those in ONNX's own tests of operators.

Where ONNX's reference has a result, so have we, or the network is refused in a sentence.
"""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler.errors import ModelError, ShapeMismatchError
from tests.support.onnx_backend import CompiledModel, recorded

Array = NDArray[Any]
_NAMES = [
    name
    for name, outcome in recorded().items()
    if outcome in ("compiled", "machine", "host")
    and name.islower()
    and not re.search("expanded|attention|operator|lstm|rnn|gru", name)
]
"""The reference pads the masks of attention where ONNX's function broadcasts them, and broadcasts weights of recurrent
networks that do not fit."""
_WRONG = {"test_dynamicquantizelinear", "test_maxpool_with_argmax_2d_precomputed_pads"}
"""Of one element: the reference has another scale than ONNX's function, and a negative index."""
_SAMPLE = _NAMES[::20]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """ONNX's tests by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def variants(model: onnx.ModelProto, arrays: list[Array]) -> Iterator[tuple[onnx.ModelProto, list[Array]]]:
    """The model and its inputs with one of their extents, wherever it occurs, 0 or 1."""
    for extent in sorted({extent for array in arrays for extent in array.shape if extent > 1}):
        for other in (0, 1):
            # Integers of one dimension beside other inputs say shapes, axes and the like.
            fed = [
                array
                if array.dtype == np.int64 and array.ndim == 1 and len(arrays) > 1
                else np.ascontiguousarray(array[tuple(slice(other if n == extent else n) for n in array.shape)])
                for array in arrays
            ]
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            for entry, array in zip(changed.graph.input, fed, strict=True):
                entry.CopyFrom(helper.make_tensor_value_info(entry.name, entry.type.tensor_type.elem_type, array.shape))
            for entry in changed.graph.output:
                entry.type.tensor_type.ClearField("shape")
            yield changed, fed


def reference(model: onnx.ModelProto, arrays: list[Array]) -> list[Array] | None:
    """What ONNX's reference gives; None where it fails."""
    try:
        names = [entry.name for entry in model.graph.input]
        return [np.asarray(one) for one in ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))]
    except Exception:
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.long if name in _SAMPLE else pytest.mark.slow) for name in _NAMES
])  # fmt: skip
def test_operators_take_extents_of_nothing_and_one(name: str, cases: dict[str, Any]) -> None:
    case = cases.get(name) or pytest.skip("is a test of a network")
    inputs = list(case.data_sets[0][0]) if case.data_sets else []
    tensors = all(entry.type.HasField("tensor_type") for entry in (*case.model.graph.input, *case.model.graph.output))
    if not inputs or not tensors or not all(isinstance(array, np.ndarray) for array in inputs) or name in _WRONG:
        pytest.skip("has no tensors to change, or a reference that is wrong")
    for model, fed in variants(case.model, inputs):
        wanted = reference(model, fed)
        if wanted is None:
            continue
        for entry, array in zip(model.graph.output, wanted, strict=True):
            for axis in range(array.ndim):
                entry.type.tensor_type.shape.dim.add(dim_param=f"{entry.name}{axis}")
            entry.type.tensor_type.shape.SetInParent()
        shapes = [array.shape for array in fed]
        try:
            found = CompiledModel(model).run(fed)
        except (ModelError, ShapeMismatchError):
            continue  # refused
        for one, right in zip(found, wanted, strict=True):
            assert (one.shape, one.dtype) == (right.shape, right.dtype), shapes
            if right.dtype.kind in "biufV":
                tolerance = 1e-2 if right.dtype.itemsize < 4 else 1e-3
                wide = one.astype("float64"), right.astype("float64")
                np.testing.assert_allclose(wide[0], wide[1], rtol=tolerance, atol=1e-4, err_msg=str(shapes))


def _network(shape: tuple[int, ...], nodes: list[onnx.NodeProto], dims: list[str | int]) -> onnx.ModelProto:
    entry = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(shape))
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, dims)]
    graph = helper.make_graph(nodes, "net", [entry], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((4, 0, 3), 2), ((4, 0, 3), 1), ((0, 3), 0), ((2, 3), -1), ((0, 3), 2)])
def test_flatten_keeps_the_extents_beside_nothing(shape: tuple[int, ...], axis: int, dynamic: bool) -> None:
    model = _network(shape, [helper.make_node("Flatten", ["x"], ["y"], axis=axis)], ["p", "q"])
    found = np.asarray(retune.compile(model, dynamic=dynamic)(x=np.zeros(shape, "float32")))
    assert found.shape == (np.prod(shape[:axis]), np.prod(shape[axis:]))


@pytest.mark.parametrize("batch", [1, "n"])
def test_windows_that_start_in_the_padding_are_left_out_of_any_inference(batch: int | str) -> None:
    # 13 x 12 becomes 7 x 6, 3 x 3 and 2 x 2, of which ONNX infers 7 x 7, 3 x 4 and 2 x 3.
    pools = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[1, 1], strides=[3, 2], ceil_mode=1),
        helper.make_node("AveragePool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Flatten", ["c"], ["y"]),
    ]
    x = np.arange(2 * 13 * 12, dtype="float32").reshape(1, 2, 13, 12)
    model = _network((batch, 2, 13, 12), pools, ["p", "q"])  # type: ignore[arg-type]
    found = np.asarray(retune.compile(model, dynamic=True)(x=x))
    np.testing.assert_allclose(found, np.asarray(retune.compile(model, shapes={"x": x.shape})(x=x)))
    assert found.shape == (1, 2 * 2 * 2)
