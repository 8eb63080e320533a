"""Guards of splits that do not divide leave the hot part of a loop; the code stays small."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.stmt import If, Store, walk_stmt
from retune.compiler.ir.verify import verify
from retune.compiler.lower.passes.partition_loops import MAX_COPIES, partition_loops
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeInline, Split, Step
from retune.compiler.schedule.task import SearchTask
from tests.support.small_computations import golden, loops, matmul


def test_the_code_grows_within_its_limit() -> None:
    ragged = [Split(2, 0, 997, (5, 7, 3)), Split(2, 4, 991, (5, 7, 3)), Split(2, 8, 983, (5, 7, 3))]
    function = partition_loops(loops(matmul(997, 991, 983), *ragged))
    stores = sum(isinstance(stmt, Store) for stmt in walk_stmt(function.body))
    assert 4 <= stores <= 2 * MAX_COPIES
    assert any(isinstance(stmt, If) for stmt in walk_stmt(function.body))


def test_a_division_in_a_choice_not_taken_is_not_made() -> None:
    x = te.placeholder((4,), "int64", "x")
    safe = te.compute((4,), lambda i: te.if_then_else(i < 3, x[i] // (i - 3), x[i]), "y")
    function = partition_loops(loops(ComputeDAG([x, safe]), Split(1, 0, 4, (3,))))
    assert "let i.1.s1 = 0" in str(function)
    verify(function, "partition-loops")


def _end_to_end(*widths: int) -> ComputeDAG:
    """Rows of several arrays, one behind the other."""
    sources = [te.placeholder((3, width), name=name) for width, name in zip(widths, "abc", strict=False)]

    def row(i: Expr, j: Expr) -> Expr:
        end, value = sum(widths), None
        for source, width in zip(reversed(sources), reversed(widths), strict=True):
            end -= width
            piece: Expr = source[i, j - end]
            value = piece if value is None else te.if_then_else(j < end + width, piece, value)
        assert value is not None
        return value

    return ComputeDAG([*sources, te.compute((3, sum(widths)), row, name="y")])


def test_a_vector_is_split_where_what_it_stores_changes() -> None:
    function = partition_loops(loops(_end_to_end(5, 1, 8), Annotate(3, 1, Annotation.VECTORIZE)))
    assert str(function) == golden(
        """
        def k(a: float32[3, 5], b: float32[3, 1], c: float32[3, 8], y: float32[3, 14]):
          for i.s3 in 3:
            vector j.s3 in 5:
              y[i.s3, j.s3] = a[i.s3, j.s3]
            y[i.s3, 5] = b[i.s3, 0]
            vector j.s3 in 8:
              y[i.s3, (j.s3 + 6)] = c[i.s3, ((j.s3 + 6) - 6)]
        """
    )


def test_a_vector_of_many_pieces_is_split_at_every_seam() -> None:
    sources = [te.placeholder((3, 8), name=f"p{each}") for each in range(2 * MAX_COPIES)]

    def row(i: Expr, j: Expr) -> Expr:
        value: Expr = sources[-1][i, j - 8 * (len(sources) - 1)]
        for place in range(len(sources) - 2, -1, -1):
            value = te.if_then_else(j < 8 * (place + 1), sources[place][i, j - 8 * place], value)
        return value

    end_to_end = te.compute((3, 8 * len(sources)), row, "joined")
    larger = te.compute(end_to_end.shape, lambda i, j: te.maximum(end_to_end[i, j] * 2.0, 0.0), "y")
    dag = ComputeDAG([*sources, larger])
    steps = [ComputeInline(len(sources)), Annotate(len(sources) + 1, 1, Annotation.VECTORIZE)]
    assert str(partition_loops(loops(dag, *steps))).count("vector j") == len(sources)


def test_a_vector_with_several_choices_beside_each_other_is_not_split() -> None:
    x = te.placeholder((40,), name="x")

    def windows(i: Expr) -> Expr:
        total: Expr = te.const(0.0, "float32")
        for start in range(0, 30, 3):
            total = total + te.if_then_else(te.logical_and(i >= start, i < start + 6), x[i - start], 0.0)
        return total

    dag = ComputeDAG([x, te.compute((40,), windows, "y")])
    assert str(partition_loops(loops(dag, Annotate(1, 0, Annotation.VECTORIZE)))).count("vector i") == 1


def test_a_vector_is_not_split_at_a_place_that_moves() -> None:
    x = te.placeholder((9, 9), name="x")
    masked = te.compute((9, 9), lambda i, j: te.if_then_else(j <= i, x[i, j], 0.0) + 1.0, "y")
    function = partition_loops(loops(ComputeDAG([x, masked]), Annotate(1, 1, Annotation.VECTORIZE)))
    assert str(function).count("vector j") == 1


@pytest.mark.parametrize("widths", [(5, 1, 8), (32, 64), (1, 1), (17, 33, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_what_was_put_end_to_end(widths: tuple[int, ...], *, split: bool) -> None:
    dag, last = _end_to_end(*widths), len(widths)
    steps: list[Step] = [Split(last, 1, sum(widths), (8,))] if split else []
    steps.append(Annotate(last, 2 if split else 1, Annotation.VECTORIZE))
    kernel = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "k")
    arrays = [np.random.default_rng(each).random((3, width), "float32") for each, width in enumerate(widths)]
    function = KernelFunction(load_kernels([kernel])["k"])
    (found,) = outputs = function.outputs()
    function(*function.prepared(*arrays), *outputs)
    np.testing.assert_array_equal(found, np.concatenate(arrays, axis=1))


def _sum_end_to_end(*widths: int) -> ComputeDAG:
    """The product of rows of several arrays, one behind the other, with a matrix."""
    dag = _end_to_end(*widths)
    joined, weights = dag.outputs[0], te.placeholder((sum(widths), 16), name="w")
    k = te.reduce_axis((0, sum(widths)), "k")
    product = te.compute((3, 16), lambda i, j: te.sum(joined[i, k] * weights[k, j], axis=k), "z")
    return ComputeDAG([*dag.inputs, weights, product])


@pytest.mark.parametrize(
    ("widths", "inner", "sums"),
    [((32, 64), 0, 2), ((24, 40, 16), 8, 3), ((24, 40), 16, 4), ((5, 1, 8), 0, 3)],
    ids=["whole", "a split that divides", "a split that does not", "short"],
)
def test_a_sum_is_split_where_it_reads_another_operand(widths: tuple[int, ...], inner: int, sums: int) -> None:
    dag, joined = _sum_end_to_end(*widths), len(widths)
    product = joined + 2
    steps: list[Step] = [ComputeInline(joined)] + ([Split(product, 2, sum(widths), (inner,))] if inner else [])
    steps.append(Annotate(product, 1, Annotation.VECTORIZE))
    function = partition_loops(loops(dag, *steps))
    text = str(function)
    assert "if" not in text
    assert text.count("= (z[") == sums
    kernel = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "k")
    arrays = [np.random.default_rng(each).random(tensor.shape, "float32") for each, tensor in enumerate(dag.inputs)]
    run = KernelFunction(load_kernels([kernel])["k"])
    (found,) = outputs = run.outputs()
    run(*run.prepared(*arrays), *outputs)
    np.testing.assert_allclose(found, np.concatenate(arrays[:-1], axis=1) @ arrays[-1], rtol=1e-5)
