"""Choice of the program that a task of a compiled network uses: its fastest record, or a top candidate of the search.

The chosen program was the fastest when all were timed in turn, the default schedule among them, and
gave the right answer in a fresh process after that. Of several tasks that compute the same only the best is chosen.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.measure.built_programs import BuiltPrograms
from retune.compiler.measure.measurer import Builder, Runner
from retune.compiler.measure.record import (
    CONFIRMED,
    DEFAULT_SCHEDULE,
    FITTED_CANDIDATE,
    TOP_CANDIDATE,
    BestProgram,
    MeasureRecord,
    MeasureStatus,
)
from retune.compiler.measure.results import BuiltProgram, Measurement
from retune.compiler.model.random import RandomModel
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import Candidate, SketchPolicy
from retune.compiler.search.transfer import k_nearest
from retune.compiler.tune.tuning import RunHeader

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


def top_candidates(task: SearchTask, known: Iterable[MeasureRecord] = ()) -> tuple[BestProgram, ...]:
    """Programs for a task that the budget did not reach, which have no record: the analytical model's best, and up to
    half of them those of the most similar tasks among `known`, the best records of other tasks.
    """
    # Without results the policy ranks by the analytical model alone, so the learned model is never asked.
    # No later round samples the placements that this one leaves out, so it samples as many as it may.
    policy = SketchPolicy(task, RandomModel(), SearchOptions(transfer_ratio=_TRANSFERRED, batch_per_placement=1))
    others = (BestProgram.of(record) for record in known if record.costs)
    policy.warm_start([program.steps for program in k_nearest(task.workload_key, others, TRIED)])
    kinds = {mutation.TRANSFER: FITTED_CANDIDATE}
    return tuple(
        BestProgram(task.workload_key, candidate.steps_text, mutation=kinds.get(candidate.mutation, TOP_CANDIDATE))
        for candidate in policy.ask(TRIED, 0)
    )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What confirming the best programs of a task came to: `program` serves it, the default schedule when that is None.
    Times are seconds per call, infinite where the program failed.

    `rejected` says of every program that failed why it does not serve. `serves` is false where another task computes
    the same result faster. `measured` is how the program was built and timed, `kernels` are the kernels of what serves
    and of the default schedule, by steps text, `default_steps` is the latter's. `tried` is how many programs were timed
    beside the default schedule; `why` says why that serves, where this was not found for the task alone.
    """

    task_key: str
    name: str
    program: BestProgram | None
    default_seconds: float
    seconds: float
    rejected: tuple[str, ...]
    serves: bool = True
    measured: Measurement | None = None
    kernels: Mapping[str, KernelArtifact] = field(default_factory=dict)
    default_steps: str = ""
    tried: int = 0
    why: str = ""

    @property
    def serving(self) -> BestProgram | None:
        """The program with its latest time, which may be the default schedule; None where another task serves."""
        default = BestProgram(self.task_key, self.default_steps, mutation=DEFAULT_SCHEDULE)
        return replace(self.program or default, seconds=self.seconds) if self.serves else None


def shortlist(
    tasks: Sequence[SearchTask],
    best: Mapping[str, Sequence[MeasureRecord]],
    known: Iterable[MeasureRecord] | None = (),
) -> tuple[tuple[SearchTask, tuple[BestProgram, ...]], ...]:
    """Which of `tasks`, the ways to compute one layer, are to be timed again, and with which programs: those whose
    record in `best`, by task key, is close to the fastest; the first task with guesses, programs of tasks like
    it that are `known` among them, when there is no record; without guesses when `known` is None.
    """
    seconds = [min((record.seconds for record in best.get(task.workload_key, ())), default=math.inf) for task in tasks]
    if math.isinf(min(seconds)):
        return ((tasks[0], () if known is None else top_candidates(tasks[0], known)),)
    close = [task for task, each in zip(tasks, seconds, strict=True) if each <= CLOSE * min(seconds)]
    return tuple((task, tuple(map(BestProgram.of, best[task.workload_key]))) for task in close)


