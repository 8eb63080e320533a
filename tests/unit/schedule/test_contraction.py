"""Which operations are products of matrices, and what they become as such."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ops.op import Attribute
from retune.compiler.schedule.contraction import (
    as_matmul,
    contraction_of,
    depth_is_inner,
    has_tf32_products,
    instruction_for,
)
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import ComputeOp
from tests.support.property.programs import inputs_of
from tests.support.tensor_core_products import PRODUCTS, called, conv, product
from tests.support.workloads import conv_bn_relu, matmul, softmax


def result_of(dag: ComputeDAG) -> int:
    """The number of the operation that is a product."""
    (found,) = (number for number in range(len(dag.ops)) if contraction_of(dag, number) is not None)
    return found


def groups(dag: ComputeDAG) -> list[list[str]]:
    """The names of the axes of batch, rows, columns and sum."""
    found = contraction_of(dag, result_of(dag))
    assert found is not None
    return [[axis.name for axis in axes] for axes in (found.batch, found.rows, found.columns, found.sums)]


def test_axes_of_a_contraction_are_classified_by_their_reads() -> None:
    assert groups(product(32, 16, 24)) == [[], ["i"], ["j"], ["k"]]
    assert groups(PRODUCTS["batched"]()) == [["n"], ["i"], ["j"], ["k"]]
    assert groups(PRODUCTS["conv2d"]()) == [[], ["n", "y", "x"], ["c"], ["ry", "rx", "rc"]]
    assert [len(names) for names in groups(PRODUCTS["attention"]())] == [1, 1, 1, 1]


def test_the_last_axis_of_the_result_is_among_the_columns() -> None:
    """Channels first: neighbors of the result are points of the image, so the weight is the left factor."""
    assert groups(PRODUCTS["conv2d, channels first"]()) == [[], ["c"], ["n", "y", "x"], ["ry", "rx", "rc"]]


@pytest.mark.parametrize("name", PRODUCTS)
def test_as_a_matmul_it_computes_the_same(name: str) -> None:
    dag = PRODUCTS[name]()
    number = result_of(dag)
    kind = instruction_for(dag, number, tf32=True)
    assert kind is not None
    changed = as_matmul(dag, number, kind)
    assert len(changed.ops) == len(dag.ops) + 3
    assert [op.name for op in changed.ops[number : number + 3]] == [
        f"{dag.ops[number].name}{ending}" for ending in (".left.shared", ".right.shared", ".mma")
    ]
    values = inputs_of(dag, np.random.default_rng(0))
    for one, other in zip(evaluate(changed.outputs, values), evaluate(dag.outputs, values), strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=1e-2, atol=1e-2)


def test_matrices_keep_the_neighbors_of_the_tensor() -> None:
    for turned, inner in (("", [True, False]), ("A", [False, False]), ("B", [True, True])):
        dag = product(32, 16, 24, turned=turned)
        changed = as_matmul(dag, result_of(dag), "f16")
        factors = [op for op in changed.ops if op.name.endswith(".shared")]
        assert [depth_is_inner(op) for op in factors if isinstance(op, ComputeOp)] == inner


def test_non_matmul_is_no_contraction() -> None:
    x, y = te.placeholder((32, 32), "float16", "x"), te.placeholder((32, 32), "float16", "y")
    k = te.reduce_axis(32, "k")
    bodies = (
        lambda i, j: te.max(x[i, k] * y[k, j], k),
        lambda i, j: te.sum(x[i, k] + y[k, j], k),
        lambda i, j: te.sum(x[i, k] * te.cast("float16", j), k),
        lambda i, j: te.sum(x[i, j] * y[k, j], k),
        lambda i, j: te.sum(x[i, k] * y[k, i + j // 32], k),
        lambda i, j: te.sum(te.if_then_else(i > 3, x[i, k], te.cast("float16", 0.0)) * y[k, j], k),
    )
    for body in bodies:
        dag = ComputeDAG([x, y, te.compute((32, 32), body, "z")])
        assert contraction_of(dag, len(dag.ops) - 1) is None
    grouped = conv(6, (16, 16), 3, "float16", "float32")
    assert contraction_of(grouped, 0) is None
    for dag in (softmax(32, 32),):
        assert all(contraction_of(dag, number) is None for number in range(len(dag.ops)))


def test_float32_is_rounded_only_where_that_is_allowed() -> None:
    dag = matmul(32, 32, 32)
    number = result_of(dag)
    assert instruction_for(dag, number, tf32=False) is None
    assert instruction_for(dag, number, tf32=True) == "tf32"
    assert has_tf32_products(dag)
    half = product(32, 32, 32)
    assert not has_tf32_products(half)
    assert instruction_for(half, result_of(half), tf32=False) == "f16"
    bf16 = product(32, 32, 32, "bfloat16")
    assert instruction_for(bf16, result_of(bf16), tf32=False) == "bf16"


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_products_of_operators_keep_their_instruction(dtype: str, kind: str) -> None:
    contract: dict[str, Attribute] = {"left": "hij", "right": "jhd", "result": "ihd"}
    graphs = (
        called("dense", ((64, 32), (32, 48)), dtype, ""),
        called("batch_matmul", ((3, 32, 64), (3, 64, 32)), dtype, ""),
        called("contract", ((3, 32, 64), (64, 3, 32)), dtype, "", **contract),
        conv(7, (16, 24), 3, dtype, ""),
    )
    for dag in graphs:
        number = result_of(dag)
        assert dag.ops[number].dtypes == (dtype,)
        assert instruction_for(dag, number, tf32=False) == kind


@pytest.mark.parametrize("sizes", [(15, 16, 16), (16, 7, 16), (16, 16, 15)])
def test_what_does_not_fill_an_instruction_is_left_alone(sizes: tuple[int, int, int]) -> None:
    dag = product(*sizes)
    assert instruction_for(dag, result_of(dag), tf32=True) is None
    with pytest.raises(DefinitionError, match=r"C: tensor cores cannot multiply .* elements of float16 as f16"):
        as_matmul(dag, result_of(dag), "f16")


def test_a_kind_that_does_not_suit_is_refused() -> None:
    dag = product(32, 32, 32)
    with pytest.raises(DefinitionError, match="32 x 32 by 32 x 32 elements of float16 as bf16"):
        as_matmul(dag, result_of(dag), "bf16")
    with pytest.raises(DefinitionError, match="is no product of matrices"):
        as_matmul(conv_bn_relu(1, 6, 4, 8, 3, 1, 1), 0, "f16")
