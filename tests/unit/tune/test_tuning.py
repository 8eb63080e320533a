"""The state of a run: a function of what is stored, with policies that only count."""

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

import pytest

from retune.compiler import te
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.record import (
    DEFAULT_SCHEDULE,
    UNTESTED_CANDIDATE,
    Measurement,
    MeasureRecord,
    MeasureStatus,
    TaskProgram,
)
from retune.compiler.model import RandomModel, TrainingBatch
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.tuning import RunHeader, TunedTask, Tuning, begin, common_failure
from tests.support.synthetic_programs import programs

RUN_INFO = RunHeader("run", "net", "llvm", "device", 1, 0, "{}")


class CountingPolicy:
    """Proposes "program N" for N = 0, 1, ... as far as it was not told."""

    def __init__(self, task: SearchTask, limit: int = 1000) -> None:
        self.task = task
        self.limit = limit
        self.observed: list[list[TaskProgram]] = []

    def ask(self, count: int, round_index: int) -> tuple[TaskProgram, ...]:  # noqa: ARG002
        known = {program.steps for batch in self.observed for program in batch}
        names = (f"program {number}" for number in range(self.limit))
        fresh = itertools.islice((name for name in names if name not in known), count)
        return tuple(TaskProgram(self.task.workload_key, name, mutation="sample") for name in fresh)

    def tell(self, results: Sequence[TaskProgram]) -> None:
        self.observed.append(list(results))


