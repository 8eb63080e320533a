"""Neighbors: all of them, each once, one step away; and what a policy does with them when the budget ends."""

import numpy as np

from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.search import mutation
from retune.compiler.search.genome import Layout
from retune.compiler.search.mutation import neighbors
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.protocol import program_id
from tests.support.workloads import matmul, task_of

LAYOUT = Layout.of(((0, 12, 3), (1, 7, 2)), (4,), (4,))
ROW = np.array([3, 2, 2, 7, 1, 1, 2, 1, 16], dtype=np.int64)
TASK = task_of("matmul", matmul(64, 64, 64))
OPTIONS = SearchOptions(population=96, generations=2)


def test_neighbors_are_all_that_one_step_reaches() -> None:
    found = neighbors(ROW, LAYOUT, 3, 2, (0, 16, 64), 4)
    parts = {tuple(row[:3]) for row in found.tolist()} - {(3, 2, 2)}
    assert parts == {(1, 6, 2), (6, 1, 2), (6, 2, 1), (3, 4, 1), (3, 1, 4)}
    assert {tuple(row[3:5]) for row in found.tolist()} == {(7, 1)}, "7 is more than the innermost part may be"
    groups = [np.any(found[:, group] != ROW[group], axis=1) for group in LAYOUT.groups()]
    assert (np.sum(groups, axis=0) == 1).all()
    assert len(np.unique(found, axis=0)) == len(found) == 5 + 2 + 2 + 1 + 2


def test_the_end_of_a_budget_goes_to_neighbors_of_the_best() -> None:
    policy = SketchPolicy(TASK, RandomModel(0), OPTIONS)
    first = policy.ask(16, 0)
    times = {one.steps: 1e-3 + 1e-6 * place for place, one in enumerate(first)}
    policy.tell([TaskProgram("", text, seconds) for text, seconds in times.items()])
    best = {program_id(text) for text in sorted(times, key=lambda text: times[text])[: OPTIONS.finish_parents]}
    assert all(one.mutation != mutation.NEIGHBOR for one in policy.ask(16, 1, 0.5))
    near = [one for one in policy.ask(16, 1, 0.9) if one.mutation == mutation.NEIGHBOR]
    assert len(near) >= 8
    assert {program.parent_id for program in near} <= best
    assert not {program.steps for program in near} & times.keys()
    off = SketchPolicy(TASK, RandomModel(0), SearchOptions(population=96, generations=2, finish_ratio=0.0))
    off.tell([TaskProgram("", text, seconds) for text, seconds in times.items()])
    assert all(one.mutation != mutation.NEIGHBOR for one in off.ask(16, 1, 1.0))


def test_without_any_result_the_end_is_as_the_beginning() -> None:
    assert SketchPolicy(TASK, RandomModel(0), OPTIONS).ask(8, 0, 1.0) == SketchPolicy(
        TASK, RandomModel(0), OPTIONS
    ).ask(8, 0)
