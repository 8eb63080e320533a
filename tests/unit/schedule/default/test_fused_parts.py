"""Loops that were fused and split again: what is computed inside them covers what is read there, and no more."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import ComputeAt, Fuse, Split, Step
from tests.support.property.checks import checked
from tests.support.property.programs import inputs_of


def chain(height: int, width: int) -> ComputeDAG:
    """B = A + 1, C[i, j] = B[i, j] + B[i, j + 1]."""
    a = te.placeholder((height, width + 1), name="A")
    b = te.compute((height, width + 1), lambda i, j: a[i, j] + 1.0, "B")
    return ComputeDAG([a, te.compute((height, width), lambda i, j: b[i, j] + b[i, j + 1], "C")])


def steps(inner: int, at: int, extent: int = 0) -> tuple[Step, ...]:
    """Both loops of C fused, split, and B computed inside loop number `at`."""
    return (Fuse(2, (0, 1)), Split(2, 0, extent, (inner,)), ComputeAt(1, 2, at))


def region(state: State) -> list[int]:
    """How much of B is computed at once."""
    return [int(np.max(extent)) for extent in statement_nests(state)[0].write.shape]


@pytest.mark.parametrize(("height", "width", "inner"), [(6, 8, 4), (5, 7, 3), (4, 4, 16), (3, 5, 4)])
def test_inside_all_of_the_loops_one_point_is_computed(height: int, width: int, inner: int) -> None:
    dag = chain(height, width)
    assert region(replay(dag, steps(inner, 1))) == [1, 2]
    checked(dag, steps(inner, 1), inputs_of(dag, np.random.default_rng(0)), 2)


@pytest.mark.parametrize(("height", "width", "inner"), [(6, 8, 4), (5, 7, 3), (3, 5, 4)])
def test_inside_some_of_the_loops_everything_is_computed(height: int, width: int, inner: int) -> None:
    dag = chain(height, width)
    assert region(replay(dag, steps(inner, 0))) == [height, width + 1]
    checked(dag, steps(inner, 0), inputs_of(dag, np.random.default_rng(0)), 2)


def test_families_have_the_regions_of_each_program() -> None:
    dag, lengths = chain(6, 8), np.array([2, 3, 16], dtype=np.int64)
    family = (Fuse(2, (0, 1)), Split(2, 0, 48, (lengths,)), ComputeAt(1, 2, 1))
    shape = statement_nests(replay(dag, family))[0].write.shape
    assert [np.broadcast_to(extent, 3).tolist() for extent in shape] == [[1, 1, 1], [2, 2, 2]]


def test_fused_twice_is_still_exact() -> None:
    dag = chain(6, 8)
    more = (Fuse(2, (0, 1)), Split(2, 0, 48, (4,)), Fuse(2, (0, 1)), Split(2, 0, 48, (6,)), ComputeAt(1, 2, 1))
    state = infer_bounds(replay(dag, more))
    assert [iterator.extent for iterator in state.stages[1].iters] == [1, 2]
    checked(dag, more, inputs_of(dag, np.random.default_rng(0)), 1)
