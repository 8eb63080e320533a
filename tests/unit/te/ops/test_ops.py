"""Every operator's tensor expression against the NumPy evaluation of the graph operator."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.errors import DefinitionError
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ops import OPS
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.ops import LOWERINGS, OpCall, lower_op
from retune.compiler.te.tensor import ComputeOp
from tests.attributes import CONV
from tests.operator_cases import CASES, MAX_POOL, TYPED_CASES, Attrs, Shapes, lowered, random_arrays


def _check(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> None:
    tensor, tensors, node = lowered(op, arrays, attrs)
    (found,) = evaluate([tensor], dict(zip(tensors, arrays, strict=True)))
    wanted: NDArray[Any] = evaluate_node(node, arrays)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    # Products in another order differ by the size of what is added, which may cancel to little.
    largest = np.abs(np.nan_to_num(wanted.astype(np.float64), posinf=0.0, neginf=0.0)).max(initial=0.0)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=max(1e-5, 5e-7 * largest))


@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_operator_means_what_the_graph_says(op: str, shapes: Shapes, attrs: Attrs) -> None:
    _check(op, random_arrays(shapes), attrs)


@pytest.mark.parametrize(("op", "arrays", "attrs"), TYPED_CASES)
def test_operator_of_other_operands(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> None:
    _check(op, arrays, attrs)


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


def test_every_operator_that_passes_leave_has_a_row() -> None:
    assert set(OPS) - set(LOWERINGS) == {"batch_norm", "quantize", "dequantize"}
    assert {op for op, _, _ in (*CASES, *TYPED_CASES)} | {"log", "sqrt", "pow"} == set(LOWERINGS)


def test_literals_stand_for_scalars() -> None:
    x = te.placeholder((3,), name="x")
    halved = lower_op(OpCall("mul", (te.const(0.5), x), {}, (3,), "float32", "mul"))
    np.testing.assert_allclose(evaluate([halved], {x: np.array([1, 2, 3], np.float32)})[0], [0.5, 1, 1.5])


def test_an_unpadded_convolution_has_one_stage() -> None:
    arrays: list[NDArray[Any]] = [np.zeros((1, 6, 6, 4), np.float32), np.zeros((3, 3, 4, 2), np.float32)]
    plain, (data, _), _ = lowered("conv2d", arrays, {**CONV, "pads": (0, 0, 0, 0)})
    assert isinstance(plain.op, ComputeOp)
    assert f"{data.name}[" in str(plain.op.body)
    padded, _, _ = lowered("conv2d", arrays, CONV)
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
