"""Chooses the program of each task of a compiled network: its fastest record, or an untested candidate of the search.

The chosen program was the fastest when all were timed in turn, the default schedule among them, and
gave the right answer in a fresh process after that. Of several tasks that compute the same only the best is chosen. A
winning program is built and checked once: the kernels of each task's fastest programs are kept from their measurement
until the network is compiled. Other programs, such as those of earlier runs, are built again.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.measure.measurer import Builder, Runner
from retune.compiler.measure.record import (
    CONFIRMED,
    DEFAULT_SCHEDULE,
    FITTED_CANDIDATE,
    UNTESTED_CANDIDATE,
    Measurement,
    MeasureRecord,
    MeasureStatus,
    TaskProgram,
)
from retune.compiler.model.base import RandomModel
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.transfer import k_nearest
from retune.compiler.tune.by_shape import combine_by_size
from retune.compiler.tune.tuning import RunHeader, default_program, policy_of

# One timing of a few ms is too noisy to rank near-equal programs; each additional program costs seven passes.
SHORTLIST = 5
"""Fastest programs of a task that are timed again before any may win."""


class BuiltPrograms:
    """At most `most` programs of each task, and its default schedule. A plain class: Prefect passes it on unchanged."""

    def __init__(self, most: int = SHORTLIST) -> None:
        self._most = most
        self._kept: dict[str, dict[str, tuple[tuple[bool, bool, float], Measurement]]] = {}

    def keep(self, task: SearchTask, programs: Iterable[TaskProgram], measured: Iterable[Measurement]) -> None:
        """Keep the fastest programs of a round, and the default schedule. Censored programs come after all others."""
        kept = self._kept.setdefault(task.identity, {})
        for program, result in zip(programs, measured, strict=True):
            if result.artifact is not None and result.costs:
                # The rank sorts the default schedule first, so that the cut below, with an extra slot for it, never
                # drops it.
                rank = program.mutation != DEFAULT_SCHEDULE, result.censored, result.seconds
                kept[program.steps] = rank, result
        has_default = any(not rank[0] for rank, _ in kept.values())
        for text in sorted(kept, key=lambda key: kept[key][0])[self._most + has_default :]:
            del kept[text]

    def find(self, task: SearchTask, text: str) -> Measurement | None:
        """The program with these steps, as it was built and timed; None where it is not kept."""
        _, result = self._kept.get(task.identity, {}).get(text, (None, None))
        return result


# As many builds and checks for each kernel that the budget missed: some seconds for a network, not minutes.
TRIED = 4
"""How many programs are tried for a task that no record knows."""
_TRANSFERRED = 0.5
"""Which share of these may be fitted programs of similar tasks."""
# One disturbed timing may hide a good program; a timing that hides half of its speed is not expected.
REACH = 2.0
"""Programs slower than so many times the fastest do not take part in the comparison."""
CLOSE = 1.2
"""A way to compute a layer whose record is so many times slower than that of the fastest way is not timed again."""


def untested_candidates(task: SearchTask, known: Iterable[MeasureRecord] = ()) -> tuple[TaskProgram, ...]:
    """Programs for a task that the budget did not reach, which have no record: the analytical model's best, and up to
    half of them those of the most similar tasks among `known`, the best records of other tasks.
    """
    # Without results the policy ranks by the analytical model alone, so the learned model is never asked.
    # No later round samples the placements that this one leaves out, so it samples as many as it may.
    policy = policy_of(task, RandomModel(), SearchOptions(transfer_ratio=_TRANSFERRED, batch_per_placement=1))
    others = (record.program for record in known if record.costs)
    if isinstance(policy, SketchPolicy):
        policy.warm_start([program.steps for program in k_nearest(task.workload_key, others, TRIED)])
    kinds = {mutation.TRANSFER: FITTED_CANDIDATE}
    return tuple(
        TaskProgram(task.workload_key, program.steps, mutation=kinds.get(program.mutation, UNTESTED_CANDIDATE))
        for program in policy.ask(TRIED, 0)
    )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The final comparison of the programs of a task.

    The last of `programs` is the default schedule, `results` are their builds and timings, one each. The program at
    `index` is the winner: the default schedule until `confirm_fastest` finds a faster program with right results.
    `used` is false where another task computes the same result faster. `why` explains a default schedule that was
    chosen for the whole network.
    """

    task: SearchTask
    programs: tuple[TaskProgram, ...]
    results: tuple[Measurement, ...]
    index: int = -1
    used: bool = True
    why: str = ""

    @property
    def program(self) -> TaskProgram:
        """The winner, with its latest time."""
        return replace(self.programs[self.index], seconds=self.seconds)

    @property
    def is_default(self) -> bool:
        """Whether the winner is the default schedule."""
        return self.index == -1

    @property
    def seconds(self) -> float:
        """Seconds of a call of the winner; infinite where it failed."""
        return self.results[self.index].seconds

    @property
    def default_seconds(self) -> float:
        """Seconds of a call with the default schedule."""
        return self.results[-1].seconds

    @property
    def rejected(self) -> tuple[str, ...]:
        """Status and error of each program that failed."""
        return tuple(
            f"{program.record_id or 'a candidate'}: {result.status.name}: {result.error.strip().partition(chr(10))[0]}"
            for program, result in zip(self.programs[:-1], self.results[:-1], strict=True)
            if result.status is not MeasureStatus.OK
        )

    @property
    def kernels(self) -> dict[tuple[str, str], KernelArtifact]:
        """The kernels of the winner and of the default schedule, by workload key and steps text."""
        pairs = ((self.programs[index].steps, self.results[index].artifact) for index in (self.index, -1))
        return {(self.task.workload_key, text): kernel for text, kernel in pairs if kernel is not None}