def matmul(size: int) -> SearchTask:
    a, b = te.placeholder((size, size)), te.placeholder((size, size))
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return SearchTask(f"matmul{size}", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


def tuning(limit: int = 1000, scheduler: SchedulerOptions | None = None) -> Tuning:
    tasks = [matmul(8), matmul(16)]
    return Tuning(RUN_INFO, tasks, [1, 3], lambda task: CountingPolicy(task, limit), scheduler=scheduler)


def policy_of(task: TunedTask) -> CountingPolicy:
    assert isinstance(task.policy, CountingPolicy)
    return task.policy


def one_round(run: Tuning, index: int, status: MeasureStatus = MeasureStatus.OK) -> tuple[MeasureRecord, ...]:
    """Ask, pretend to measure: program N takes 10 - N ms, the default 100 ms."""
    candidates = run.ask(index, 4)
    results = []
    for candidate in candidates:
        number = 0 if candidate.mutation == DEFAULT_SCHEDULE else int(candidate.steps.split()[1])
        seconds = 0.1 if candidate.mutation == DEFAULT_SCHEDULE else (10 - number % 10) * 1e-3
        good = status is MeasureStatus.OK
        error = "" if good else f"stack of {number} bytes is too large\nmore"
        results.append(Measurement((seconds,) if good else (), status, error, 0.1, 0.1))
    ids = (f"{run.rounds:03d}-{number:03d}" for number in itertools.count())
    return run.records_of(index, candidates, results, run.elapsed + 1.0, lambda: next(ids))


def snapshot(run: Tuning) -> object:
    return run.summary(), [policy_of(task).observed for task in run.tasks], [task.state for task in run.tasks]


def test_the_first_round_begins_with_the_untuned_program_and_later_ones_do_not() -> None:
    run = tuning()
    records = one_round(run, 0)
    assert [record.mutation for record in records] == [DEFAULT_SCHEDULE, "sample", "sample", "sample"]
    run.tell(0, records)
    assert DEFAULT_SCHEDULE not in [candidate.mutation for candidate in run.ask(0, 4)]
    assert run.row(0).default_seconds == pytest.approx(0.1)


def test_a_state_rebuilt_from_records_is_the_state_that_made_them() -> None:
    run = tuning()
    stored: list[MeasureRecord] = []
    for _ in range(7):
        index = run.choose()
        assert index is not None
        records = one_round(run, index)
        stored += records
        run.tell(index, records)
    again = tuning()
    again.replay({}, sorted(stored, key=lambda record: record.record_id, reverse=True)[::-1])
    assert snapshot(again) == snapshot(run)
    assert (again.trials, again.rounds, again.elapsed) == (28, 7, 7.0)
    assert again.choose() == run.choose()


@pytest.mark.parametrize("options", [SchedulerOptions("round-robin"), SchedulerOptions(explore=1.0)])
def test_the_options_of_the_scheduler_decide_also_after_a_replay(options: SchedulerOptions) -> None:
    chosen: list[int] = []
    stored: list[MeasureRecord] = []
    run = tuning(scheduler=options)
    for _ in range(8):
        index = run.choose()
        assert index is not None
        chosen.append(index)
        stored += one_round(run, index)
        run.tell(index, stored[-4:])
    if options.strategy == "round-robin":
        assert chosen.count(0) == chosen.count(1)
    assert chosen != [plain_choice(stored, rounds) for rounds in range(8)], "the default decides otherwise"
    again = tuning(scheduler=options)
    again.replay({}, stored)
    assert again.choose() == run.choose()


def plain_choice(stored: Sequence[MeasureRecord], rounds: int) -> int | None:
    """The task that the default options would choose after so many rounds."""
    run = tuning()
    run.replay({}, [record for record in stored if record.round < rounds])
    return run.choose()


def test_history_is_known_but_costs_nothing_of_the_budget() -> None:
    first = tuning()
    records = one_round(first, 0)
    second = tuning()
    second.replay({second.tasks[0].task.workload_key: records}, ())
    assert (second.trials, second.rounds, second.elapsed) == (0, 0, 0.0)
    assert second.row(0).best_seconds == min(record.seconds for record in records)
    assert second.row(0).default_seconds == pytest.approx(0.1)
    asked = {candidate.steps for candidate in second.ask(0, 8)}
    assert asked
    assert asked.isdisjoint({record.steps for record in records})


def test_untested_candidates_of_earlier_runs_are_known_but_no_progress_of_the_search() -> None:
    guess = replace(one_round(tuning(), 1)[1], mutation=UNTESTED_CANDIDATE)
    run = tuning()
    run.replay({guess.task_key: [guess]}, ())
    assert math.isinf(run.row(1).best_seconds)
    assert guess.steps not in {candidate.steps for candidate in run.ask(1, 8)}
    better = replace(guess, costs=(1e-6,))
    run.replay({guess.task_key: [better]}, one_round(run, 1))
    assert run.row(1).best_seconds == 1e-6
    failing = tuning()
    failing.replay({guess.task_key: [guess]}, one_round(failing, 1, status=MeasureStatus.COMPILE_HOST))
    assert failing.tasks[1].state.exhausted


def test_no_way_to_compute_a_layer_is_given_up_for_a_untested_candidate() -> None:
    guess = replace(one_round(tuning(), 0)[1], mutation=UNTESTED_CANDIDATE, costs=(3.1e-3,))
    rival = replace(one_round(tuning(), 1)[1], costs=(2e-3,))
    run = Tuning(RUN_INFO, [matmul(8), matmul(16)], [1, 1], CountingPolicy, layers=[0, 0])
    run.replay({guess.task_key: [guess], rival.task_key: [rival]}, ())
    assert not run.tasks[0].state.exhausted


def test_a_first_round_that_fails_alike_stops_its_task_also_after_a_replay() -> None:
    run = tuning()
    records = one_round(run, 1, status=MeasureStatus.COMPILE_HOST)
    run.tell(1, records)
    assert run.tasks[1].state.exhausted
    assert "failed alike (COMPILE_HOST): stack of" in run.row(1).stop_reason
    assert run.choose() == 0
    again = tuning()
    again.replay({}, records)
    assert again.row(1).stop_reason == run.row(1).stop_reason


def test_later_failures_do_not_stop_a_task() -> None:
    run = tuning()
    run.tell(0, one_round(run, 0))
    run.tell(0, one_round(run, 0, status=MeasureStatus.WRONG_ANSWER))
    assert not run.tasks[0].state.exhausted


def test_failures_that_differ_are_not_alike() -> None:
    records = one_round(tuning(), 0, status=MeasureStatus.COMPILE_HOST)
    assert common_failure(records)
    assert not common_failure((replace(records[0], error="another thing"), *records[1:]))
    assert not common_failure((replace(records[0], status=MeasureStatus.OK, costs=(1.0,), error=""), *records[1:]))
    assert not common_failure(records[:1])


def test_the_latency_is_the_weighted_sum_and_unknown_until_all_tasks_have_one() -> None:
    run = tuning()
    run.tell(0, one_round(run, 0))
    assert math.isinf(run.latency)
    assert run.latency_so_far == run.row(0).best_seconds
    run.tell(1, one_round(run, 1))
    assert run.latency == pytest.approx(run.row(0).best_seconds + 3 * run.row(1).best_seconds)


def test_a_task_without_programs_is_given_no_further_rounds() -> None:
    run = tuning(limit=2)
    run.tell(0, one_round(run, 0))
    assert run.ask(0, 4) == ()
    run.exhaust(0, "nothing left")
    assert run.choose() == 1


def test_a_run_is_stalled_when_trials_bring_nothing_also_after_a_replay() -> None:
    run = tuning()
    stored: list[MeasureRecord] = []
    for index in (0, 1, 0, 1):
        records = one_round(run, index)
        stored += records
        run.tell(index, records)
        assert not run.is_stalled(4)
    for _ in range(3):
        records = tuple(replace(record, costs=(1.0,)) for record in one_round(run, 0))
        stored += records
        run.tell(0, records)
    assert run.trials == 28
    assert run.is_stalled(12)
    assert not run.is_stalled(13)
    assert not run.is_stalled(0)
    again = tuning()
    again.replay({}, stored)
    assert again.is_stalled(12)
    assert not again.is_stalled(13)


def test_rows_carry_where_a_program_came_from() -> None:
    run = tuning()
    (record, *_) = one_round(run, 1)
    assert (record.run_id, record.network, record.task_name) == ("run", "net", "matmul16")
    assert record.task_key == run.tasks[1].task.workload_key
    assert record.round == 0
    assert record.elapsed == 1.0


def pretended(run: Tuning, index: int) -> tuple[MeasureRecord, ...]:
    """A round whose times depend on the programs alone."""
    candidates = run.ask(index, 24)
    seconds = [1e-3 * (1 + crc32(candidate.steps.encode()) % 1000) for candidate in candidates]
    results = [Measurement((each,), MeasureStatus.OK, "", 0.1, 0.1) for each in seconds]
    ids = (f"{run.rounds:03d}-{number:03d}" for number in itertools.count())
    return run.records_of(index, candidates, results, run.elapsed + 1.0, lambda: next(ids))


def test_a_resumed_search_asks_for_what_an_uninterrupted_one_would_have() -> None:
    tasks, weights = [matmul(32), matmul(64)], [1, 2]
    run = begin(tasks, weights, RUN_INFO)
    stored: list[MeasureRecord] = []
    for _ in range(4):
        index = run.choose()
        assert index is not None
        records = pretended(run, index)
        stored += records
        run.tell(index, records)
    again = begin(tasks, weights, RUN_INFO)
    again.replay({}, stored)
    for index in range(2):
        expected = [candidate.steps for candidate in run.ask(index, 24)]
        assert len(expected) == 24
        assert [candidate.steps for candidate in again.ask(index, 24)] == expected
        assert not set(expected) & {record.steps for record in stored}


def test_training_data_of_other_networks_is_used_before_measuring() -> None:
    def started(training_data: Sequence[TrainingBatch]) -> Tuning:
        run = begin([matmul(64)], [1], RUN_INFO)
        run.replay({}, (), training_data)
        return run

    features, seconds = programs(64, 0)
    mine = matmul(64).workload_key
    other, same = TrainingBatch("another network's", features, seconds), TrainingBatch(mine, features, seconds)
    models = [started(training_data).model for training_data in ([other], [same], [other, same], [])]
    assert [model.programs for model in models if model is not None] == [64, 0, 64, 0]
    taught = started([other])
    assert taught.model is not None
    assert taught.metrics is None
    assert taught.model.predict(features).argmax() == seconds.argmin()


def test_a_long_run_is_replayed_to_the_very_model_that_it_had() -> None:
    run = begin([matmul(64)], [1], RUN_INFO)
    stored: list[MeasureRecord] = []
    for number in range(5):
        candidates = run.ask(0, 16)
        times = [(1 + zlib.crc32(program.steps.encode()) % 97) * 1e-4 for program in candidates]
        results = [Measurement((seconds,), MeasureStatus.OK, "", 0.1, 0.1) for seconds in times]
        ids = (f"{number:03d}-{one:03d}" for one in itertools.count())
        records = run.records_of(0, candidates, results, run.elapsed + 1.0, ids.__next__)
        stored += records
        run.tell(0, records)
    again = begin([matmul(64)], [1], RUN_INFO)
    again.replay({}, stored)
    assert [program.steps for program in again.ask(0, 16)] == [program.steps for program in run.ask(0, 16)]


def test_small_reductions_get_no_round_and_do_not_keep_the_latency_unknown() -> None:
    a = te.placeholder((4, 4), name="a")
    k = te.reduce_axis(4, "k")
    sums = ComputeDAG([a, te.compute((4,), lambda i: te.sum(a[i, k], k), "s")])
    small = SearchTask("sums", sums, Target.host(), HardwareParams(num_cores=1))
    run = Tuning(RUN_INFO, [matmul(256), small], [1, 1], CountingPolicy)
    assert run.live == 1
    assert "too small" in run.row(1).stop_reason
    for _ in range(3):
        assert run.choose() == 0
        run.tell(0, one_round(run, 0))
    assert run.latency == run.row(0).best_seconds


def test_similar_tasks_share_their_best_programs() -> None:
    heard: dict[str, list[str]] = {}

    class Listening(SketchPolicy):
        def warm_start(self, programs: Sequence[str]) -> None:
            heard[self.task.name] = list(programs)

    run = Tuning(RUN_INFO, [matmul(8), matmul(16)], [1, 3], lambda task: Listening(task, RandomModel(0)))
    texts = [candidate.steps for candidate in run.ask(1, 5)]
    (sample, *_) = one_round(tuning(), 0)
    costs = [5e-3, 2e-3, 4e-3, 3e-3, 1e-3]
    shared = zip(texts, costs, strict=True)
    key = run.tasks[1].task.workload_key
    run.tell(1, [replace(sample, task_key=key, steps=text, costs=(cost,)) for text, cost in shared])
    foreign = replace(sample, task_key=matmul(32).workload_key, steps="[]", costs=(1e-9,))
    run.replay({}, (), foreign=[foreign])
    run.ask(0, 4)
    assert heard["matmul8"] == [texts[4], "[]", texts[1], texts[3]]
    run.ask(1, 4)
    assert heard["matmul16"] == ["[]"]


def test_of_two_ways_the_loser_gets_no_further_rounds_also_after_a_replay() -> None:
    def race() -> Tuning:
        return Tuning(RUN_INFO, [matmul(8), matmul(16)], [3, 3], CountingPolicy, layers=[0, 0])

    def measured(run: Tuning, index: int, seconds: float) -> tuple[MeasureRecord, ...]:
        return tuple(replace(record, costs=(seconds,)) for record in one_round(run, index))

    run = race()
    assert run.live == 2
    told: list[MeasureRecord] = []
    for index, seconds in ((1, 1e-3), (0, 4e-3), (0, 4e-3)):
        records = measured(run, index, seconds)
        told += records
        run.tell(index, records)
    assert run.latency == pytest.approx(3e-3)
    assert [row.stop_reason for row in run.summary().rows] == ["matmul16 computes the same faster", ""]
    assert run.choose() == 1
    again = race()
    again.replay({}, told)
    assert snapshot(again) == snapshot(run)
    later = race()
    later.replay({record.task_key: [record] for record in told}, [])
    assert [row.stop_reason for row in later.summary().rows] == ["matmul16 computes the same faster", ""]
    assert (later.live, later.trials) == (1, 0)
