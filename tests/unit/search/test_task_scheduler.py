"""Which task gets the next round: the atomic_write formula, its warm-up, its ties and its end."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.search.task_scheduler import (
    TaskState,
    choose_task,
    geometric_mean,
    gradients,
    has_lost,
    is_stalled,
    leaves_group,
    network_latency,
)

GRADIENT = SchedulerOptions()


def test_preset_costs_send_every_round_but_the_warm_up_to_the_costly_task() -> None:
    costly = TaskState(best_seconds=100.0, weight=1e5, flops=16.0)
    states = [costly, TaskState(best_seconds=1e-8, weight=0.0, flops=128.0)]
    rounds = [0, 0]
    for _ in range(5):
        index = choose_task(states, GRADIENT)
        assert index is not None
        rounds[index] += 1
        states[index] = states[index].after_round(inf)
    assert rounds == [4, 1]


def test_gradient_is_the_published_formula() -> None:
    state = TaskState(rounds=5, best_seconds=2.0, history=(9.0, 8.0, 5.0, 3.0, 2.0), weight=3.0, flops=1.0)
    backward = (2.0 - 8.0) / 3
    forward = (2.0 - 2.0 / 5) - 2.0
    assert gradients([state], GRADIENT)[0] == pytest.approx(3.0 * (0.2 * backward + 0.8 * forward))


def test_no_backward_part_while_the_history_is_short() -> None:
    state = TaskState(rounds=3, best_seconds=2.0, history=(9.0, 8.0, 2.0))
    assert gradients([state], GRADIENT)[0] == pytest.approx(0.8 * -2.0 / 3)


def test_warm_up_starts_with_the_heaviest_task() -> None:
    states = [TaskState(flops=10.0, weight=1.0), TaskState(flops=10.0, weight=5.0), TaskState(flops=1.0, weight=1.0)]
    order = []
    for _ in range(3):
        index = choose_task(states, GRADIENT)
        assert index is not None
        order.append(index)
        states[index] = states[index].after_round(1.0)
    assert order == [1, 0, 2]


def test_round_robin_cycles_over_live_tasks() -> None:
    options = SchedulerOptions(strategy="round-robin")
    states = [TaskState(flops=1.0), TaskState(flops=1.0, exhausted=True), TaskState(flops=1.0)]
    order = []
    for _ in range(4):
        index = choose_task(states, options)
        assert index is not None
        order.append(index)
        states[index] = states[index].after_round(1.0)
    assert order == [0, 2, 0, 2]


def test_exhausted_tasks_are_never_chosen() -> None:
    states = [TaskState(rounds=1, best_seconds=1.0, exhausted=True), TaskState(rounds=9, best_seconds=1e-9)]
    assert choose_task(states, GRADIENT) == 1
    assert choose_task(states[:1], GRADIENT) is None


def test_a_task_without_a_valid_program_is_tried_again_but_not_for_ever() -> None:
    measured = TaskState(rounds=2, best_seconds=1.0, history=(1.0, 1.0), flops=100.0)
    failing = TaskState(rounds=1, flops=100.0)
    assert choose_task([measured, failing], GRADIENT) == 1
    assert choose_task([measured, TaskState(rounds=5, flops=100.0)], GRADIENT) == 0


def test_ties_go_to_the_earlier_task() -> None:
    states = [TaskState(rounds=2, best_seconds=1.0, weight=0.0), TaskState(rounds=2, best_seconds=1.0, weight=0.0)]
    assert choose_task(states, GRADIENT) == 0


def test_exploration_is_seeded() -> None:
    options = SchedulerOptions(explore=1.0)
    states = [TaskState(rounds=1, best_seconds=float(index)) for index in range(5)]
    first = [choose_task(states, options, np.random.default_rng(3)) for _ in range(3)]
    assert len(set(first)) == 1


def test_latency_and_stall() -> None:
    assert network_latency([TaskState(best_seconds=2.0, weight=3.0), TaskState(weight=0.0)]) == 6.0
    assert network_latency([TaskState()]) == inf
    progress = [(64, inf), (128, 2.0), (192, 1.0), (256, 1.0), (320, 1.0)]
    assert is_stalled(progress, 128)
    assert not is_stalled(progress, 129)
    assert not is_stalled(progress, 0)
    assert not is_stalled([(640, inf)], 64)


@pytest.mark.parametrize(
    "bad", [{"strategy": "best"}, {"alpha": 2.0}, {"beta": 0.5}, {"backward_window": 0}, {"explore": -1.0}]
)
def test_invalid_task_scheduler_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        SchedulerOptions(**bad)  # type: ignore[arg-type]


def test_a_fast_relative_shows_what_is_possible() -> None:
    slow = TaskState(rounds=4, best_seconds=10.0, history=(10.0,) * 4, flops=100.0, group="conv")
    fast = TaskState(rounds=9, best_seconds=1.0, history=(1.0,) * 9, flops=100.0, group="conv")
    alone, related = gradients([slow], GRADIENT)[0], gradients([slow, fast], GRADIENT)[0]
    assert alone == pytest.approx(0.2 * 0.0 + 0.8 * (7.5 - 10.0))
    assert related == pytest.approx(0.8 * (2.0 * 100.0 / 100.0 - 10.0))
    stranger = gradients([slow, TaskState(rounds=9, best_seconds=1.0, flops=100.0, group="dense")], GRADIENT)[0]
    assert stranger == pytest.approx(alone)


def test_no_group_is_no_relation() -> None:
    one = TaskState(rounds=4, best_seconds=10.0, history=(10.0,) * 4, flops=100.0)
    other = TaskState(rounds=9, best_seconds=1.0, flops=100.0)
    assert gradients([one, other], GRADIENT)[0] == pytest.approx(gradients([one], GRADIENT)[0])


def test_a_task_that_stays_slow_leaves_its_group() -> None:
    fast = TaskState(rounds=2, best_seconds=1.0, flops=100.0, group="conv")

    def slow(rounds: int, seconds: float = 10.0, group: str = "conv") -> TaskState:
        return TaskState(rounds=rounds, best_seconds=seconds, flops=100.0, group=group)

    assert leaves_group([slow(8), fast], 0, GRADIENT)
    assert not leaves_group([slow(7), fast], 0, GRADIENT)
    assert not leaves_group([slow(8, seconds=1.5), fast], 0, GRADIENT)
    assert not leaves_group([slow(8)], 0, GRADIENT)
    assert not leaves_group([slow(8, group=""), fast], 0, GRADIENT)


def test_an_objective_decides_by_its_derivative() -> None:
    states = [
        TaskState(rounds=2, best_seconds=1.0, history=(1.0, 1.0), weight=100.0),
        TaskState(rounds=2, best_seconds=2.0, history=(2.0, 2.0), weight=1.0),
    ]
    assert choose_task(states, GRADIENT) == 0
    assert choose_task(states, GRADIENT, objective=max) == 1
    assert choose_task(states, GRADIENT, objective=lambda costs: costs[0] + 1e-3 * costs[1]) == 0
    linear = gradients(states, GRADIENT, lambda costs: 100.0 * costs[0] + costs[1])
    assert linear == pytest.approx(gradients(states, GRADIENT))


def test_an_objective_of_tiny_times_has_a_derivative() -> None:
    states = [TaskState(rounds=2, best_seconds=1e-8, history=(1e-8, 1e-8))]
    assert gradients(states, GRADIENT, lambda costs: costs[0] ** 2)[0] == pytest.approx(2e-8 * 0.8 * -0.5e-8, rel=1e-2)


def test_rounds_without_gain() -> None:
    state = TaskState()
    gains = []
    for seconds in (3.0, 3.0, 2.0, 5.0, 2.0):
        state = state.after_round(seconds)
        gains.append(state.rounds_without_gain)
    assert gains == [0, 1, 0, 1, 2]


def _way(*history: float, layer: str = "conv", weight: float = 1.0) -> TaskState:
    return TaskState(len(history), min(history), history, 1e6, weight, layer=layer)


def test_a_layer_takes_the_time_of_its_fastest_way() -> None:
    states = [_way(2.0, weight=3.0), _way(1.0, weight=3.0), TaskState(1, 0.5, (0.5,), weight=2.0)]
    assert network_latency(states) == 3.0 * 1.0 + 2.0 * 0.5
    unknown = TaskState(flops=1.0, layer="conv", weight=3.0)
    assert network_latency([states[0], unknown]) == 6.0
    assert network_latency([unknown]) == inf


def test_the_gradient_of_a_slower_way_is_what_it_takes_off_the_faster_one() -> None:
    leader, behind = _way(1.0, 1.0), _way(1.2, 1.2)
    fall = 0.8 * 1.2 / 3
    assert gradients([leader, behind], GRADIENT) == pytest.approx((0.8 * -1.0 / 2, 1.2 - fall - 1.0))
    assert not has_lost([leader, behind], 1, GRADIENT)


def test_a_way_that_cannot_catch_up_has_lost_and_stays_so() -> None:
    states = [_way(1.0, 0.9), _way(3.0, 3.0)]
    assert has_lost(states, 1, GRADIENT)
    assert not has_lost(states, 0, GRADIENT)
    assert gradients(states, GRADIENT)[1] == 0.0
    assert has_lost([states[0].after_round(0.5), states[1]], 1, GRADIENT)
    assert not has_lost([states[0], replace(states[1], layer="another")], 1, GRADIENT)


def test_earlier_runs_may_decide_before_the_first_round() -> None:
    known = TaskState(best_seconds=1.0, layer="conv", flops=1.0)
    slow, close = replace(known, best_seconds=2.0), replace(known, best_seconds=1.2)
    fresh = replace(known, best_seconds=inf)
    assert has_lost([known, slow], 1, GRADIENT)
    assert not has_lost([known, close], 1, GRADIENT)
    assert not has_lost([known, fresh], 1, GRADIENT)


@pytest.mark.parametrize(("speeds", "winner"), [((1.0, 0.4), 1), ((0.4, 1.0), 0), ((0.5, 0.45), 1)])
def test_most_rounds_go_to_the_way_that_wins(speeds: tuple[float, float], winner: int) -> None:
    """Both ways come down towards their own limit, half of the rest a round; two more tasks have no rivals."""
    limits = [*speeds, 0.3, 0.2]
    states = [TaskState(flops=1.0, layer="conv"), TaskState(flops=1.0, layer="conv"), TaskState(), TaskState()]
    for _ in range(24):
        index = choose_task(states, GRADIENT)
        assert index is not None
        reached = limits[index] * (1.0 + 0.5 ** states[index].rounds)
        states[index] = states[index].after_round(reached)
        lost = [has_lost(states, place, GRADIENT) for place in range(4)]
        states = [replace(one, exhausted=one.exhausted or gone) for one, gone in zip(states, lost, strict=True)]
    loser = 1 - winner
    assert states[loser].exhausted
    assert not states[winner].exhausted
    assert states[winner].rounds > states[loser].rounds
    assert network_latency(states) == pytest.approx(min(speeds) + 0.5, rel=0.02)


def test_the_warm_up_of_a_second_way_waits_for_every_layer() -> None:
    ways = [TaskState(flops=9.0, layer="conv"), TaskState(flops=8.0, layer="conv")]
    states = [*ways, TaskState(flops=5.0), TaskState(flops=1.0, layer="other")]
    order = []
    for _ in states:
        index = choose_task(states, GRADIENT)
        assert index is not None
        order.append(index)
        states[index] = states[index].after_round(1.0)
    assert order == [0, 2, 3, 1]


def test_to_the_geometric_mean_every_task_counts_alike() -> None:
    options = SchedulerOptions(objective="geomean")
    heavy = TaskState(rounds=4, best_seconds=1.0, history=(1.0,) * 4, weight=100.0)
    light = TaskState(rounds=2, best_seconds=1e-3, history=(1e-3,) * 2, weight=1.0)
    assert choose_task([heavy, light], GRADIENT) == 0
    assert choose_task([heavy, light], options) == 1
    # Instances for throughput are as fast as one of them.
    throughput = SchedulerOptions(objective="throughput")
    assert gradients([heavy, light], throughput) == gradients([heavy, light], SchedulerOptions())
    shares = gradients([heavy, light], options)
    assert shares == pytest.approx((-0.8 / 4, -0.8 / 2))


def test_the_geometric_mean_takes_the_fastest_way_of_a_layer_and_no_weightless_task() -> None:
    ways = [TaskState(best_seconds=seconds, layer="layer 0") for seconds in (4.0, 2.0)]
    alone, ignored = TaskState(best_seconds=8.0, weight=7.0), TaskState(weight=0.0)
    assert geometric_mean([*ways, alone, ignored]) == pytest.approx(4.0)
    assert geometric_mean([*ways, alone, replace(ignored, weight=1.0)]) == inf
    behind = replace(ways[0], rounds=1, history=(4.0,))
    assert gradients([behind, *ways[1:]], SchedulerOptions(objective="geomean"))[0] == pytest.approx(
        min(0.0, 4.0 - 0.8 * 2.0 - 2.0) / 2.0
    )