def shortlist(
    tasks: Sequence[SearchTask],
    best: Mapping[str, Sequence[MeasureRecord]],
    known: Iterable[MeasureRecord] | None = (),
) -> tuple[tuple[SearchTask, tuple[TaskProgram, ...]], ...]:
    """Which of `tasks`, the ways to compute one layer, are to be timed again, and with which programs: those whose
    record in `best`, by task key, is close to the fastest; with no record, the first task with
    untested candidates, which include programs of similar tasks among `known`; without any when `known` is None.
    """
    seconds = [min((record.seconds for record in best.get(task.workload_key, ())), default=math.inf) for task in tasks]
    if math.isinf(min(seconds)):
        return ((tasks[0], () if known is None else untested_candidates(tasks[0], known)),)
    close = [task for task, each in zip(tasks, seconds, strict=True) if each <= CLOSE * min(seconds)]
    return tuple((task, tuple(row.program for row in best[task.workload_key])) for task in close)


def resolve(confirmed: Sequence[Confirmation]) -> tuple[Confirmation, ...]:
    """The tasks of one layer, of which only the fastest is used."""
    fastest = min(confirmed, key=lambda candidate: candidate.seconds)
    return tuple(replace(candidate, used=candidate is fastest) for candidate in confirmed)


def keep_defaults(
    confirmed: Sequence[Confirmation], tasks: Iterable[SearchTask], used: Collection[str]
) -> tuple[Confirmation, ...]:
    """What was confirmed, in a network that keeps the default schedules: of the `tasks` whose keys are `used`."""
    untimed = (Confirmation(task, (default_program(task),), (Measurement(),)) for task in tasks)
    defaults = {winner.task.workload_key: winner for winner in untimed if winner.task.workload_key in used}
    defaults |= {winner.task.workload_key: replace(winner, index=-1) for winner in confirmed}
    why = "the whole network is no faster with the programs found"
    return tuple(replace(winner, used=key in used, why=why) for key, winner in defaults.items())


def record_candidates(
    confirmed: Iterable[Confirmation], run_info: RunHeader, new_id: Callable[[], str]
) -> tuple[tuple[Confirmation, ...], tuple[MeasureRecord, ...]]:
    """What was confirmed, with a record for every program that had none, and these records."""
    with_records, records = [], []
    for winner in confirmed:
        if not winner.is_default and not winner.program.record_id:
            measured = winner.results[winner.index]
            records.append(run_info.record(winner.task, winner.program, measured, new_id()))
            programs = list(winner.programs)
            programs[winner.index] = records[-1].program
            winner = replace(winner, programs=tuple(programs))
        with_records.append(winner)
    return tuple(with_records), tuple(records)


