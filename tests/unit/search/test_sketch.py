"""Sketches: how many, in which order, with exactly which steps."""

import pytest

from compiler.schedule.dag import ComputeDAG
from compiler.schedule.state import Attached, Inlined, Root, State
from compiler.schedule.steps import CacheWrite, ComputeAt, FollowSplit, Reorder, Split
from compiler.search.options import SearchOptions
from compiler.search.sketch import derive_sketches
from compiler.search.sketch_rules import SketchContext
from tests.unit.search.workloads import CORES, conv_bn_relu, conv_residual_nhwc, double_matmul, matmul, max_pool

CONTEXT = SketchContext(CORES, SearchOptions())


def sketches(dag: ComputeDAG) -> tuple[State, ...]:
    """The sketches of a graph on four cores."""
    return derive_sketches(dag, CONTEXT)


def test_matmul_has_the_three_published_derivations() -> None:
    tiled, level1, level2 = sketches(matmul(512, 512, 512))
    order = (0, 4, 1, 5, 8, 2, 6, 9, 3, 7)
    unknown = (None, None, None)
    tiling = (Split(2, 0, 512, unknown), Split(2, 4, 512, unknown), Split(2, 8, 512, (None,)), Reorder(2, order))
    assert tiled.steps == tiling
    assert level1.steps == (
        CacheWrite(2, "local"),
        *tiling,
        FollowSplit(3, 0, 1, 1),
        FollowSplit(3, 2, 2, 1),
        Reorder(3, (0, 2, 1, 3)),
        ComputeAt(2, 3, 1),
    )
    assert level2.steps == (
        CacheWrite(2, "local"),
        *tiling,
        FollowSplit(3, 0, 1, 2),
        FollowSplit(3, 3, 2, 2),
        Reorder(3, (0, 3, 1, 4, 2, 5)),
        ComputeAt(2, 3, 3),
    )


def test_two_matmuls_multiply_their_sketches() -> None:
    found = sketches(double_matmul(512))
    assert len(found) == 9
    assert found[8].stages[5].is_tiled


def test_convolution_fuses_with_the_end_of_its_elementwise_chain() -> None:
    found = sketches(conv_bn_relu(1, 56, 512, 512, 3, 1, 1))
    assert len(found) == 3
    for state in found:
        assert not state.stages[1].is_tiled
        assert isinstance(state.stages[1].location, Root)
        assert state.stages[3].is_tiled
        assert all(isinstance(state.stages[stage].location, Inlined) for stage in (5, 7, 9))
    for state in found[:2]:
        assert isinstance(state.stages[3].location, Attached)
        assert state.stages[10].is_tiled
    assert isinstance(found[2].stages[3].location, Root)
    assert not found[2].stages[10].is_tiled


def test_a_residual_addition_does_not_stop_the_fusion() -> None:
    found = sketches(conv_residual_nhwc(14, 32))
    assert [isinstance(state.stages[3].location, Attached) for state in found] == [True, True, False]
    assert sum(isinstance(stage.location, Inlined) for stage in found[0].stages) == 2


def test_a_reduction_without_reuse_is_left_alone() -> None:
    found = sketches(max_pool(56, 512))
    assert [state.steps for state in found] == [()]


@pytest.mark.parametrize("structure", ["SSRS", "SRS", "SSRSRS"])
def test_the_structure_is_an_option(structure: str) -> None:
    context = SketchContext(CORES, SearchOptions(tiling=structure))
    state = derive_sketches(matmul(64, 64, 64), context)[0]
    expected = 2 * structure.count("S") + structure.count("R")
    assert len(state.stages[2].iters) == expected
