"""Extents of 0 and 1 in place of those in ONNX's own tests of operators.

Where ONNX's reference has a result, so have we, or the network is refused in a sentence.
"""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler.core.errors import ModelError, ShapeMismatchError
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
_WRONG = {
    "test_dynamicquantizelinear": "of one element the reference has another scale than ONNX's function",
    "test_maxpool_with_argmax_2d_precomputed_pads": "of one element the reference has a negative index",
    **dict.fromkeys(
        ("test_averagepool_2d_precomputed_strides", "test_maxpool_2d_precomputed_strides",
         "test_maxpool_with_argmax_2d_precomputed_strides"),
        "a window that does not fit is partial in ONNX Runtime and in ONNX's inference of shapes",
    ),
}  # fmt: skip
_MAY_REFUSE = re.compile(
    "hold nothing of .* but padding|a kernel of .* has no elements|an image of .* has no (border|reflection)"
    # Operands that no longer fit each other, or parts that ONNX Runtime refuses.
    "|test_(affine_grid|basic_deform_conv|scatternd_m|tensorscatter)|scales are not those of|parts of .* are not the"
    # The function of ONNX copies dimensions that its operand lacks.
    "|test_(sce|nllloss)_"
)
"""In the name of a test or the message: what has no result, though the reference has one."""
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
        except (ModelError, ShapeMismatchError) as error:
            if not _MAY_REFUSE.search(f"{name}: {error}"):
                raise
            continue
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