def resolve(confirmed: Sequence[Confirmation]) -> tuple[Confirmation, ...]:
    """The tasks of one layer, of which only the fastest serves."""
    fastest = min(confirmed, key=lambda candidate: candidate.seconds)
    return tuple(replace(candidate, serves=candidate is fastest) for candidate in confirmed)


def keep_defaults(confirmed: Sequence[Confirmation], used: Mapping[str, str]) -> tuple[Confirmation, ...]:
    """What was confirmed, in a network that keeps the default schedules: of the tasks in `used`, names by key."""
    defaults = {key: Confirmation(key, name, None, math.inf, math.inf, ()) for key, name in used.items()}
    defaults |= {winner.task_key: replace(winner, program=None, seconds=winner.default_seconds) for winner in confirmed}
    why = "the whole network is no faster with the programs found"
    return tuple(replace(winner, serves=winner.task_key in used, why=why) for winner in defaults.values())


def record_guesses(
    confirmed: Iterable[Confirmation], run_info: RunHeader, new_id: Callable[[], str]
) -> tuple[tuple[Confirmation, ...], tuple[MeasureRecord, ...]]:
    """What was confirmed, with a record for every program that had none, and these records."""
    with_records, records = [], []
    for winner in confirmed:
        guess, measured = winner.program, winner.measured
        if guess is not None and not guess.record_id and measured is not None:
            candidate = Candidate(load_steps(guess.steps), guess.steps, None, None, guess.mutation)
            records.append(run_info.record(winner.task_key, winner.name, candidate, measured, new_id()))
            winner = replace(winner, program=BestProgram.of(records[-1]))
        with_records.append(winner)
    return tuple(with_records), tuple(records)


def confirmations(
    confirmed: Iterable[Confirmation], run_info: RunHeader, new_id: Callable[[], str]
) -> tuple[MeasureRecord, ...]:
    """A row for every program that serves from now on, with its confirmed time."""
    records = []
    for each in confirmed:
        program, measured = each.serving, each.measured
        if program is not None and measured is not None and math.isfinite(program.seconds):
            mutation = f"{CONFIRMED}, {program.mutation}" if program.mutation else CONFIRMED
            candidate = Candidate(load_steps(program.steps), program.steps, None, program.record_id, mutation)
            # Not its costs: where the default schedules are kept, those are of another program.
            timed = replace(measured, costs=(program.seconds,))
            records.append(run_info.record(each.task_key, each.name, candidate, timed, new_id()))
    return tuple(records)


@dataclass(frozen=True, slots=True)
class TimedPrograms:
    """Programs of a task, then its default schedule, as they were built and timed, interleaved."""

    task: SearchTask
    programs: Sequence[BestProgram]
    steps: Sequence[str]
    builds: Sequence[BuiltProgram]
    results: Sequence[Measurement]

    @property
    def seconds(self) -> list[float]:
        """The fastest repeat of each, infinite for a failed program."""
        return [min(result.costs, default=math.inf) for result in self.results]


def time_again(
    task: SearchTask,
    programs: Sequence[BestProgram],
    builder: Builder,
    runner: Runner,
    kept: BuiltPrograms | None = None,
) -> TimedPrograms:
    """Time the default schedule and `programs` once more.

    Each is run and checked alone, but those that are `kept`, which were; those within `REACH` of the fastest are then
    timed in turn, so that a disturbance of the machine hits all of them, and the fastest repeat counts.
    Raises: MeasureError when the workers cannot work at all.
    """
    steps = [*(load_steps(program.steps) for program in programs), default_steps_of(task)]
    texts = [*(program.steps for program in programs), dump_steps(steps[-1])]
    reused = [None if kept is None else kept.find(task, text) for text in texts]
    missing = [program_steps for program_steps, known in zip(steps, reused, strict=True) if known is None]
    built = builder.build(task, missing) if missing else []
    new = iter(zip(built, runner.run(task, built) if built else (), strict=True))
    pairs = [next(new) if known is None else (known.built, known.measured) for known in reused]
    builds = [build for build, _ in pairs]
    results = _interleaved(task, builds, [result for _, result in pairs], runner)
    if results is None:
        # The times of what is kept are those of other moments.
        results = runner.run(task, builds) if len(missing) < len(pairs) else [result for _, result in pairs]
    return TimedPrograms(task, programs, texts, builds, results)


