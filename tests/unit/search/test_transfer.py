"""Programs of other sizes: nearest divisors, relatives by their keys, and what a policy does with them."""

import math

import pytest

from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.schedule.steps import Split, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.transfer import distance, fit, k_nearest, refit
from tests.support.workloads import conv_residual_nhwc, matmul, task_of

OPTIONS = SearchOptions(population=96, generations=2, max_location_variants=3)
LARGE = task_of("large", matmul(128, 192, 64))
SMALL = task_of("small", matmul(96, 64, 80))


@pytest.mark.parametrize(
    ("extent", "lengths", "fitted"),
    [
        (96, (2, 4, 8), (3, 4, 8)),
        (192, (2, 4, 8), (2, 4, 8)),
        (49, (1, 2, 8), (1, 1, 7)),
        (7, (4, 4, 4), (1, 1, 7)),
        (13, (1, 1, 2), (1, 1, 1)),
        (128, (1, 1, 128), (1, 1, 64)),
    ],
)
def test_inner_lengths_become_the_nearest_divisors(
    extent: int, lengths: tuple[int, ...], fitted: tuple[int, ...]
) -> None:
    assert fit(extent, lengths, 64) == fitted
    assert extent % math.prod(fit(extent, lengths, 64)) == 0


def test_distance_is_in_doublings_and_infinite_between_other_ranks() -> None:
    assert distance('["a", [8, 16]]', '["b", [8, 16]]') == 0.0
    assert distance('["a", [8, 16]]', '["b", [4, 64]]') == 3.0
    assert distance('["a", [8, 16]]', '["b", [8, 16, 1]]') == math.inf
    assert distance('["a", [8, 16]]', '["b", [8, 16], [1]]') == math.inf
    assert distance('["matmul", 8, 16]', '["matmul", 8, 16]') == math.inf


def test_nearest_are_of_other_tasks_the_most_alike_first_and_each_in_turn() -> None:
    near, far, other = '["b", [8, 8]]', '["c", [64, 64]]', '["d", [8]]'
    known = [
        TaskProgram(far, "far", 1.0),
        TaskProgram(near, "near, slower", 3.0),
        TaskProgram(near, "near", 2.0),
        TaskProgram(other, "other", 0.1),
        TaskProgram('["a", [8, 8]]', "its own", 0.1),
    ]
    found = [one.steps for one in k_nearest('["a", [8, 8]]', known, 3)]
    assert found == ["near", "far", "near, slower"]
    assert [one.steps for one in k_nearest('["a", [8, 8]]', known, 1)] == ["near"]


def programs_of(task: SearchTask, count: int) -> list[str]:
    return [program.steps for program in SketchPolicy(task, RandomModel(0), OPTIONS).ask(count, 0)]


def test_programs_of_another_size_become_programs_of_this_one() -> None:
    policy = SketchPolicy(SMALL, RandomModel(0), OPTIONS)
    given = SketchPolicy(LARGE, RandomModel(0), OPTIONS).ask(16, 0)
    for one in given:
        rows = [(space, refit(space, load_steps(one.steps))) for space in policy.spaces]
        space, row = next((space, row) for space, row in rows if row is not None)
        for mine, theirs in zip(space.steps(row), load_steps(one.steps), strict=False):
            assert type(mine) is type(theirs)
            if isinstance(mine, Split):
                assert mine.extent % math.prod(length for length in mine.lengths if length) == 0
        for split in space.layout.splits:
            assert row[split.columns].prod() == split.extent


def test_a_program_of_its_own_size_stays_as_it_is() -> None:
    policy = SketchPolicy(SMALL, RandomModel(0), OPTIONS)
    for one in policy.ask(8, 0):
        rows = [(space, refit(space, load_steps(one.steps))) for space in policy.spaces]
        space, row = next((space, row) for space, row in rows if row is not None)
        assert space.steps(row) == load_steps(one.steps)


def test_advice_is_asked_for_once_and_only_where_it_is_wanted() -> None:
    advice = programs_of(LARGE, 8)
    policy = SketchPolicy(SMALL, RandomModel(0), OPTIONS)
    policy.warm_start(advice)
    asked = policy.ask(20, 0)
    moved = [one for one in asked if one.mutation == mutation.TRANSFER]
    assert len(moved) >= 2
    assert all(not program.parent_id for program in moved)
    policy.tell([TaskProgram("", program.steps, 1e-3) for program in asked])
    policy.warm_start(advice)
    assert not {program.steps for program in policy.ask(20, 1)} & {program.steps for program in asked}
    without = SketchPolicy(SMALL, RandomModel(0), SearchOptions(population=96, generations=2, transfer_ratio=0.0))
    without.warm_start(advice)
    assert all(one.mutation != mutation.TRANSFER for one in without.ask(20, 0))


def test_advice_of_another_structure_changes_nothing() -> None:
    conv = programs_of(task_of("conv", conv_residual_nhwc(14, 32)), 4)
    plain, advised = (SketchPolicy(SMALL, RandomModel(0), OPTIONS) for _ in range(2))
    advised.warm_start([*conv, dump_steps(())])
    assert advised.ask(16, 0) == plain.ask(16, 0)