def _node_model(
    op: str, arrays: list[Array | None], opset: int, results: int, fixed: tuple[int, ...], attributes: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, of whose operands those numbered `fixed` are constants, and what it is fed."""
    names = ["" if array is None else f"x{place}" for place, array in enumerate(arrays)]
    present = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    constants = [f"x{place}" for place in fixed]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in present.items()
        if name not in constants
    ]
    outputs = [onnx.ValueInfoProto(name=f"y{place}") for place in range(results)]
    node = helper.make_node(op, names, [entry.name for entry in outputs], **attributes)
    weights = [numpy_helper.from_array(present[name], name) for name in constants]
    graph = helper.make_graph([node], "net", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model, {entry.name: present[entry.name] for entry in inputs}


def _found(model: onnx.ModelProto, fed: dict[str, Array], wanted: list[Array], *, dynamic: bool) -> list[Array]:
    for entry, array in zip(model.graph.output, wanted, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        entry.CopyFrom(helper.make_tensor_value_info(entry.name, kind, array.shape))
    found = retune.compile(model, threads=1, dynamic=dynamic)(**fed)
    return [np.asarray(array) for array in (found if isinstance(found, tuple) else [found])]


def _filled(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def _ints(*values: int) -> Array:
    return np.array(values, "int64")


_EMPTY: list[Any] = [
    *(
        (op, [_filled(*shape)], opset, 1, (), {"axis": axis})
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset in (11, 13)
        for shape, axis in (((2, 0, 3), 1), ((2, 3, 0), 1), ((0, 2, 3), 0), ((2, 0, 3), 0), ((0, 3), 1))
    ),
    *(
        ("RNN", [_filled(steps, batch, 3), _filled(1, 4, 3), _filled(1, 4, 4), None, None, _filled(1, batch, 4)],
         17, 2, (), {"hidden_size": 4})
        for steps, batch in ((0, 2), (3, 0), (0, 0))
    ),
    *(
        (op, [_filled(3, 2, 3), _filled(1, gates * 4, 3), _filled(1, gates * 4, 4), None, np.array([0, 2], "int32"),
              _filled(1, 2, 4)], 17, 2, (), {"hidden_size": 4})
        for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    ),
    *(
        ("TopK", [_filled(*shape), _ints(0)], 17, 2, (1,), {"axis": axis})
        for shape, axis in (((3, 4), 1), ((3, 0), 1), ((0, 4), 1), ((3, 4), 0))
    ),
    *(
        ("Resize", [_filled(*shape), None, np.array([1, 1, 2, 2], "float32")], 17, 1, (2,), {"mode": mode})
        for shape in ((1, 0, 4, 4), (0, 2, 4, 4), (1, 2, 0, 4))
        for mode in ("nearest", "linear", "cubic")
    ),
    ("Resize", [_filled(1, 0, 4, 4), None, None, _ints(1, 0, 8, 8)], 17, 1, (3,), {"mode": "linear"}),
    *(
        (op, [_filled(1, 2, *extents)], 17, 1, (), attributes)
        for op in ("MaxPool", "AveragePool")
        for extents, attributes in (
            ((2, 2), {"kernel_shape": [3, 3]}),
            ((3, 2), {"kernel_shape": [3, 3]}),
            ((2, 2), {"kernel_shape": [3, 3], "ceil_mode": 1}),
            ((2, 2), {"kernel_shape": [3, 3], "strides": [2, 2]}),
            ((2, 2), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ((2, 2), {"kernel_shape": [4, 4], "strides": [4, 4]}),
            ((2, 2), {"kernel_shape": [5, 5], "strides": [2, 2]}),
            ((2, 2), {"kernel_shape": [5, 5], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
            ((5, 5), {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
            ((2,), {"kernel_shape": [3]}),
            ((2, 2, 2), {"kernel_shape": [3, 3, 3]}),
            ((2, 2, 2), {"kernel_shape": [3, 3, 3], "strides": [2, 2, 2]}),
        )
    ),
    *(
        (op, [_filled(*x), _filled(*w)], 17, 1, fixed, attributes)
        for op, x, w, attributes in (
            ("Conv", (1, 2, 0, 4), (3, 2, 2, 2), {"pads": [1, 1, 1, 1]}),
            ("Conv", (0, 2, 4, 4), (3, 2, 3, 3), {}),
            ("Conv", (1, 2, 4, 4), (0, 2, 3, 3), {}),
            ("ConvTranspose", (1, 2, 0, 4), (2, 3, 3, 3), {}),
            ("ConvTranspose", (1, 2, 0), (2, 3, 2), {}),
            ("ConvTranspose", (1, 0, 4, 4), (0, 3, 3, 3), {}),
            ("MatMul", (3, 0), (0, 4), {}),
        )
        for fixed in ((), (1,))
    ),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(_EMPTY)))
def test_nothing_gives_what_onnx_runtime_gives(place: int) -> None:
    model, fed = _node_model(*_EMPTY[place])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = [
        np.asarray(array) for array in onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, fed)
    ]
    for dynamic in (False, True)[: 1 + place % 2]:
        for one, right in zip(_found(model, fed, wanted, dynamic=dynamic), wanted, strict=True):
            assert one.dtype == right.dtype
            np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "gates", "states"), [("GRU", 3, 1), ("LSTM", 4, 2)])
@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0)])
def test_recurrent_networks_of_nothing_have_no_state(op: str, gates: int, states: int, steps: int, batch: int) -> None:
    """ONNX Runtime ends the process here."""
    operands: list[Array | None] = [_filled(steps, batch, 3), _filled(1, gates * 4, 3), _filled(1, gates * 4, 4)]
    operands += [None, None, _filled(1, batch, 4)]
    model, fed = _node_model(op, operands, 17, 1 + states, (), {"hidden_size": 4})
    wanted = [np.zeros((steps, 1, batch, 4), "float32"), *[np.zeros((1, batch, 4), "float32")] * states]
    for one, right in zip(_found(model, fed, wanted, dynamic=False), wanted, strict=True):
        np.testing.assert_array_equal(one, right)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "why"),
    [
        ("MaxPool", [_filled(1, 2, 0, 4)], {"kernel_shape": [2, 2], "pads": [1] * 4}, "hold nothing of .* but padding"),
        ("MaxPool", [_filled(1, 2, 2, 2)], {"kernel_shape": [5, 5]}, r"the window \(5, 5\) does not fit"),
        ("Conv", [_filled(1, 2, 2, 2), _filled(3, 2, 5, 5)], {}, r"the window \(5, 5\) does not fit"),
        ("Conv", [_filled(1, 2, 2, 2), _filled(3, 2, 0, 5)], {}, "a kernel of .* has no elements"),
        ("ConvTranspose", [_filled(1, 2, 2, 2), _filled(2, 3, 0, 0)], {}, "a kernel of .* has no elements"),
        ("ConvTranspose", [_filled(1, 2, 0, 4), _filled(2, 3, 1, 1)], {}, "nothing is left of the result"),
        ("GridSample", [_filled(1, 2, 0, 4), _filled(1, 3, 3, 2)], {"padding_mode": "border"}, "has no border"),
    ],
)
def test_what_has_no_result_is_refused(op: str, operands: list[Array | None], attributes: Any, why: str) -> None:
    model, fed = _node_model(op, operands, 17, 1, (), attributes)
    with pytest.raises(ModelError, match=why):
        _found(model, fed, [np.zeros((1, 2, 1, 5), "float32")], dynamic=False)
