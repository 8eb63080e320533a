"""Which network gains most from being tuned again, as its records tell."""

import math
from dataclasses import replace

import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.record import UNTESTED_CANDIDATE, MeasureRecord, MeasureStatus
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.stale import ROUND, TuningEstimate, estimate, most_promising, task_state
from tests.support.record_samples import timed


def task(size: int) -> SearchTask:
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    return SearchTask(f"matmul{size}", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


SMALL, LARGE = task(8), task(64)


def records(*seconds: float | None, engine: str = "2") -> list[MeasureRecord]:
    made = []
    for number, cost in enumerate(seconds):
        status = MeasureStatus.OK if cost else MeasureStatus.RUN_TIMEOUT
        costs = (cost,) if cost else ()
        found = {"costs": costs, "status": status, "timestamp": float(number), "engine_version": engine}
        made.append(timed("", 1.0, steps="[]", run_seconds=0.05, **found))
    return made


def judged(small: list[MeasureRecord], large: list[MeasureRecord]) -> TuningEstimate:
    known = {SMALL.workload_key: small, LARGE.workload_key: large}
    return estimate("net", [SMALL, LARGE], [1, 2], known, "2")


def test_a_task_is_as_far_as_its_records_in_any_order() -> None:
    found = records(*[3.0] * ROUND, *[None] * ROUND, 1.0)
    state = task_state(reversed(found), SMALL, 2)
    assert (state.rounds, state.history, state.best_seconds, state.weight) == (3, (3.0, 3.0, 1.0), 1.0, 2.0)


def test_a_network_with_an_untuned_task_comes_first() -> None:
    for large in ([], records(None), records(1.0, engine="1")):
        found = judged(records(1.0), large)
        assert (found.gain, found.untuned, found.tasks) == (math.inf, 1, 2)
        assert "1 of 2 tasks" in str(found)


def test_a_task_with_a_untested_candidate_alone_is_untuned() -> None:
    (guess,) = records(1.0)
    found = judged(records(1.0), [replace(guess, mutation=UNTESTED_CANDIDATE)])
    assert (found.gain, found.untuned) == (math.inf, 1)


def test_a_task_too_small_for_trials_is_not_waited_for() -> None:
    x = te.placeholder((8,), name="X")
    copy = te.compute((8,), lambda i: x[i] + 1.0, "Y")
    tiny = SearchTask("tiny", ComputeDAG([x, copy]), Target.host(), HardwareParams(num_cores=1))
    found = estimate("net", [LARGE, tiny], [1, 1], {LARGE.workload_key: records(2.0)}, "2")
    assert (found.untuned, found.tasks, found.latency) == (0, 1, 2.0)


def test_the_gain_is_what_the_rounds_of_a_minute_bring_and_less_than_all() -> None:
    (costs,) = {record.build_seconds + record.run_seconds for record in records(1.0)}
    rounds = 60 / (ROUND * costs)
    alone = estimate("net", [LARGE], [1], {LARGE.workload_key: records(*[3.0] * ROUND)}, "2")
    assert alone.gain == pytest.approx(1 - 1 / (1 + rounds))
    found = judged(records(*[1.0] * ROUND), records(*[3.0] * ROUND))
    assert found.latency == 7.0
    assert 0.5 < found.gain < 1
    assert "7000 ms" in str(found)


def test_more_rounds_without_gain_promise_less() -> None:
    gains = [judged(records(*[1.0] * ROUND * n), records(*[3.0] * ROUND * n)).gain for n in (1, 2, 3, 8, 20)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 10 * gains[-1] > 0


def test_a_task_promises_no_more_than_similar_ones_have_reached() -> None:
    """A task of the speed of its kin gains nothing, though its first round alone would promise half."""
    kin = {SMALL.workload_key: records(*[1.0] * ROUND * 20), LARGE.workload_key: records(*[1024.0] * ROUND)}
    free = estimate("net", [LARGE], [1], {LARGE.workload_key: kin[LARGE.workload_key]}, "2")
    speed = LARGE.flop_count / SMALL.flop_count
    bounded = estimate("net", [SMALL, LARGE], [1, 1], kin, "2")
    assert (1 - bounded.gain) * bounded.latency >= speed
    assert bounded.gain < free.gain


def test_the_minute_goes_to_a_network_that_still_gains_not_to_a_fast_one_at_its_peak() -> None:
    """Of a network whose rounds take a third of a second, each round alone would promise more than the whole."""
    cheap = [replace(one, build_seconds=0.004, run_seconds=0.001) for one in records(*[8.48e-6, 8.47e-6] * ROUND * 3)]
    peak = estimate("mlp", [SMALL], [1], {SMALL.workload_key: cheap}, "2")
    slow = records(*[0.9e-3] * ROUND, *[0.7e-3] * ROUND, *[0.5e-3] * ROUND)
    matmul = estimate("matmul", [LARGE], [1], {LARGE.workload_key: slow}, "2")
    assert 0 < peak.gain < matmul.gain < 1
    assert most_promising([peak, matmul], 0.0005) == matmul
    again = estimate("mlp", [SMALL], [1], {SMALL.workload_key: cheap * 4}, "2")
    assert again.gain < peak.gain / 4


def test_the_most_promising_network_that_is_worth_it() -> None:
    a, b = TuningEstimate("a", 0.1, 1.0, 1, 0), TuningEstimate("b", 0.3, 1.0, 1, 0)
    new = TuningEstimate("c", math.inf, math.inf, 1, 1)
    assert most_promising([a, b], 0.05) == b
    assert most_promising([a, new, b], 0.05) == new
    large = TuningEstimate("large", 0.1, 4.0, 1, 0)  # 0.4 s of each call, where b has 0.3
    assert most_promising([a, b, large], 0.05) == large
    assert most_promising([a, b], 0.5) is None
    assert most_promising([TuningEstimate("d", 0.0, 1.0, 0, 0)], 0.0) is None


def test_one_way_to_compute_a_layer_is_enough() -> None:
    known = {SMALL.workload_key: records(2.0), LARGE.workload_key: []}
    found = estimate("net", [SMALL, LARGE], [2, 2], known, "2", layers=[0, 0])
    assert (found.untuned, found.tasks, found.latency) == (0, 1, 4.0)
    faster = estimate("net", [SMALL, LARGE], [2, 2], {**known, LARGE.workload_key: records(1.0)}, "2", layers=[0, 0])
    assert faster.latency == 2.0