def confirm_fastest(timed: Sequence[TimedPrograms], runner: Runner) -> list[Confirmation]:
    """For each task the fastest program that is right in a fresh process too.

    The fastest of all tasks run there once more, one after the other; where a program is wrong or crashes the next
    of its task is tried, in another fresh process.
    Raises: MeasureError when the workers cannot work at all.
    """
    runner.restart()
    return [_confirmed(programs, runner) for programs in timed]


def choose_best(task: SearchTask, programs: Sequence[BestProgram], builder: Builder, runner: Runner) -> Confirmation:
    """Time `programs` and the default schedule again, and take the fastest that is right. Raises: as `time_again`."""
    return confirm_fastest([time_again(task, programs, builder, runner)], runner)[0]


def _confirmed(timed: TimedPrograms, runner: Runner) -> Confirmation:
    seconds, results = timed.seconds, list(timed.results)
    untuned = len(timed.programs)
    order = sorted(
        (index for index in range(untuned) if math.isfinite(seconds[index])), key=lambda index: seconds[index]
    )
    for index in order:
        # Sorted by time: from here on none beats the default schedule.
        if seconds[index] >= seconds[untuned]:
            break
        # A program that is right only on what its own earlier runs left in memory fails here.
        (again,) = runner.run(timed.task, [timed.builds[index]])
        if again.status is MeasureStatus.OK:
            return _confirmation(replace(timed, results=results), index)
        results[index] = replace(again, error=f"in a fresh process: {again.error}")
        runner.restart()
    return _confirmation(replace(timed, results=results), untuned)


def _interleaved(
    task: SearchTask, builds: Sequence[BuiltProgram], results: Sequence[Measurement], runner: Runner
) -> list[Measurement] | None:
    """The results; those in reach of the fastest with the times and the contention of a comparison in turn. None when
    the process was lost that compared them.
    """
    seconds = [min(result.costs, default=math.inf) for result in results]
    close = [index for index, each in enumerate(seconds) if each <= REACH * min(seconds) and math.isfinite(each)]
    if len(close) < 2:
        return list(results)
    compared = runner.compare(task, [builds[index] for index in close])
    if compared is None:
        return None
    timed = list(results)
    for index, again in zip(close, compared, strict=True):
        timed[index] = replace(results[index], costs=again.costs, contention=again.contention)
    return timed


def _confirmation(timed: TimedPrograms, index: int) -> Confirmation:
    """The program at `place` serves; after the last one stands the default schedule."""
    task, programs, seconds = timed.task, timed.programs, timed.seconds
    rejected = tuple(
        f"{program.record_id or 'a guess'}: {_failure(result)}"
        for program, result in zip(programs, timed.results, strict=False)
        if result.status is not MeasureStatus.OK
    )
    chosen = programs[index] if index < len(programs) else None
    # The default schedule's kernel too: the network is compiled once more with it alone, for the comparison.
    kept = ((timed.steps[each], timed.builds[each].artifact) for each in (index, len(programs)))
    kernels = {text: kernel for text, kernel in kept if kernel is not None}
    about = task.workload_key, task.name, chosen
    return Confirmation(
        *about,
        seconds[-1],
        seconds[index],
        rejected,
        measured=timed.results[index],
        kernels=kernels,
        default_steps=timed.steps[-1],
        tried=len(programs),
    )


def _failure(result: Measurement) -> str:
    """Why a program failed, in one line."""
    return f"{result.status.name}: {result.error.strip().partition(chr(10))[0]}"
