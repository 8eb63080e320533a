"""Static filters: what a tile needs of the registers, and how much code it is, by hand."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.statements import StageNest, statement_nests
from retune.compiler.schedule.steps import Annotate, Reorder, Split
from retune.compiler.search.legality import legal, promising
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.register_tile import register_tile, straight_line, tile_registers
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import matmul, task_of, winograd_nhwc

HARDWARE = HardwareParams(num_cores=1)
OPTIONS = SearchOptions()


def tiled(rows: int, columns: int, dtype: str = "float32") -> State:
    """A product of which the innermost reduction loop has `rows` × `columns` results inside."""
    a, b = te.placeholder((rows * 2, 64), dtype, "a"), te.placeholder((64, columns * 2), dtype, "b")
    k = te.reduce_axis(64, "k")
    c = te.compute((rows * 2, columns * 2), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    dag = ComputeDAG([a, b, c])
    stage = next(number for number, op in enumerate(dag.ops) if op.name == "c")
    split = (Split(stage, 0, rows * 2, (rows,)), Split(stage, 2, columns * 2, (columns,)))
    return replay(dag, (*split, Reorder(stage, (0, 2, 4, 1, 3)), Annotate(stage, 4, 2)))


def nest_of(state: State) -> StageNest:
    (nest,) = statement_nests(state)
    return nest


@pytest.mark.parametrize(
    ("rows", "columns", "accumulators", "registers"),
    [(14, 32, 28, 31), (8, 32, 16, 19), (4, 64, 16, 21), (6, 64, 24, 29), (7, 64, 28, 33), (4, 24, 8, 11)],
)
def test_a_tile_needs_its_accumulators_a_row_of_operands_and_one_more(
    rows: int, columns: int, accumulators: int, registers: int
) -> None:
    nest = nest_of(tiled(rows, columns))
    assert register_tile(nest, 1, HARDWARE, 1).tolist() == [accumulators]
    assert tile_registers(nest, 1, HARDWARE, 1).tolist() == [registers]


def test_short_floats_are_joined_in_float32() -> None:
    assert register_tile(nest_of(tiled(4, 64, "bfloat16")), 1, HARDWARE, 1).tolist() == [16]


def test_spilling_tiles_are_not_sampled_and_extreme_ones_are_illegal() -> None:
    for rows, columns, good, possible in ((14, 32, True, True), (7, 64, False, True), (20, 64, False, False)):
        state = tiled(rows, columns)
        nests, choices = statement_nests(state), choices_of(state)
        assert promising(nests, choices, HARDWARE, OPTIONS, 1).tolist() == [good]
        assert legal(nests, choices, HARDWARE, OPTIONS, 1).tolist() == [possible]


def test_straight_line_code_is_the_tile_times_what_is_unrolled() -> None:
    nest = nest_of(tiled(4, 32))
    assert straight_line(nest, 1, np.array([0, 64, 511, 512]), HARDWARE, 4).tolist() == [8, 8, 8, 512]
    state = tiled(4, 32).apply(Annotate(nest.stage, 2, 1))
    written = straight_line(nest_of(state), 1, 0, HARDWARE, 1).tolist()
    assert written == [8 * 64]
    choices = choices_of(state)
    short = SearchOptions(max_straight_line=511)
    assert not promising(statement_nests(state), choices, HARDWARE, short, 1).any()


def test_filters_can_be_switched_off_and_never_leave_nothing() -> None:
    task = task_of("matmul", matmul(112, 128, 64), HARDWARE)
    spilling = 0
    for options in (OPTIONS, SearchOptions(static_filters=False)):
        for space in build_spaces(task, options):
            for _, group in space.groups(space.sample(np.random.default_rng(0), 300)):
                good = space.legal(group)
                assert good.any()
                fits = promising(group.nests, group.choices, HARDWARE, OPTIONS, len(good))
                if options.static_filters:
                    assert fits[good].all()
                else:
                    spilling += int((good & ~fits).sum())
    assert spilling > 0
    strict = build_spaces(task, SearchOptions(max_straight_line=1))[0]
    (_, group), *_ = strict.groups(strict.sample(np.random.default_rng(0), 200))
    kept = strict.legal(group)
    assert kept.any()
    assert (
        straight_line(group.nests[0], group.choices.vector[group.nests[0].stage], 0, HARDWARE, 200)[kept] == 1
    ).all()


def test_what_the_definition_unrolls_is_not_filtered() -> None:
    task = task_of("winograd", winograd_nhwc(1, 12, 16, 16, 1), HARDWARE)
    for space in build_spaces(task, SearchOptions(max_straight_line=1)):
        for _, group in space.groups(space.sample(np.random.default_rng(0), 100)):
            assert space.legal(group).any()


@pytest.mark.parametrize(("strip", "good"), [(4, True), (12, True), (6, True), (8, False), (24, False)])
def test_vectors_that_cross_groups_of_a_convolution_are_not_sampled(strip: int, good: bool) -> None:
    a, b, k = te.placeholder((7, 16), name="a"), te.placeholder((4, 48), name="b"), te.reduce_axis(4, "k")
    dag = ComputeDAG([a, b, te.compute((7, 48), lambda i, j: te.sum(a[i, j // 12 * 4 + k] * b[k, j], k), "c")])
    steps = (Split(2, 1, 48, (strip,)), Reorder(2, (1, 3, 0, 2)), Annotate(2, 3, 2))
    state = replay(dag, steps)
    assert promising(statement_nests(state), choices_of(state), HARDWARE, OPTIONS, 1).tolist() == [good]


@pytest.mark.parametrize("divisor", [1, 3, 7])
def test_vectors_along_another_axis_cross_no_groups(divisor: int) -> None:
    a, b, k = te.placeholder((16, 4), name="a"), te.placeholder((4, 7), name="b"), te.reduce_axis(4, "k")
    dag = ComputeDAG([a, b, te.compute((16, 7), lambda i, j: te.sum(a[i, k] * b[k, j // divisor], k), "c")])
    state = replay(dag, (Reorder(2, (1, 2, 0)), Annotate(2, 2, 2)))
    assert promising(statement_nests(state), choices_of(state), HARDWARE, OPTIONS, 1).tolist() == [True]


def test_a_sum_of_everything_has_no_groups() -> None:
    a, k = te.placeholder((64,), name="a"), te.reduce_axis(64, "k")
    state = State.initial(ComputeDAG([a, te.compute((), lambda: te.sum(a[k], k), "total")]))
    assert promising(statement_nests(state), choices_of(state), HARDWARE, OPTIONS, 1).tolist() == [True]
