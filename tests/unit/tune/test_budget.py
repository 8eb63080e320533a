"""Budgets: when a run ends, and how large its rounds are."""

import pytest

from retune.compiler.tune.tuning_loop import MIN_ROUND, Budget


def test_trials_end_a_run() -> None:
    budget = Budget(trials=100, seconds=None)
    assert not budget.is_spent(99, elapsed=1e9)
    assert budget.is_spent(100, elapsed=0.0)


def test_seconds_end_a_run_and_a_round_may_overrun_by_half_of_itself() -> None:
    budget = Budget(trials=None, seconds=60.0)
    assert not budget.is_spent(10**9, elapsed=56.0, next_round=7.0)
    assert budget.is_spent(0, elapsed=57.0, next_round=7.0)
    assert budget.is_spent(0, elapsed=60.0)


def test_whichever_limit_comes_first_ends_a_run() -> None:
    budget = Budget(trials=10, seconds=60.0)
    assert budget.is_spent(10, elapsed=0.0)
    assert budget.is_spent(0, elapsed=60.0)


@pytest.mark.parametrize(("trials", "tasks"), [(200, 20), (1000, 20), (64, 1), (5, 20), (1, 1)])
def test_rounds_add_up_to_exactly_the_trials(trials: int, tasks: int) -> None:
    budget, done, rounds = Budget(trials, None), 0, 0
    while not budget.is_spent(done, elapsed=0.0):
        done += budget.round_size(64, tasks, done)
        rounds += 1
    assert done == trials
    assert rounds >= min(tasks, -(-trials // (2 * MIN_ROUND)))


def test_a_small_budget_makes_small_rounds_so_that_every_task_gets_two() -> None:
    assert Budget(200, None).round_size(64, 20, 0) == 8
    assert Budget(20_000, None).round_size(64, 20, 0) == 64


@pytest.mark.parametrize(("trials", "tasks"), [(2000, 20), (12_000, 58)])
def test_the_first_rounds_of_all_tasks_take_a_fifth_of_the_budget(trials: int, tasks: int) -> None:
    budget = Budget(trials, None)
    first = budget.round_size(64, tasks, 0, is_first=True)
    assert 0.18 * trials < first * tasks <= 0.2 * trials
    assert budget.round_size(64, tasks, first * tasks) > first


def test_rounds_are_as_large_as_the_pace_of_the_trials_allows() -> None:
    budget = Budget(None, 60.0)
    assert budget.round_size(64, 20, 0) == 9
    assert budget.round_size(64, 20, 200, elapsed=20.0) == 24
    assert budget.round_size(64, 20, 20, elapsed=20.0) == MIN_ROUND


def test_a_short_time_makes_small_rounds_too() -> None:
    short, long = Budget(None, 60.0), Budget(None, 6000.0)
    assert short.round_size(64, 20, 0) < long.round_size(64, 20, 0) == 64


def test_time_left_is_the_nearer_of_both_limits() -> None:
    assert Budget(100, None).seconds_left(50, 10.0) == pytest.approx(10.0)
    assert Budget(None, 60.0).seconds_left(50, 10.0) == pytest.approx(50.0)
    assert Budget(100, 15.0).seconds_left(50, 10.0) == pytest.approx(5.0)
    assert Budget(100, None).seconds_left(0, 0.0) is None


def test_the_share_that_is_gone_is_that_of_the_tighter_limit() -> None:
    assert Budget(None, None).spent(100, 100.0) == 0.0
    assert Budget(200, None).spent(50, 1e9) == 0.25
    assert Budget(None, 60.0).spent(10, 45.0) == 0.75
    assert Budget(200, 60.0).spent(150, 15.0) == 0.75
    assert Budget(10, None).spent(20, 0.0) == 1.0


def test_what_the_command_does_besides_leaves_half_of_the_time_at_least() -> None:
    assert Budget(100, 60.0).without(20.0) == Budget(100, 40.0)
    assert Budget(None, 60.0).without(45.0) == Budget(None, 30.0)
    assert Budget(100, None).without(20.0) == Budget(100, None)
