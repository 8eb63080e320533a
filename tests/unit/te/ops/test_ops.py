"""Every operator's tensor expression against the NumPy evaluation of the graph operator."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import te
from compiler.errors import DefinitionError
from compiler.graph.evaluate import evaluate_node
from compiler.graph.ir import Attribute, Node, Value
from compiler.graph.ops import OPS, infer_value
from compiler.te.evaluate import evaluate
from compiler.te.ops import LOWERINGS, OpCall, lower_op
from compiler.te.tensor import ComputeOp, Tensor

Attrs = Mapping[str, Attribute]
Shapes = tuple[tuple[int, ...], ...]

CONV: dict[str, Attribute] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "NHWC",
}
POOL: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NHWC"}
MAX_POOL: dict[str, Attribute] = {**POOL, "dilations": (1, 1)}
AVG_POOL: dict[str, Attribute] = {**POOL, "count_include_pad": False}

KEPT: dict[str, Attribute] = {"axes": (0, 2), "keepdims": True}

UNARY = ("relu", "sigmoid", "tanh", "exp", "erf", "neg", "abs", "floor", "ceil", "round", "identity")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")

CASES: list[tuple[str, Shapes, Attrs]] = [
    *((op, ((2, 3, 4),), {}) for op in UNARY),
    *((op, ((2, 3, 4), (3, 1)), {}) for op in BINARY),
    ("add", ((4,), (2, 3, 4)), {}),
    ("leaky_relu", ((2, 3),), {"alpha": 0.1}),
    ("clip", ((4, 5),), {"low": -0.5, "high": 0.75}),
    ("clip", ((4, 5),), {"low": -0.5, "high": float("inf")}),
    ("cast", ((4, 5),), {"dtype": "int32"}),
    ("conv2d", ((2, 6, 7, 3), (3, 3, 3, 5)), CONV),
    ("conv2d", ((1, 7, 7, 3), (3, 3, 3, 5)), {**CONV, "strides": (2, 2), "pads": (1, 0, 0, 1)}),
    ("conv2d", ((1, 9, 9, 2), (3, 3, 2, 4)), {**CONV, "dilations": (2, 3), "pads": (0, 3, 1, 2)}),
    ("conv2d", ((1, 6, 6, 4), (1, 1, 4, 3)), {**CONV, "pads": (0, 0, 0, 0), "strides": (2, 2)}),
    ("conv2d", ((1, 6, 6, 1), (3, 2, 1, 3)), CONV),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 4)), {**CONV, "groups": 4}),
    ("conv2d", ((1, 6, 6, 4), (1, 1, 4)), {**CONV, "groups": 4, "pads": (0, 0, 0, 0)}),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 2, 6)), {**CONV, "groups": 2}),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 1, 8)), {**CONV, "groups": 4, "strides": (2, 1)}),
    ("conv2d", ((2, 3, 6, 7), (5, 3, 3, 3)), {**CONV, "layout": "NCHW"}),
    ("conv2d", ((1, 4, 6, 6), (4, 1, 3, 3)), {**CONV, "layout": "NCHW", "groups": 4, "strides": (2, 2)}),
    ("conv2d", ((1, 4, 6, 6), (6, 2, 3, 3)), {**CONV, "layout": "NCHW", "groups": 2}),
    ("dense", ((4, 7), (7, 5)), {}),
    ("batch_matmul", ((3, 4, 7), (3, 7, 5)), {}),
    ("max_pool2d", ((1, 7, 8, 3),), MAX_POOL),
    ("max_pool2d", ((1, 3, 7, 8),), {**MAX_POOL, "layout": "NCHW"}),
    ("max_pool2d", ((1, 8, 8, 3),), {**MAX_POOL, "pads": (0, 0, 0, 0), "kernel": (2, 2)}),
    ("max_pool2d", ((1, 9, 9, 2),), {**MAX_POOL, "dilations": (2, 2), "strides": (1, 1)}),
    ("avg_pool2d", ((1, 7, 8, 3),), AVG_POOL),
    ("avg_pool2d", ((1, 7, 8, 3),), {**AVG_POOL, "count_include_pad": True}),
    ("avg_pool2d", ((1, 3, 7, 8),), {**AVG_POOL, "layout": "NCHW", "pads": (0, 0, 1, 1)}),
    ("avg_pool2d", ((1, 8, 8, 3),), {**AVG_POOL, "pads": (0, 0, 0, 0), "kernel": (2, 4)}),
    *((f"reduce_{name}", ((2, 3, 4),), KEPT) for name in ("sum", "mean", "max", "min")),
    ("reduce_mean", ((2, 3, 4),), {"axes": (1,), "keepdims": False}),
    ("reduce_sum", ((2, 3),), {"axes": (0, 1), "keepdims": False}),
    ("softmax", ((2, 3, 4),), {"axis": 1}),
    ("reshape", ((2, 3, 4),), {"shape": (4, 6)}),
    ("reshape", ((2, 6),), {"shape": (2, 1, 3, 2)}),
    ("reshape", ((1, 1),), {"shape": ()}),
    ("transpose", ((2, 3, 4),), {"perm": (2, 0, 1)}),
    ("concat", ((2, 3), (2, 1), (2, 4)), {"axis": 1}),
    ("slice", ((5, 6),), {"starts": (1, 0), "stops": (5, 6), "steps": (1, 2)}),
    ("pad", ((2, 3),), {"pads_before": (0, 1), "pads_after": (2, 0), "value": 1.5}),
    ("pad", ((2, 3),), {"pads_before": (0, 0), "pads_after": (0, 0), "value": 1.5}),
    ("broadcast_to", ((3, 1),), {"shape": (2, 3, 4)}),
]


def _lowered(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> tuple[Tensor, list[Tensor], Node]:
    node = Node(op, tuple(f"x{place}" for place in range(len(arrays))), ("y",), attrs)
    values = tuple(Value(name, a.shape, a.dtype.name) for name, a in zip(node.inputs, arrays, strict=True))
    result = infer_value(node, values)
    tensors = [te.placeholder(value.shape, value.dtype, f"p{place}") for place, value in enumerate(values)]
    return lower_op(OpCall(op, tuple(tensors), attrs, result.shape, result.dtype, op)), tensors, node


def _check(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> None:
    tensor, tensors, node = _lowered(op, arrays, attrs)
    (found,) = evaluate([tensor], dict(zip(tensors, arrays, strict=True)))
    wanted: NDArray[Any] = evaluate_node(node, arrays)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_operator_means_what_the_graph_says(op: str, shapes: Shapes, attrs: Attrs) -> None:
    rng = np.random.default_rng(7)
    _check(op, [2 * rng.standard_normal(shape).astype(np.float32) for shape in shapes], attrs)


@pytest.mark.parametrize("op", ["log", "sqrt"])
def test_operators_of_positive_numbers(op: str) -> None:
    _check(op, [np.random.default_rng(3).uniform(0.1, 4, (3, 5)).astype(np.float32)], {})


def test_pow() -> None:
    base = np.array([0.5, 2, 3], np.float32)
    _check("pow", [base, np.array([2, -1, 0.5], np.float32)], {})


@pytest.mark.parametrize("op", ["add", "mul", "div", "maximum"])
def test_integers(op: str) -> None:
    _check(op, [np.array([-7, 7, 5]), np.array([2, -2, 5])], {})


def test_integer_max_pool_and_mean() -> None:
    data = np.random.default_rng(5).integers(-50, 0, (1, 7, 7, 2))
    _check("max_pool2d", [data], MAX_POOL)
    _check("reduce_max", [data], {"axes": (1,), "keepdims": False})


def test_every_operator_but_batch_norm_has_a_row() -> None:
    assert set(OPS) - set(LOWERINGS) == {"batch_norm"}
    assert {op for op, _, _ in CASES} | {"log", "sqrt", "pow"} == set(LOWERINGS)


def test_literals_stand_for_scalars() -> None:
    x = te.placeholder((3,), name="x")
    halved = lower_op(OpCall("mul", (te.const(0.5), x), {}, (3,), "float32", "mul"))
    np.testing.assert_allclose(evaluate([halved], {x: np.array([1, 2, 3], np.float32)})[0], [0.5, 1, 1.5])


def test_an_unpadded_convolution_has_one_stage() -> None:
    arrays: list[NDArray[Any]] = [np.zeros((1, 6, 6, 4), np.float32), np.zeros((3, 3, 4, 2), np.float32)]
    plain, (data, _), _ = _lowered("conv2d", arrays, {**CONV, "pads": (0, 0, 0, 0)})
    assert isinstance(plain.op, ComputeOp)
    assert f"{data.name}[" in str(plain.op.body)
    padded, _, _ = _lowered("conv2d", arrays, CONV)
    assert isinstance(padded.op, ComputeOp)
    assert "conv2d_pad[" in str(padded.op.body)


def test_only_known_weights_may_change_their_layout() -> None:
    a, b = te.placeholder((4, 4), name="a"), te.placeholder((4, 4), name="b")
    known = lower_op(OpCall("dense", (a, b), {}, (4, 4), "float32", "dense", frozenset({b})))
    unknown = lower_op(OpCall("dense", (a, b), {}, (4, 4), "float32", "dense"))
    assert known.op.attrs["layout_free_placeholders"] == (b,)
    assert not unknown.op.attrs


def test_misfits_are_named() -> None:
    x = te.placeholder((3,), name="x")
    with pytest.raises(DefinitionError, match="node_7: no tensor expression for 'fft'"):
        lower_op(OpCall("fft", (x,), {}, (3,), "float32", "node_7"))
    with pytest.raises(DefinitionError, match="node_7: attribute 'alpha' of leaky_relu must be a number"):
        lower_op(OpCall("leaky_relu", (x,), {}, (3,), "float32", "node_7"))
