"""Sketches for GPUs, of explicit hardware parameters: how many, in which order, and what they are made of."""

import pytest

from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, Attached, Inlined, Root, State
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    FollowSplit,
    Reorder,
    Split,
)
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.rules.facts import has_cache_write, has_cross_thread_reduction
from retune.compiler.search.sketch import derive_sketches
from tests.support.workloads import (
    GPU,
    conv_bn_relu,
    double_matmul,
    matmul,
    max_pool_nchw,
    min_nm,
    parallel_matmul,
    softmax,
    winograd_nhwc,
    zero_rank_reduce,
)

THREAD = int(Annotation.THREAD_X)


def sketches(dag: ComputeDAG) -> tuple[State, ...]:
    """The sketches of a graph for a usual GPU."""
    return derive_sketches(dag, SketchContext(GPU, SearchOptions()))


def attached(state: State) -> set[int]:
    """Numbers of the stages that are computed inside others."""
    return {number for number, stage in enumerate(state.stages) if isinstance(stage.location, Attached)}


def inlined(state: State) -> set[int]:
    """Numbers of the stages without loops."""
    return {number for number, stage in enumerate(state.stages) if isinstance(stage.location, Inlined)}


def shared(state: State) -> set[int]:
    """Numbers of the shared caches."""
    return {number for number, stage in enumerate(state.stages) if stage.op.name.endswith(".shared")}


def across_threads(state: State) -> set[int]:
    """Numbers of the stages whose own reduction is spread over threads."""
    return {
        number
        for number, stage in enumerate(state.stages)
        if any(one.kind == 1 and one.annotation is Annotation.THREAD_X for one in stage.iters)
    }


def test_matmul_has_the_published_derivation() -> None:
    (state,) = sketches(matmul(512, 512, 512))
    unknown = (None, None, None, None)
    assert state.steps == (
        CacheWrite(2, "local"),
        Split(2, 0, 512, unknown),
        Split(2, 5, 512, unknown),
        Split(2, 10, 512, (None, None)),
        Reorder(2, (0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9)),
        FollowSplit(3, 0, 1, 3),
        FollowSplit(3, 4, 2, 3),
        Reorder(3, (0, 4, 1, 5, 2, 6, 3, 7)),
        ComputeAt(2, 3, 5),
        CacheRead(1, "shared", (2,)),
        ComputeAt(2, 3, 6),
        CacheRead(0, "shared", (3,)),
        ComputeAt(1, 4, 6),
    )
    assert len(state.stages) == 6
    assert state.stages[4].iters[6].name == "k.0"
    assert (attached(state), shared(state)) == ({1, 3, 4}, {1, 3})
    assert has_cache_write(state, 4)
    assert state.stages[4].is_tiled
    assert state.stages[5].is_tiled


def test_few_points_may_be_reduced_across_threads() -> None:
    spread, tiled = sketches(matmul(8, 8, 1024))
    assert spread.steps == (Split(2, 2, 1024, (32,)), Annotate(2, 3, THREAD))
    assert has_cross_thread_reduction(spread, 2)
    assert (attached(tiled), shared(tiled)) == ({1, 3, 4}, {1, 3})


def test_the_first_of_two_matmuls_keeps_a_nest_of_its_own() -> None:
    (state,) = sketches(double_matmul(512))
    assert state.stages[5].op.name == "D"
    assert isinstance(state.stages[5].location, Root)
    assert state.stages[6].op.name == "D.shared"
    assert isinstance(state.stages[6].location, Attached)


def test_two_readers_have_a_shared_cache_each() -> None:
    (state,) = sketches(parallel_matmul(64))
    names = [stage.op.name for stage in state.stages]
    assert {"A.shared", "A.d.shared", "B.shared", "C.shared"} < set(names)
    assert shared(state) < attached(state)


def test_convolution_fetches_padded_data() -> None:
    (state,) = sketches(conv_bn_relu(1, 56, 512, 512, 3, 1, 1))
    assert inlined(state) == {1, 7, 9, 11}
    assert (attached(state), shared(state)) == ({2, 4, 5}, {2, 4})
    assert state.stages[5].is_tiled
    assert state.stages[12].is_tiled


def test_a_short_reduction_is_left_alone() -> None:
    assert [state.steps for state in sketches(max_pool_nchw(1, 56, 56, 512, 0))] == [()]


def test_a_long_reduction_runs_across_threads_or_not() -> None:
    spread, plain = sketches(min_nm(10, 1024))
    assert across_threads(spread) == {1}
    assert plain.steps == ()
    spread, plain = sketches(zero_rank_reduce(128))
    assert spread.steps == (Split(1, 0, 128, (32,)), Annotate(1, 1, THREAD))
    assert plain.steps == ()


@pytest.mark.parametrize("shape", [(2, 1024), (1, 12, 128, 128)])
def test_each_reduction_of_softmax_runs_across_threads_or_not(shape: tuple[int, ...]) -> None:
    found = sketches(softmax(*shape))
    assert [across_threads(state) for state in found] == [{1, 3}, {3}, {1}, set()]
    assert all(inlined(state) == {2} for state in found)
    last = len(shape) - 1
    assert found[1].stages[3].location == Attached(4, last - 1)
    assert found[0].stages[1].location == Attached(4, last - 1)
    leader = next(n for n, step in enumerate(found[0].steps) if isinstance(step, Split))
    followers = [step for step in found[0].steps if isinstance(step, FollowSplit)]
    assert followers == [FollowSplit(3, last, leader, 1), FollowSplit(1, last, leader, 1)]


def test_winograd_gathers_before_the_unrolled_transform() -> None:
    (state,) = sketches(winograd_nhwc(1, 28, 128, 128, 1))
    assert inlined(state) == {1, 3, 10}
    assert (attached(state), shared(state)) == ({2, 5, 7, 8}, {5, 7})
    assert state.stages[4].is_tiled
    assert state.stages[2].location == Attached(4, 3)
    assert state.stages[8].is_tiled
    assert has_cache_write(state, 8)
    assert isinstance(state.stages[9].location, Root)
    assert state.stages[11].is_tiled
    assert not state.stages[12].is_tiled
