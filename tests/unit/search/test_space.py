"""Spaces: every row is a program, every program of the structure is a row, normal form means what the state says."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import Annotation, Attached, Inlined, Root, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import ComputeInline, Split, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.legality import legal
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.register_tile import register_tile, settled_unroll
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from tests.support.attention import attention
from tests.support.workloads import (
    conv_bn_relu,
    conv_residual_nhwc,
    matmul,
    max_pool,
    min_nm,
    relu_only,
    softmax,
    task_of,
    transformed_convolution,
    unrolled_matmul,
    winograd_nhwc,
    zero_rank_reduce,
)

DAGS = {
    "matmul": matmul(24, 36, 40),
    "conv": conv_residual_nhwc(14, 32),
    "conv_bn_relu": conv_bn_relu(1, 12, 8, 16, 3, 2, 1),
    "pool": max_pool(9, 32),
    "relu": relu_only(1000),
    "few points": matmul(8, 8, 512),
    "softmax": softmax(3, 40),
    "min": min_nm(10, 96),
    "scalar sum": zero_rank_reduce(128),
    "winograd": winograd_nhwc(1, 9, 8, 16, 1),
    "attention": attention(48, 2, 40, 32),
    "transformed": transformed_convolution(10, (16, 32), 4, ((1, 1), (1, 1))),
    "unrolled": unrolled_matmul(12, 16, 8, ["i", "k"]),
}


def spaces_of(dag: ComputeDAG, cores: int = 4) -> tuple[SketchSpace, ...]:
    """The spaces of a graph."""
    return build_spaces(task_of("t", dag, HardwareParams(num_cores=cores)), SearchOptions())


@pytest.mark.parametrize("name", DAGS)
def test_rows_replay_and_read_back(name: str) -> None:
    dag = DAGS[name]
    rng = np.random.default_rng(11)
    for space in spaces_of(dag):
        for _, group in space.groups(space.sample(rng, 40)):
            for row in group.rows[:6]:
                steps = space.steps(row)
                state = replay(dag, steps)
                found = choices_of(state)
                for mine, theirs in (
                    (space.layout.parallel, found.parallel),
                    (space.layout.vector, found.vector),
                    (space.layout.unroll, found.unroll),
                ):
                    assert {stage: int(row[column]) for stage, column in mine if row[column]} == {
                        stage: value for stage, value in theirs.items() if value
                    }
                for split in space.layout.splits:
                    step = state.steps[split.step]
                    assert isinstance(step, Split)
                    assert step.lengths == tuple(row[split.lengths].tolist())
                again = space.row_of(load_steps(dump_steps(steps)))
                assert again is not None
                assert (again == row).all()


@pytest.mark.parametrize("name", DAGS)
def test_bounds_in_arrays_are_the_bounds_of_each_program(name: str) -> None:
    dag = DAGS[name]
    rng = np.random.default_rng(2)
    for space in spaces_of(dag):
        for _, group in space.groups(space.sample(rng, 24)):
            for index in range(min(3, len(group.rows))):
                alone = statement_nests(replay(dag, space.steps(group.rows[index])))
                for one, many in zip(alone, group.nests, strict=True):
                    mine = [int(np.broadcast_to(loop.extent, len(group.rows))[index]) for loop in many.loops]
                    assert [int(loop.extent) for loop in one.loops] == mine
                    shape = [int(np.broadcast_to(size, len(group.rows))[index]) for size in many.write.shape]
                    assert [int(size) for size in one.write.shape] == shape


def test_normal_form_is_stable() -> None:
    space = spaces_of(DAGS["conv"])[0]
    rows = space.sample(np.random.default_rng(4), 60)
    settled = rows.copy()
    for which, group in space.groups(rows):
        settled[which] = group.rows
    for which, group in space.groups(settled):
        assert (group.rows == settled[which]).all()


def test_padding_may_stand_at_its_own_nest_in_the_tiles_or_at_every_read() -> None:
    for space in spaces_of(DAGS["conv"]):
        assert 1 < len(space.placements) <= SearchOptions().max_location_variants
        assert space.placements[0] == ()
        kinds = {type(replay(space.dag, (*space.sketch, *moves)).stages[1].location) for moves in space.placements}
        assert kinds == {Root, Attached, Inlined}


def test_a_sample_of_few_placements_has_others_at_every_draw() -> None:
    space = spaces_of(DAGS["conv"])[0]
    drawn = [
        frozenset(space.sample(np.random.default_rng(seed), 60, 2)[:, space.layout.placement].tolist())
        for seed in range(20)
    ]
    assert {len(each) for each in drawn} == {2}
    assert frozenset().union(*drawn) == set(range(len(space.placements)))
    whole = space.sample(np.random.default_rng(0), 60)
    assert (space.sample(np.random.default_rng(0), 60, None) == whole).all()
    counts = np.bincount(whole[:, space.layout.placement])
    assert counts.max() - counts.min() <= 1


def test_an_inlined_padding_has_no_loops_and_its_steps_are_read_back() -> None:
    space = spaces_of(DAGS["conv"])[0]
    (inlined,) = (number for number, moves in enumerate(space.placements) if ComputeInline(1) in moves)
    rows = space.sample(np.random.default_rng(0), 200)
    rows = rows[rows[:, space.layout.placement] == inlined]
    ((_, group),) = space.groups(rows)
    assert all(nest.stage != 1 for nest in group.nests)
    assert not group.rows[:, [dict(space.layout.parallel)[1], dict(space.layout.vector)[1]]].any()
    for row in group.rows[:5]:
        steps = space.steps(row)
        assert ComputeInline(1) in steps
        found = space.row_of(steps)
        assert found is not None
        assert (found == row).all()


def test_expensive_stages_are_not_computed_at_every_read() -> None:
    x = te.placeholder((66, 16), name="x")
    r = te.reduce_axis(3, "r")
    cheap = te.compute((66, 16), lambda i, c: te.if_then_else(i < 64, x[i, c], 0.0), name="cheap")
    costly = te.compute((66, 16), lambda i, c: te.exp(x[i, c]), name="costly")
    for made, wanted in ((cheap, True), (costly, False)):
        y = te.compute((64, 16), lambda i, c, made=made: te.sum(made[i + r, c], [r]), name="y")
        moves = [step for space in spaces_of(ComputeDAG([x, y])) for steps in space.placements for step in steps]
        assert any(isinstance(step, ComputeInline) for step in moves) is wanted


def test_outer_loops_run_in_parallel_up_to_an_attachment() -> None:
    fused = spaces_of(DAGS["conv"])[0]
    depths = {fact.stage: fact.depth for fact in fused.facts[0]}
    assert depths[8] == 4, "four outer tile loops stand around the convolution"
    assert depths[3] == 0, "an attached stage has no parallel loop of its own"
    assert depths[1] == 4, "the padding has its own nest"


def test_sampled_parallel_depths_feed_every_core() -> None:
    space = spaces_of(DAGS["conv"])[0]
    rows = space.sample(np.random.default_rng(0), 300)
    column = dict(space.layout.parallel)[8]
    starts = [split.start for split in space.layout.splits[:4]]
    rows = rows[rows[:, space.layout.placement] == 0]
    outer = np.cumprod(rows[:, starts], axis=1)
    pieces = outer[np.arange(len(rows)), rows[:, column] - 1]
    assert (rows[:, column] > 0).all()
    assert (pieces >= np.minimum(outer[:, -1], 4)).all()
    assert len(set(rows[:, column].tolist())) > 1


def test_one_core_has_no_parallel_loops() -> None:
    for space in spaces_of(DAGS["conv"], cores=1):
        for _, group in space.groups(space.sample(np.random.default_rng(0), 20)):
            assert all((group.rows[:, column] == 0).all() for _, column in space.layout.parallel)


def test_a_single_loop_is_either_parallel_or_a_vector() -> None:
    (space,) = spaces_of(DAGS["relu"])
    row = np.ones((1, space.layout.width), dtype=np.int64)
    row[:, space.layout.placement] = 0
    _, group = next(iter(space.groups(row)))
    choices = choices_of(replay(space.dag, space.steps(group.rows[0])))
    assert (choices.vector, choices.parallel) == ({1: 1}, {})


def test_foreign_steps_are_not_mistaken_for_rows() -> None:
    spaces = spaces_of(DAGS["matmul"])
    row = spaces[0].sample(np.random.default_rng(0), 1)
    _, group = next(iter(spaces[0].groups(row)))
    steps = spaces[0].steps(group.rows[0])
    assert spaces[0].row_of(steps[:2]) is None
    assert spaces[0].row_of((*steps, steps[-1])) is None
    assert all(space.row_of(steps) is None for space in spaces[1:])
    uneven = (Split(2, 0, 24, (5, 1, 1)), *steps[1:])
    assert spaces[0].row_of(uneven) is None


def test_register_tiles_and_stack_buffers_are_limited() -> None:
    (tiled, *_) = spaces_of(matmul(512, 512, 512))
    hardware = HardwareParams(num_cores=4)
    row = np.zeros((2, tiled.layout.width), dtype=np.int64)
    row[:, :10] = [[64, 1, 1, 8, 16, 1, 1, 32, 512, 1], [8, 1, 1, 64, 8, 1, 1, 64, 128, 4]]
    row[:, dict(tiled.layout.vector)[2]] = 1
    _, group = next(iter(tiled.groups(row)))
    tile = register_tile(group.nests[0], group.choices.vector[2], hardware, 2)
    assert tile.tolist() == [16, 256]
    assert legal(group.nests, group.choices, hardware, SearchOptions(), 2).tolist() == [True, False]

    fused = spaces_of(matmul(512, 512, 512))[1]
    row = np.zeros((2, fused.layout.width), dtype=np.int64)
    row[:, :10] = [[2, 32, 1, 8, 1, 16, 1, 32, 512, 1], [64, 1, 1, 8, 1, 16, 1, 32, 512, 1]]
    row[:, dict(fused.layout.vector)[2]] = 1
    _, group = next(iter(fused.groups(row)))
    assert legal(group.nests, group.choices, hardware, SearchOptions(), 2).tolist() == [False, True]


def test_unroll_limits_that_change_nothing_are_one_program() -> None:
    (tiled, *_) = spaces_of(matmul(512, 512, 512))
    hardware, limits = HardwareParams(num_cores=4), np.array([0, 16, 64, 512], dtype=np.int64)
    row = np.zeros((4, tiled.layout.width), dtype=np.int64)
    row[:, dict(tiled.layout.vector)[2]] = 1
    for parts, expected in (((128, 4), [0, 0, 64, 64]), ((512, 1), [0, 0, 0, 0]), ((32, 16), [0, 0, 0, 512])):
        row[:, :10] = [64, 1, 1, 8, 16, 1, 1, 32, *parts]
        _, group = next(iter(tiled.groups(row)))
        settled = settled_unroll(group.nests[0], 1, limits, SearchOptions().unroll_limits, hardware)
        assert settled.tolist() == expected


def test_padding_is_never_computed_again_for_every_output_channel() -> None:
    for space in spaces_of(DAGS["conv"]):
        for moves in space.placements[1:]:
            state = replay(space.dag, (*space.sketch, *moves))
            place = state.stages[1].location
            if isinstance(place, Inlined):
                continue
            assert isinstance(place, Attached)
            assert state.stages[place.stage].iters[place.iter].name.split(".")[0] not in ("f", "n")


def test_a_wide_vector_loop_around_a_reduction_is_no_register_tile() -> None:
    (space,) = spaces_of(max_pool(9, 2048))
    rows = space.sample(np.random.default_rng(0), 8)
    for _, group in space.groups(rows):
        assert (group.rows[:, dict(space.layout.vector)[1]] == 1).all()
        assert legal(group.nests, group.choices, HardwareParams(num_cores=4), SearchOptions(), len(group.rows)).all()
        assert set(group.rows[:, dict(space.layout.unroll)[1]].tolist()) <= {0, 16}


def test_a_task_that_rewrites_no_layout_is_scored_without_free_inputs() -> None:
    free = SearchTask("t", matmul(32, 32, 32), Target.host(), HardwareParams(1))
    fixed = SearchTask("t", free.dag, Target.host(), HardwareParams(1), layout=LayoutRewriteOption.NO_REWRITE)
    assert [len(space.dag.layout_free) for space in build_spaces(free, SearchOptions())] == [1, 1, 1]
    assert [len(space.dag.layout_free) for space in build_spaces(fixed, SearchOptions())] == [0, 0, 0]
    assert fixed.workload_key == free.workload_key


def test_loops_that_an_operation_wants_unrolled_are_in_every_program() -> None:
    tiled, *cached = spaces_of(DAGS["unrolled"])
    state = replay(tiled.dag, tiled.steps(tiled.sample(np.random.default_rng(0), 1)[0]))
    marks = {one.name: one.annotation for one in state.stages[2].iters}
    assert {name for name, mark in marks.items() if mark is Annotation.UNROLL} == {"i.3", "k.1"}
    for space in cached:
        state = replay(space.dag, space.steps(space.sample(np.random.default_rng(0), 1)[0]))
        assert "i_c.3" in {one.name for one in state.stages[2].iters if one.annotation is Annotation.UNROLL}


def test_an_unrolled_loop_is_no_vector_loop() -> None:
    space = spaces_of(unrolled_matmul(12, 16, 8, ["j"]))[0]
    assert {fact.stage: fact.vector for fact in space.facts[0]} == {2: 8}
