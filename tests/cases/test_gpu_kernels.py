"""Schedules on a GPU: the loops as they are built, after every pass, and the kernels; tests/cases/gpu."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Split
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.cases import check_case, check_subjects
from tests.support.kernel_texts import sections_of
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.small_computations import doubled, sum_and_peak
from tests.support.workloads import GPU, gpu_task_of, matmul

BLOCK, THREAD = Annotation.BLOCK_X, Annotation.THREAD_X


def tiled() -> State:
    """A matmul in 2 blocks of 32 threads, of 2 virtual threads with 2 × 2 points each; elements are fetched in twos."""
    dag = matmul(16, 32, 8)
    (space,) = build_spaces(gpu_task_of("t", dag), SearchOptions())
    row = np.ones((1, space.layout.width), dtype=np.int64)
    row[:, space.layout.placement] = 0
    for split, parts in zip(space.layout.splits, ([2, 1, 4, 2, 1], [1, 2, 8, 2, 1], [2, 2, 2]), strict=True):
        row[0, split.columns] = parts
    for width in space.layout.widths:
        row[0, width.column] = 2
    return replay(dag, space.steps(row[0]))


def ragged() -> State:
    """100 points in 4 blocks of 32 threads."""
    return replay(doubled(100), (Split(1, 0, 100, (32,)), Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD)))


def across() -> State:
    """Two results of every row, each joined over 6 threads."""
    steps = (Split(1, 1, 20, (6,)), Annotate(1, 2, THREAD), Annotate(1, 0, BLOCK))
    return replay(sum_and_peak(3, 20), steps)


def around() -> State:
    """The sum of every row, joined over 8 threads, where 8 threads divide by it."""
    x, k = te.placeholder((3, 20), name="x"), te.reduce_axis(20, "k")
    total = te.compute((3,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((3, 20), lambda i, j: x[i, j] / total[i], "share")])
    steps = (
        Split(2, 1, 20, (8,)),
        Annotate(2, 2, THREAD),
        Annotate(2, 0, BLOCK),
        Split(1, 1, 20, (8,)),
        Annotate(1, 2, THREAD),
        ComputeAt(1, 2, 0),
    )
    return replay(dag, steps)


def warps() -> State:
    """The sum of every row, joined over two warps, in blocks of two rows."""
    x, k = te.placeholder((4, 100), name="x"), te.reduce_axis(100, "k")
    dag = ComputeDAG([x, te.compute((4,), lambda i: te.sum(x[i, k], k), "y")])
    rows = (Split(1, 0, 4, (2,)), Annotate(1, 0, BLOCK), Annotate(1, 1, Annotation.THREAD_Y))
    return replay(dag, (*rows, Split(1, 2, 100, (64,)), Annotate(1, 3, THREAD)))


PROGRAMS: dict[str, Callable[[], State]] = {
    "tiled": tiled,
    "ragged": ragged,
    "across": across,
    "around": around,
    "warps": warps,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_schedule_becomes_the_kernels_of_its_case(name: str, update_golden: bool) -> None:
    state = PROGRAMS[name]()
    check_case("gpu", name, sections_of(state), update_golden)


def test_every_file_has_a_schedule() -> None:
    check_subjects("gpu", [*PROGRAMS, "tensor", "warpgroups"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_the_definition(name: str) -> None:
    state = PROGRAMS[name]()
    values = inputs_of(state.dag, np.random.default_rng(0))
    inputs = [values[tensor] for tensor in state.dag.inputs]
    found = execute(lower_for_gpu(state, "k", GPU, check=True), inputs)
    wanted = evaluate(state.dag.outputs, dict(zip(state.dag.inputs, inputs, strict=True)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
