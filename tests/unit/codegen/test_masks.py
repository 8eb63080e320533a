"""Parts of vectors run under masks: nothing is read or written beside them, and nothing traps."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.subtarget import has_table_permute
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Reorder, Split, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.fenced import fenced


def task(dag: ComputeDAG, vector_bytes: int = 64) -> SearchTask:
    return SearchTask("t", dag, Target.host(), HardwareParams(1, vector_unit_bytes=vector_bytes))


def check(dag: ComputeDAG, steps: tuple[Step, ...], values: list[np.ndarray], vector_bytes: int = 64) -> None:
    artifact = build_kernel(task(dag, vector_bytes), steps, "kernel")
    expected = evaluate(dag.outputs, dict(zip(dag.inputs, values, strict=True)))[0]
    np.testing.assert_allclose(fenced(artifact, values), expected, rtol=1e-6, atol=1e-6)


def masked(dag: ComputeDAG, steps: tuple[Step, ...]) -> bool:
    return "llvm.masked.store" in kernel_source(task(dag), steps, "llvm")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int16", "int8", "bool"])
@pytest.mark.parametrize("length", [3, 5, 7, 11, 13, 15, 19, 27, 29, 31, 47, 77])
def test_lengths_that_are_no_sum_of_vectors(length: int, dtype: str) -> None:
    x = te.placeholder((3, length), dtype, "x")
    dag = ComputeDAG([x, te.compute((3, length), lambda i, j: te.maximum(x[i, j], x[2, j]), "y")])
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 50, (3, length)).astype(dtype)
    steps = (Annotate(1, 1, Annotation.VECTORIZE),)
    assert masked(dag, steps)
    for vector_bytes in (16, 64):
        check(dag, steps, [values], vector_bytes)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "int8", "float16"])
@pytest.mark.parametrize("length", [6, 16, 37])
def test_vectors_gather_at_indices_that_are_read(length: int, dtype: str) -> None:
    x, n = te.placeholder((3, 40), dtype, "x"), te.placeholder((3, length), "int32", "n")
    y = te.compute((3, length), lambda i, j: x[n[2 - i, j] % 3, n[i, j] % 40], "y")
    dag = ComputeDAG([x, n, y])
    random, steps = np.random.default_rng(0), (Annotate(2, 1, Annotation.VECTORIZE),)
    values = [random.integers(-9, 90, (3, 40)).astype(dtype), random.integers(0, 2**31, (3, length)).astype("int32")]
    for vector_bytes in (32, 64):
        check(dag, steps, values, vector_bytes)
    if has_table_permute(Target.host()):
        kernel = kernel_source(task(dag), steps, "llvm")
        assert ("llvm.masked.gather" in kernel) == (dtype not in ("int8", "float16"))


CHOICES: dict[str, Callable[[Tensor, Tensor, Expr], Expr]] = {
    "of gathered elements": lambda x, n, j: te.if_then_else(n[j] >= 0, x[te.maximum(n[j], 0)], x[j + 3]),
    "or of a literal": lambda x, n, j: te.if_then_else(n[j] >= 0, x[te.maximum(n[j], 0)], 7),
    "of neighbors": lambda x, n, j: te.if_then_else(n[j] > 3, x[j + 3], x[j]),
    "whose address is read where it holds": lambda x, n, j: te.if_then_else(j > 3, x[n[j]], x[j]),
    "beyond the end": lambda x, n, j: te.if_then_else(n[j] > 100, x[j + 999], x[j]),
}


@pytest.mark.parametrize("dtype", ["float32", "int64", "int16"])
@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_of_each_lane_reads_nothing_else(name: str, dtype: str) -> None:
    x, n = te.placeholder((40,), dtype, "x"), te.placeholder((37,), "int32", "n")
    dag = ComputeDAG([x, n, te.compute((37,), lambda j: CHOICES[name](x, n, j), "y")])
    random, steps = np.random.default_rng(0), (Annotate(2, 0, Annotation.VECTORIZE),)
    indices = random.integers(-9, 40, 37).astype("int32")
    indices[:4] = -(2**31)
    indices[4:] = np.abs(indices[4:]) if "where it holds" in name else indices[4:]
    for vector_bytes in (16, 64):
        check(dag, steps, [random.integers(-9, 90, 40).astype(dtype), indices], vector_bytes)


READS: dict[str, Callable[[Tensor, Tensor, Expr], Expr]] = {
    "quotient": lambda x, n, j: x[j] // n[j],
    "remainder": lambda x, n, j: x[j] % n[j],
    "turned": lambda x, _, j: x[12 - j],
    "strided": lambda x, _, j: x[j // 2 * 2],
    "by index": lambda x, n, j: x[n[j]],
    "the same": lambda x, n, j: x[3] + n[j],
    "by a choice": lambda x, n, j: te.if_then_else(j < 9, x[j], -1) + n[j],
    "by two choices": lambda x, n, j: te.if_then_else(j < 9, x[j], n[j]),
    "by a value": lambda x, n, j: te.if_then_else(x[j] > 5, n[j], 0),
    "by a quotient": lambda x, n, j: te.if_then_else(x[j] // n[j] > 1, n[j], 0),
}


@pytest.mark.parametrize("read", READS)
def test_lanes_that_are_left_out_neither_read_nor_trap(read: str) -> None:
    x, n = te.placeholder((13,), "int64", "x"), te.placeholder((13,), "int64", "n")
    dag = ComputeDAG([x, n, te.compute((13,), lambda j: READS[read](x, n, j), "y")])
    values = [np.random.default_rng(0).integers(0, 50, 13), np.random.default_rng(1).integers(1, 13, 13)]
    steps = (Annotate(2, 0, Annotation.VECTORIZE),)
    check(dag, steps, values)


def test_writes_that_do_not_lie_side_by_side() -> None:
    x = te.placeholder((13, 5), name="x")
    dag = ComputeDAG([x, te.compute((13, 5), lambda i, j: x[i, j] * 2.0, "y")])
    steps = (Reorder(1, (1, 0)), Annotate(1, 1, Annotation.VECTORIZE))
    check(dag, steps, [np.random.default_rng(0).uniform(-1, 1, (13, 5)).astype("float32")])


def test_accumulators_have_room_for_a_whole_vector() -> None:
    a, b, k = te.placeholder((5, 9), name="a"), te.placeholder((9, 29), name="b"), te.reduce_axis(9, "k")
    dag = ComputeDAG([a, b, te.compute((5, 29), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")])
    steps = (Reorder(2, (2, 0, 1)), Annotate(2, 2, Annotation.VECTORIZE))
    assert "float32[5, 32]" in kernel_source(task(dag), steps, "loops")
    assert masked(dag, steps)
    rng = np.random.default_rng(0)
    check(dag, steps, [rng.uniform(-1, 1, shape).astype("float32") for shape in ((5, 9), (9, 29))])
    # Lanes that nobody reads keep nothing: that would take an instruction a vector and step.
    assert " select <" not in kernel_source(task(dag), steps, "llvm")


@pytest.mark.parametrize("join", [te.min, te.max, te.prod])
def test_partial_results_that_the_rest_of_a_row_leaves_out_keep_what_they_have(join: Callable[..., Expr]) -> None:
    x, k = te.placeholder((3, 77), name="x"), te.reduce_axis(77, "k")
    dag = ComputeDAG([x, te.compute((3,), lambda i: join(x[i, k], k), "y")])
    check(dag, (), [np.random.default_rng(0).uniform(0.9, 1.1, (3, 77)).astype("float32")])
    check(dag, (), [-np.random.default_rng(0).uniform(0.9, 1.1, (3, 77)).astype("float32")])


def ragged(body: Callable[[Tensor, Tensor, Expr, Expr, Expr], Expr]) -> tuple[ComputeDAG, tuple[Step, ...]]:
    """So many ragged splits that not all guards can be split away, the innermost loop in vectors."""
    x, n = te.placeholder((37, 41, 43), "int32", "x"), te.placeholder((43,), "int32", "n")
    dag = ComputeDAG([x, n, te.compute((37, 41, 43), lambda i, j, k: body(x, n, i, j, k), "y")])
    splits = (Split(2, 0, 37, (5, 3, 2)), Split(2, 4, 41, (5, 3, 2)), Split(2, 8, 43, (2, 9)))
    return dag, (*splits, Annotate(2, 10, Annotation.VECTORIZE))


@pytest.mark.parametrize(
    "body",
    [
        lambda x, _, i, j, k: x[i, j, k] * 2,
        lambda x, n, i, j, k: x[i, j, k] // n[i] + x[i, j, k] % n[k],
        lambda x, _, i, j, k: te.if_then_else(i > 3, x[i - 3, j, k], 7),
    ],
    ids=["product", "quotients", "choice"],
)
def test_guards_on_lanes(body: Callable[[Tensor, Tensor, Expr, Expr, Expr], Expr]) -> None:
    dag, steps = ragged(body)
    assert "reduce.or" in kernel_source(task(dag), steps, "llvm")
    rng = np.random.default_rng(0)
    values = [rng.integers(-99, 99, (37, 41, 43)), rng.integers(1, 9, 43)]
    check(dag, steps, [value.astype("int32") for value in values])


def test_guards_on_lanes_of_a_target_without_masks() -> None:
    dag, steps = ragged(lambda x, n, i, j, k: x[i, j, k] + n[i])
    narrow = task(dag, 32)
    assert "masked" not in kernel_source(narrow, steps, "llvm")
    check(dag, steps, [np.ones((37, 41, 43), "int32"), np.ones(43, "int32")], 32)