def confirmations(
    confirmed: Iterable[Confirmation], run_info: RunHeader, new_id: Callable[[], str]
) -> tuple[MeasureRecord, ...]:
    """A row for every program that is used from now on, with its confirmed time."""
    records = []
    for winner in confirmed:
        program = winner.program
        if winner.used and math.isfinite(program.seconds):
            mutation = f"{CONFIRMED}, {program.mutation}" if program.mutation else CONFIRMED
            row = TaskProgram(program.task_key, program.steps, mutation=mutation, parent_id=program.record_id)
            records.append(run_info.record(winner.task, row, winner.results[winner.index], new_id()))
    return tuple(records)


def time_again(
    task: SearchTask,
    programs: Sequence[TaskProgram],
    builder: Builder,
    runner: Runner,
    kept: BuiltPrograms | None = None,
) -> Confirmation:
    """Time `programs` and the default schedule once more, and a kernel of several programs for different sizes.

    Each is run and checked alone, but those that are `kept`, which were; those within `REACH` of the fastest are then
    timed in turn, so that a disturbance of the machine hits all of them, and the fastest repeat counts.
    Raises: MeasureError when the workers cannot work at all.
    """
    programs = (*programs, default_program(task))
    reused = [None if kept is None else kept.find(task, program.steps) for program in programs]
    missing = [load_steps(program.steps) for program, known in zip(programs, reused, strict=True) if known is None]
    built = builder.build(task, missing) if missing else []
    new = iter(runner.run(task, built) if built else ())
    results = [next(new) if known is None else known for known in reused]
    combined = combine_by_size(task, programs, results)
    if combined is not None:
        results = [*runner.run(task, builder.build(task, [load_steps(combined.steps)])), *results]
        programs = (combined, *programs)
    compared = _interleave(task, results, runner)
    if compared is None:
        # The times of what is kept are those of other moments.
        compared = runner.run(task, results) if len(missing) < len(results) else results
    return Confirmation(task, programs, tuple(compared))


def confirm_fastest(timed: Sequence[Confirmation], runner: Runner) -> list[Confirmation]:
    """For each task the fastest program that is right in a fresh process too.

    The fastest of all tasks run there once more, one after the other; where a program is wrong or crashes the next
    of its task is tried, in another fresh process.
    Raises: MeasureError when the workers cannot work at all.
    """
    runner.restart()
    return [_confirm(programs, runner) for programs in timed]


def choose_best(task: SearchTask, programs: Sequence[TaskProgram], builder: Builder, runner: Runner) -> Confirmation:
    """Time `programs` and the default schedule again, and take the fastest that is right. Raises: as `time_again`."""
    return confirm_fastest([time_again(task, programs, builder, runner)], runner)[0]


def _confirm(timed: Confirmation, runner: Runner) -> Confirmation:
    results = list(timed.results)
    for index in sorted(range(len(results) - 1), key=lambda index: timed.results[index].seconds):
        # Sorted by time: from here on none beats the default schedule.
        if results[index].seconds >= timed.default_seconds:
            break
        # A program that is right only on what its own earlier runs left in memory fails here.
        (again,) = runner.run(timed.task, [results[index]])
        if again.status is MeasureStatus.OK:
            return replace(timed, results=tuple(results), index=index)
        results[index] = replace(again, error=f"in a fresh process: {again.error}")
        runner.restart()
    return replace(timed, results=tuple(results))


def _interleave(task: SearchTask, results: Sequence[Measurement], runner: Runner) -> list[Measurement] | None:
    """The results; those in reach of the fastest with the times and the contention of a comparison in turn. None when
    the process was lost that compared them.
    """
    limit = REACH * min(result.seconds for result in results)
    close = [index for index, result in enumerate(results) if math.isfinite(result.seconds) and result.seconds <= limit]
    if len(close) < 2:
        return list(results)
    compared = runner.compare(task, [results[index] for index in close])
    if compared is None:
        return None
    timed = list(results)
    for index, again in zip(close, compared, strict=True):
        timed[index] = replace(results[index], costs=again.costs, contention=again.contention, shapes=again.shapes)
    return timed
