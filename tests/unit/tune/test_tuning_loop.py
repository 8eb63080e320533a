"""The loop of every run: what its rounds are, and when it ends."""

import itertools
from collections.abc import Sequence

import pytest

from retune.compiler import te
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.task_scheduler import Objective
from retune.compiler.tune.tuning_loop import EMPTY_ROUND, Budget, Round, TaskProgress, TuningLoop, first_state


def matmul(size: int) -> SearchTask:
    a, b = te.placeholder((size, size)), te.placeholder((size, size))
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return SearchTask(f"matmul{size}", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


def loop_of(*sizes: int, objective: Objective | str = "latency") -> TuningLoop[TaskProgress]:
    tasks = [TaskProgress(task, first_state(task, 1.0)) for task in map(matmul, sizes)]
    if isinstance(objective, str):
        return TuningLoop(tasks, SchedulerOptions("round-robin", objective=objective))
    return TuningLoop(tasks, SchedulerOptions("round-robin"), objective)


def programs(loop: TuningLoop[TaskProgress], index: int, seconds: Sequence[float]) -> list[TaskProgram]:
    key, number = loop.tasks[index].task.workload_key, loop.trials
    return [TaskProgram(key, f"program {number + place}", each) for place, each in enumerate(seconds)]


def test_rounds_fill_the_budget_and_say_how_much_of_it_is_gone() -> None:
    loop, seen = loop_of(8, 16), []
    for round_ in loop.rounds_until(Budget(10, None, rounds_each=0), 4):
        seen.append(round_)
        loop.finish_round(round_.index, programs(loop, round_.index, [1e-3] * round_.count))
    assert seen == [Round(0, 4, 0.0), Round(1, 4, 0.4), Round(0, 2, 0.8)]
    assert (loop.trials, loop.rounds, loop.ended) == (10, 3, "")


def test_a_clock_ends_a_run_that_is_limited_in_time() -> None:
    loop, clock = loop_of(8), itertools.count(0.0, 2.0)
    for round_ in loop.rounds_until(Budget(None, 10.0), 4, clock=lambda: next(clock)):
        loop.finish_round(round_.index, programs(loop, round_.index, [1e-3]))
    assert loop.trials == 3  # the clock is read twice a round


def test_patience_and_empty_rounds_end_a_run_and_say_so() -> None:
    loop = loop_of(8)
    for round_ in loop.rounds_until(Budget(100, None), 4, patience=8):
        loop.finish_round(round_.index, programs(loop, round_.index, [1e-3] * round_.count))
    assert (loop.trials, loop.ended) == (12, "stopped early: 8 trials brought nothing")
    loop = loop_of(8, 16)
    for round_ in loop.rounds_until(Budget(100, None), 4):
        loop.finish_round(round_.index, (), EMPTY_ROUND)
    assert (loop.trials, loop.ended) == (0, "no task has anything left to try")
    assert [task.stop_reason for task in loop.tasks] == [EMPTY_ROUND] * 2


def test_a_run_that_begins_again_knows_what_the_last_one_found() -> None:
    loop = loop_of(8)
    loop.finish_round(0, programs(loop, 0, [2e-3, 1e-3]), "enough")
    loop.restart()
    assert (loop.trials, loop.live, loop.is_stalled(1)) == (0, 1, False)
    assert loop.states[0].best_seconds == loop.tasks[0].fastest[0].seconds == 1e-3


def test_tasks_advise_those_like_them_and_not_themselves() -> None:
    loop = loop_of(8, 16)
    loop.finish_round(0, programs(loop, 0, [3e-3, 1e-3, float("inf")]))
    assert loop.advice(0) == []
    assert loop.advice(1) == ["program 1", "program 0"]


@pytest.mark.parametrize(("objective", "score"), [("latency", 3e-3), ("geomean", 2e-6**0.5), (max, 2e-3)])
def test_the_score_is_the_objective_once_all_times_are_known(objective: Objective | str, score: float) -> None:
    loop = loop_of(8, 16, objective=objective)
    loop.finish_round(0, programs(loop, 0, [1e-3]))
    assert loop.score == float("inf")
    loop.finish_round(1, programs(loop, 1, [2e-3]))
    assert loop.score == pytest.approx(score)
