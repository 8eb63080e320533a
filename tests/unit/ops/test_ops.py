"""Every operator's tensor expression against the NumPy evaluation of the graph operator."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.core.dtype import HALVES
from retune.compiler.core.errors import DefinitionError
from retune.compiler.driver.build import build
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.ops import OPS
from retune.compiler.ops.op import TensorType
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import ComputeOp
from tests.support.attributes import CONV
from tests.support.operator_cases import CASES, MAX_POOL, TYPED_CASES, Attrs, Shapes, lowered, random_arrays


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


def test_power_matches_numpy() -> None:
    base = np.array([0.5, 2, 3], np.float32)
    _check("pow", [base, np.array([2, -1, 0.5], np.float32)], {})


@pytest.mark.parametrize("op", ["add", "mul", "div", "maximum"])
def test_integer_operators_match_numpy(op: str) -> None:
    _check(op, [np.array([-7, 7, 5]), np.array([2, -2, 5])], {})


def test_integer_max_pool_and_mean() -> None:
    data = np.random.default_rng(5).integers(-50, 0, (1, 7, 7, 2))
    _check("max_pool2d", [data], MAX_POOL)
    _check("reduce_max", [data], {"axes": (1,), "keepdims": False})


def test_every_operator_has_a_case() -> None:
    assert {op for op, _, _ in (*CASES, *TYPED_CASES)} | {"log", "sqrt", "pow"} == set(OPS)


def test_literals_stand_for_scalars() -> None:
    x = te.placeholder((3,), name="x")
    halved = OPS["mul"].tensor((te.const(0.5), x))
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
    known = OPS["dense"].tensor((a, b), constants=frozenset({b}))
    unknown = OPS["dense"].tensor((a, b))
    assert known.op.attrs["layout_free_placeholders"] == (b,)
    assert not unknown.op.attrs


def test_a_literal_of_another_rank_broadcasts_by_its_type() -> None:
    x = te.placeholder((3,), name="x")
    y = OPS["add"].tensor((te.const(1.0), x), types=(TensorType((1, 1), "float32"), x))
    assert y.shape == (1, 3)


def test_products_may_be_summed_in_a_wider_dtype() -> None:
    a, b = te.placeholder((2, 4), "float16", "a"), te.placeholder((4, 3), "float16", "b")
    assert OPS["dense"].tensor((a, b), out_dtype="float32").dtype == "float32"


def test_misfits_are_named() -> None:
    x = te.placeholder((3,), name="x")
    with pytest.raises(DefinitionError, match=r"leaky_relu 'node_7' of \(x: float32\[3\]\): attributes must be"):
        OPS["leaky_relu"].tensor((x,), name="node_7")
    with pytest.raises(DefinitionError, match=r"softmax 'node_7' of \(float32\[\]\): axis 0 is outside the rank"):
        OPS["softmax"].tensor((te.const(1.0),), {"axis": 0}, name="node_7")
    with pytest.raises(DefinitionError, match=r"reshape 'node_7' .* takes tensors, not the literal 1"):
        OPS["reshape"].tensor((te.const(1.0),), {"shape": (1,)}, name="node_7")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["softplus", "silu", "hard_swish", "gelu", "gelu_tanh"])
def test_activations_of_halves_are_rounded_once(op: str, dtype: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    results = []
    for values in (every, every.astype(np.float32)):
        x = te.placeholder(values.shape, values.dtype.name, "x")
        result = np.empty_like(values)
        build([x, OPS[op].tensor((x,))])(values, result)
        results.append(result)
    narrow, wide = results
    np.testing.assert_array_equal(narrow.astype(np.float32), wide.astype(dtype).astype(np.float32))


def test_integers_have_no_kernel_of_an_operator_of_floats() -> None:
    """A kernel of another dtype than the described one would write past the end of its buffer."""
    x = te.placeholder((3,), "int32", name="x")
    with pytest.raises(DefinitionError, match=r"gelu .* is computed in float32, not int32; cast the operands"):
        OPS["gelu"].tensor((x,))
