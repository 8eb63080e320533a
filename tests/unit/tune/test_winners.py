"""Who serves a task: decided by fresh timings, not by what the record says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from retune.compiler import te
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import (
    DEFAULT_SCHEDULE,
    FITTED_CANDIDATE,
    UNTESTED_CANDIDATE,
    Measurement,
    MeasureRecord,
    MeasureStatus,
    TaskProgram,
)
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Pragma, Step, dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.tuning import RunHeader, default_program
from retune.compiler.tune.winners import (
    TRIED,
    BuiltPrograms,
    Confirmation,
    choose_best,
    confirmations,
    keep_defaults,
    record_candidates,
    resolve,
    shortlist,
    time_again,
    untested_candidates,
)
from tests.support.ir_kernels import build
from tests.support.ir_kernels import task as kernel_task
from tests.support.record_samples import timed

WRONG = Measurement((), MeasureStatus.WRONG_ANSWER, "off by 3\ndetails", 0.0)


class Builder(LocalBuilder):
    """Builds nothing, successfully."""

    def __init__(self) -> None:
        self.built: list[Sequence[Sequence[Step]]] = []

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[Measurement]:  # noqa: ARG002
        self.built.append(candidates)
        return [Measurement(artifact=None) for _ in candidates]


class Runner(LocalRunner):
    """Answers with the `alone` looks it was given, program by program in the order of the builds (the untuned one comes
    last), then with the comparison, then with what runs in fresh processes.
    """

    def __init__(
        self,
        alone: Sequence[Measurement | float],
        passes: Sequence[float] | None = None,
        fresh: Sequence[Measurement | float] = (),
    ) -> None:
        self.probes = [alone, *([each] for each in fresh)]
        self.passes = passes
        self.processes = 0
        self.compared = 0

    def restart(self) -> None:
        self.processes += 1

    def run(
        self,
        task: SearchTask,  # noqa: ARG002
        builds: Sequence[Measurement],
        best_seconds: float | None = None,  # noqa: ARG002
    ) -> list[Measurement]:
        probe = self.probes.pop(0)
        assert len(probe) == len(builds)
        return [ok(each) if isinstance(each, float) else each for each in probe]

    def compare(
        self,
        task: SearchTask,  # noqa: ARG002
        builds: Sequence[Measurement],
        passes: int = 7,  # noqa: ARG002
    ) -> list[Measurement] | None:
        self.compared = len(builds)
        if self.passes is None:
            return None
        assert len(self.passes) == len(builds)
        return [ok(each) for each in self.passes]


def ok(seconds: float) -> Measurement:
    return Measurement((seconds, seconds * 1.1), MeasureStatus.OK, "", 0.0)


@pytest.fixture
def task() -> SearchTask:
    a = te.placeholder((8,))
    b = te.compute((8,), lambda i: a[i] * 2.0, "b")
    return SearchTask("double", ComputeDAG([a, b]), Target.host(), HardwareParams(num_cores=1))


def record(name: str, seconds: float) -> MeasureRecord:
    return timed("key", seconds, record_id=name, steps="[]")


def served(winner: Confirmation) -> str:
    return winner.program.record_id


RECORDS = tuple(row.program for row in (record("a", 1e-3), record("b", 2e-3)))


def test_the_fastest_when_all_take_turns_serves(task: SearchTask) -> None:
    runner = Runner([3e-3, 4e-3, 5e-3], passes=[4e-3, 3e-3, 5e-3], fresh=[3e-3])
    winner = choose_best(task, RECORDS, Builder(), runner)
    assert served(winner) == "b"
    assert (winner.default_seconds, winner.seconds) == (5e-3, 3e-3)
    assert runner.processes == 1
    assert runner.probes == []


def test_what_the_run_has_built_and_checked_is_only_timed_in_turn(task: SearchTask) -> None:
    programs = (RECORDS[0], replace(RECORDS[1], steps=dump_steps((Pragma(0, 0, "good"),))))
    kept = BuiltPrograms()
    kernel = build(kernel_task(), (Pragma(0, 0, "good"),), "double")
    kept.keep(task, programs, [replace(ok(seconds), artifact=kernel) for seconds in (3e-3, 4e-3)])
    runner = Runner([5e-3], passes=[4e-3, 3e-3, 5e-3])
    builder = Builder()
    timed_again = time_again(task, programs, builder, runner, kept)
    assert [len(one) for one in builder.built] == [1]  # the default schedule
    assert [result.seconds for result in timed_again.results] == [4e-3, 3e-3, 5e-3]
    assert timed_again.results[1].artifact is kernel


def test_what_was_kept_is_timed_once_more_where_the_comparison_is_lost(task: SearchTask) -> None:
    kept = BuiltPrograms()
    kernel = build(kernel_task(), (Pragma(0, 0, "good"),), "double")
    kept.keep(task, RECORDS[:1], [replace(ok(3e-3), artifact=kernel)])
    runner = Runner([4e-3], passes=None, fresh=[5e-3])
    runner.probes[-1] = [6e-3, 7e-3]
    results = time_again(task, RECORDS[:1], Builder(), runner, kept).results
    assert [result.seconds for result in results] == [6e-3, 7e-3]


def test_who_is_far_behind_does_not_take_part(task: SearchTask) -> None:
    runner = Runner([1e-3, 1.1e-3, 9e-3], passes=[1e-3, 1.2e-3], fresh=[1e-3])
    winner = choose_best(task, RECORDS, Builder(), runner)
    assert served(winner) == "a"
    assert (winner.default_seconds, winner.seconds) == (9e-3, 1e-3)


def test_a_wrong_answer_never_serves_and_the_reason_is_kept(task: SearchTask) -> None:
    winner = choose_best(task, RECORDS, Builder(), Runner([WRONG, 3e-3, 9e-3], fresh=[3e-3]))
    assert served(winner) == "b"
    assert winner.rejected == ("a: WRONG_ANSWER: off by 3",)


def test_a_winner_that_is_wrong_in_a_fresh_process_gives_way_to_the_next(task: SearchTask) -> None:
    runner = Runner([1e-3, 1.5e-3, 9e-3], passes=[1e-3, 1.5e-3], fresh=[WRONG, 1.5e-3])
    winner = choose_best(task, RECORDS, Builder(), runner)
    assert served(winner) == "b"
    assert winner.rejected == ("a: WRONG_ANSWER: in a fresh process: off by 3",)


def test_a_comparison_that_fails_leaves_the_single_times(task: SearchTask) -> None:
    runner = Runner([2e-3, 1.5e-3, 2.5e-3], passes=None, fresh=[1.5e-3])
    assert served(choose_best(task, RECORDS, Builder(), runner)) == "b"
    assert runner.compared == 3


def test_the_untuned_program_serves_when_nothing_is_faster(task: SearchTask) -> None:
    runner = Runner([1.6e-3, 1.7e-3, 1e-3], passes=[1.6e-3, 1.7e-3, 1e-3])
    winner = choose_best(task, RECORDS, Builder(), runner)
    assert served(winner) == ""
    assert winner.seconds == winner.default_seconds == 1e-3


def test_without_records_the_untuned_program_is_timed_once(task: SearchTask) -> None:
    runner = Runner([1e-3])
    assert served(choose_best(task, (), Builder(), runner)) == ""
    assert (runner.probes, runner.compared) == ([], 0)


def test_the_records_steps_are_what_is_built(task: SearchTask) -> None:
    builder = Builder()
    choose_best(task, (replace(RECORDS[0], steps="[]"),), builder, Runner([1e-3, 9e-3], fresh=[1e-3]))
    (candidates,) = builder.built
    assert len(candidates) == 2
    assert tuple(candidates[0]) == ()


def _product(rows: int, columns: int) -> SearchTask:
    a, b = te.placeholder((rows, 64), name="a"), te.placeholder((64, columns), name="b")
    k = te.reduce_axis(64, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c", {"layout_free_placeholders": (b,)})
    return SearchTask("product", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


def test_a_record_of_a_similar_task_is_among_the_guesses() -> None:
    product, similar = _product(32, 48), _product(64, 96)
    best = replace(record("a", 1e-3), task_key=similar.workload_key, steps=untested_candidates(similar)[0].steps)
    guesses = untested_candidates(product, [best])
    assert len(guesses) == TRIED
    assert [guess.mutation == FITTED_CANDIDATE for guess in guesses].count(True) == 1
    assert all(guess.record_id == "" for guess in guesses)
    failed = replace(best, costs=())
    assert not any(guess.mutation == FITTED_CANDIDATE for guess in untested_candidates(product, [failed]))


class SlowDefault(LocalRunner):
    """Real runs and checks, but the last of several programs, the default schedule, takes twice as long as the others.

    What is faster in truth depends on the machine and on what else runs there.
    """

    def run(
        self, task: SearchTask, builds: Sequence[Measurement], best_seconds: float | None = None
    ) -> list[Measurement]:
        return self._timed(super().run(task, builds, best_seconds))

    def compare(self, task: SearchTask, builds: Sequence[Measurement], passes: int = 7) -> list[Measurement] | None:
        results = super().compare(task, builds, passes)
        return results and self._timed(results)

    @staticmethod
    def _timed(results: Sequence[Measurement]) -> list[Measurement]:
        seconds = [1.0] * (len(results) - 1) + [2.0 if len(results) > 1 else 1.0]
        return [replace(result, costs=(each,)) for result, each in zip(results, seconds, strict=True) if result.costs]


def test_a_task_without_records_gets_a_verified_guess() -> None:
    """The real search and the real workers, on a product small enough to be quick."""
    product = _product(32, 48)
    guesses = untested_candidates(product)
    assert len(guesses) == TRIED
    assert not any(guess.mutation == FITTED_CANDIDATE for guess in guesses)
    with LocalBuilder(n_parallel=1) as builder, SlowDefault(MeasureOptions()) as runner:
        winner = choose_best(product, guesses, builder, runner)
    assert winner.program.steps in [guess.steps for guess in guesses]
    assert not winner.is_default
    assert (winner.seconds, winner.default_seconds) == (1.0, 2.0)
    assert winner.rejected == ()
    texts = [winner.program.steps, dump_steps(default_steps_of(product))]
    assert [winner.kernels[product.workload_key, text].name for text in texts] == [
        product.name
    ] * 2  # as a network calls them


def test_a_confirmed_guess_becomes_a_record_of_its_run(task: SearchTask) -> None:
    guesses = (
        TaskProgram("key", "[]", mutation=UNTESTED_CANDIDATE),
        TaskProgram("key", "[ ]", mutation=FITTED_CANDIDATE),
    )
    run_info = RunHeader("RUN", "net", "llvm", "device", 2, 7, "{}", 5, 60.0)
    guessed = choose_best(task, guesses, Builder(), Runner([3e-3, 4e-3, 5e-3], [4e-3, 3e-3, 5e-3], [3e-3]))
    tuned = choose_best(task, RECORDS, Builder(), Runner([3e-3, 4e-3, 9e-3], [3e-3, 4e-3], [3e-3]))
    default = choose_best(task, (), Builder(), Runner([1e-3]))
    found, records = record_candidates([guessed, tuned, default], run_info, lambda: "NEW")
    (one,) = records
    assert [winner.program.record_id for winner in found] == ["NEW", "a", ""]
    assert found[0].program == one.program
    assert (one.record_id, one.run_id, one.task_key, one.steps) == ("NEW", "RUN", task.workload_key, "[ ]")
    assert (one.mutation, one.seconds, one.status, one.round) == (FITTED_CANDIDATE, 3e-3, MeasureStatus.OK, 5)
    assert record_candidates(found, run_info, lambda: "AGAIN")[1] == ()


def test_what_serves_is_confirmed_by_a_record_with_its_confirmed_time(task: SearchTask) -> None:
    run_info = RunHeader("RUN", "net", "llvm", "device", 2, 7, "{}", 5, 60.0)
    tuned = choose_best(task, RECORDS, Builder(), Runner([3e-3, 4e-3, 9e-3], [3e-3, 4e-3], [3e-3]))
    default = choose_best(task, (), Builder(), Runner([1e-3]))
    lost, failed = replace(tuned, used=False), replace(default, results=(WRONG,))
    rows = confirmations([tuned, default, lost, failed], run_info, lambda: "NEW")
    assert [(row.mutation, row.parent_id, row.seconds) for row in rows] == [
        ("confirmed", "a", 3e-3),
        ("confirmed, default", "", 1e-3),
    ]
    assert all(row.is_confirmation and not row.is_unsearched for row in rows)
    confirmed = rows[0].program
    assert (confirmed.task_key, confirmed.steps) == (task.workload_key, RECORDS[0].steps)
    assert (confirmed.record_id, confirmed.seconds, confirmed.mutation) == ("a", 3e-3, RECORDS[0].mutation)
    assert (rows[1].program.record_id, rows[1].program.mutation) == ("", DEFAULT_SCHEDULE)
    (kept,) = keep_defaults([tuned], [task], [task.workload_key])
    (row,) = confirmations([kept], run_info, lambda: "NEW")
    assert (row.mutation, row.seconds) == ("confirmed, default", tuned.default_seconds)
    (untimed,) = keep_defaults([], [task, product(8)], [task.workload_key])
    assert (untimed.task, confirmations([untimed], run_info, lambda: "NEW")) == (task, ())


def product(size: int) -> SearchTask:
    a, b = te.placeholder((size, size)), te.placeholder((size, size))
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return SearchTask(f"product{size}", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


def test_ways_that_are_close_to_the_fastest_are_timed_again() -> None:
    direct, second, third = tasks = [product(size) for size in (4, 8, 16)]
    best = {direct.workload_key: [record("a", 1.3e-3)], second.workload_key: [record("b", 1e-3), record("c", 2e-3)]}
    found = shortlist(tasks, best)
    assert [(task, [one.record_id for one in programs]) for task, programs in found] == [(second, ["b", "c"])]
    best[third.workload_key] = [record("d", 1.1e-3)]
    assert [task for task, _ in shortlist(tasks, best)] == [second, third]


def test_without_records_only_the_first_way_is_guessed() -> None:
    ((task, programs),) = shortlist([product(8), product(16)], {})
    assert task.name == "product8"
    assert programs
    assert all(program.mutation == UNTESTED_CANDIDATE and not program.record_id for program in programs)


def test_the_fastest_of_all_ways_serves() -> None:
    ways = [(product(8), RECORDS[0], 2e-3), (product(16), RECORDS[1], 1e-3)]
    slow, fast = (
        Confirmation(task, (program, default_program(task)), (ok(seconds), ok(9e-3)), 0)
        for task, program, seconds in ways
    )
    for winners in ((slow, fast), (fast, slow)):
        (serving,) = (winner for winner in resolve(winners) if winner.used)
        assert serving.task is fast.task
        assert (serving.program.record_id, serving.program.seconds) == ("b", 1e-3)
    (alone,) = resolve([replace(slow, index=-1)])
    assert alone.used
    assert alone.program == replace(default_program(slow.task), seconds=9e-3)
