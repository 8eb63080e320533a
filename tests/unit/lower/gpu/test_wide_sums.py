"""Sums of floats of two bytes are held in float32 by the threads that add them up, and rounded once."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import epsilon
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import Array
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Rfactor, Split, Step
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.simt.execute import execute
from tests.support.workloads import GPU, gpu_task_of

LONG = 1536


def product(rows: int, columns: int, dtype: str) -> ComputeDAG:
    """Sums of so many terms that adding them in the type of the factors loses most of its digits."""
    a, b = te.placeholder((rows, LONG), dtype, "a"), te.placeholder((LONG, columns), dtype, "b")
    k = te.reduce_axis(LONG, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    return ComputeDAG([a, b, te.compute((rows, columns), lambda i, j: te.maximum(c[i, j], 0), "relu")])


def sums(dtype: str) -> ComputeDAG:
    """The sum of every row."""
    a = te.placeholder((4, LONG), dtype, "a")
    k = te.reduce_axis(LONG, "k")
    return ComputeDAG([a, te.compute((4,), lambda i: te.sum(a[i, k], k), "total")])


def is_exact(dag: ComputeDAG, steps: tuple[Step, ...], dtype: str) -> bool:
    """Whether a program's results are those of exact sums of the rounded terms, rounded once."""
    rng = np.random.default_rng(3)
    given: list[Array] = [rng.uniform(0.5, 1.0, tensor.shape).astype(dtype) for tensor in dag.inputs]
    (found,) = execute(lower_for_gpu(replay(dag, steps), "k", GPU, check=True), given)
    first, *others = given
    terms = (first[:, :, None] * others[0][None]) if others else first
    wanted = terms.astype(np.float64).sum(axis=1)
    return bool(np.all(np.abs(found.astype(np.float64) / wanted - 1) <= 0.6 * epsilon(dtype)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_untuned_programs_sum_halves_in_float32(dtype: str) -> None:
    for dag in (product(2, 3, dtype), sums(dtype)):
        assert is_exact(dag, default_gpu_steps(dag), dtype)


@pytest.mark.parametrize("threads", [32, 48])
def test_sums_over_threads_that_form_warps_or_do_not(threads: int) -> None:
    dag = sums("float16")
    steps = (Annotate(1, 0, Annotation.BLOCK_X), Split(1, 1, LONG, (threads,)), Annotate(1, 2, Annotation.THREAD_X))
    assert is_exact(dag, steps, "float16")


@pytest.mark.long
def test_programs_of_every_sketch_sum_halves_in_float32() -> None:
    for dag in (product(8, 32, "float16"), sums("float16")):
        for space in build_spaces(gpu_task_of("half", dag), SearchOptions()):
            _, group = next(iter(space.groups(space.sample(np.random.default_rng(1), 32))))
            for row in group.rows[space.legal(group)][:2]:
                assert is_exact(dag, space.steps(row), "float16"), str(replay(dag, space.steps(row)))


@pytest.mark.parametrize("steps", [(Reorder(1, (1, 0)),), (Rfactor(1, 1, 0),), (Rfactor(1, 1, 0), ComputeAt(1, 2, 0))])
def test_sums_that_no_thread_holds_are_rounded_once(steps: tuple[Step, ...]) -> None:
    """A thread has no registers for 300 of them, and `rfactor` puts partial sums in memory."""
    rows = te.placeholder((4, 300), "float16", "a")
    k = te.reduce_axis(4, "k")
    dag = ComputeDAG([rows, te.compute((300,), lambda j: te.sum(rows[k, j], k), "total")])
    if len(steps) > 1 or isinstance(steps[0], Rfactor):
        steps = (Split(1, 1, 4, (2,)), *steps)
    values = np.tile(np.array([60000, 30000, -60000, -29000], "float16")[:, None], 300)
    function = lower_for_gpu(replay(dag, steps), "k", GPU, check=True)
    np.testing.assert_array_equal(execute(function, [values])[0], 1008)
