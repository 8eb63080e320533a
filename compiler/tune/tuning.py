"""A tuning run: what to measure next, and the records of what was measured.

One policy per task proposes programs (`ask`) and learns (`tell`); the loop that gives rounds to tasks is `TuningLoop`.
The state is a function of the seed, the options and the records. A round is stored before it is told, so a state
rebuilt by `replay` from the store is what an uninterrupted process would have.
"""

import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import groupby

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core import config
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.measure.record import DEFAULT_SCHEDULE, Measurement, MeasureRecord, MeasureStatus, TaskProgram
from retune.compiler.model import CostModel
from retune.compiler.model.base import ModelMetrics, TrainingBatch
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.schedule.default.shares import are_small, expected_bytes
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.protocol import Policy
from retune.compiler.search.task_scheduler import network_latency
from retune.compiler.search.transfer import fastest
from retune.compiler.tune.tuning_loop import TaskProgress, TuningLoop, first_state

_NUMBER = re.compile(r"(0x[0-9a-f]+|\d+(\.\d+)?(e[-+]?\d+)?)", re.IGNORECASE)
"""What may differ between the messages of the same failure."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What every record of a run has in common, or of a round, with its number and the run's clock in seconds at its
    end. `options` is the JSON text of the measurement options.
    """

    run_id: str
    network: str
    target: str
    device: str
    threads: int
    seed: int
    options: str
    round: int = 0
    elapsed: float = 0.0

    def record(self, task: SearchTask, program: TaskProgram, measured: Measurement, record_id: str) -> MeasureRecord:
        """The row of a measured program of a task."""
        return MeasureRecord(
            record_id=record_id,
            task_key=task.workload_key,
            task_name=task.name,
            steps=program.steps,
            parent_id=program.parent_id,
            mutation=program.mutation,
            predicted=program.predicted,
            engine_version=config.engine_version(),
            llvm_version=config.llvm_version(),
            timestamp=time.time(),
            costs=measured.costs,
            status=measured.status,
            error=measured.error,
            build_seconds=measured.build_seconds,
            run_seconds=measured.run_seconds,
            censored=measured.censored,
            contention=measured.contention,
            shapes=measured.shapes,
            **asdict(self),
        )


@dataclass(slots=True, kw_only=True)
class TunedTask(TaskProgress):
    """One task of a run with its policy, which is made for its first round, and everything known about it."""

    weight: int
    make_policy: Callable[[], Policy]
    known: set[str] = field(default_factory=set)
    trials: int = 0
    default_seconds: float = math.inf
    candidate_seconds: float = math.inf
    failed_rules: tuple[str, ...] = ()

    @property
    def policy(self) -> Policy:
        """What proposes its programs."""
        return self.make_policy()


@dataclass(frozen=True, slots=True)
class TuningSummary:
    """What a run has spent, in trials and seconds, and where every task stands; `contention` is that of a typical
    trial.
    """

    trials: int
    elapsed: float
    rounds: int
    rows: tuple[KernelRow, ...]
    contention: float = 0.0


class Tuning(TuningLoop[TunedTask]):
    """A run in progress, its tasks in the order of the partition."""

    def __init__(
        self,
        run_info: RunHeader,
        tasks: Sequence[SearchTask],
        weights: Sequence[int],
        make_policy: Callable[[SearchTask], Policy],
        model: XGBModel | None = None,
        layers: Sequence[int] = (),
        scheduler: SchedulerOptions | None = None,
    ) -> None:
        """A run before its first round; `model` is the model that the policies share, if any. Tasks with the
        same number in `layers` compute the same result; without numbers each task has its own. `scheduler` says how
        rounds are given to tasks.
        """
        numbers = list(layers) or list(range(len(tasks)))
        names = [f"layer {number}" if numbers.count(number) > 1 else "" for number in numbers]
        policies = [cache(partial(make_policy, task)) for task in tasks]
        tuned = (
            TunedTask(task, first_state(task, float(weight), name), weight=weight, make_policy=policy)
            for task, weight, name, policy in zip(tasks, weights, names, policies, strict=True)
        )
        super().__init__(tuned, scheduler, seed=run_info.seed)
        self.run_info = run_info
        self.model = model
        for task, small in zip(self.tasks, are_small(tasks, weights), strict=True):
            if small:  # its time is no part of the estimated latency: nothing measures it before the end
                task.stop_reason = "too small a share of the network's time for trials"
                task.state = replace(task.state, exhausted=True, weight=0.0)
        self._contention: list[float] = []

    @property
    def latency_so_far(self) -> float:
        """The part of `latency` that is known, in seconds: a lower bound while some tasks have no time yet."""
        return network_latency([task.state for task in self.tasks if math.isfinite(task.state.best_seconds)])

    @property
    def untimed(self) -> int:
        """How many kernels that count for the latency have no time in any way to compute them."""
        best: dict[str, float] = {}
        for number, state in enumerate(task.state for task in self.tasks if task.state.weight > 0.0):
            layer = state.layer or f"task {number}"
            best[layer] = min(state.best_seconds, best.get(layer, math.inf))
        return sum(map(math.isinf, best.values()))

    def row(self, index: int) -> KernelRow:
        """Task `index` as it stands."""
        task = self.tasks[index]
        return KernelRow(
            name=task.task.name,
            task_key=task.task.workload_key,
            weight=task.weight,
            flops=task.task.flop_count,
            rounds=task.state.rounds,
            trials=task.trials,
            default_seconds=task.default_seconds,
            best_seconds=task.state.best_seconds,
            stop_reason=task.stop_reason,
            moved_bytes=expected_bytes(task.task),
            behind=self.is_behind(index),
            layer=task.state.layer,
            failed_rules=task.failed_rules,
        )

    def summary(self) -> TuningSummary:
        """The whole run as it stands."""
        rows = tuple(self.row(index) for index in range(len(self.tasks)))
        return TuningSummary(self.trials, self.elapsed, self.rounds, rows, typical(self._contention))

    def replay(
        self,
        history: Mapping[str, Sequence[MeasureRecord]],
        own: Iterable[MeasureRecord],
        training_data: Sequence[TrainingBatch] = (),
        foreign: Iterable[MeasureRecord] = (),
    ) -> None:
        """Bring the state to where the records end.

        `history` holds, by task key, what earlier runs measured: it is learned but is no part of this run's budget.
        `own` holds the records of this run; they are told round by round, in the order of their rounds. `training_data`
        are what the models of earlier runs knew; of those the tasks of other networks are learned. `foreign` are good
        programs of tasks that are none of this run's, for tasks that are like them.
        """
        self._foreign = tuple(record.program for record in foreign if record.costs)
        # Only the trainings that the final model depends on are done: a resumed run starts in seconds.
        with nullcontext() if self.model is None else self.model.retracing():
            if self.model is not None:
                keys = {task.task.workload_key for task in self.tasks}
                for task in self.tasks if training_data else ():
                    if task.task.shapes and isinstance(task.policy, BlockSearch):
                        keys |= task.policy.block_keys
                # Those of own tasks are left out: their records are replayed, and would count twice.
                self.model.learn([batch for batch in training_data if batch.task_key not in keys])
            self._replay(history, own)

    def _replay(self, history: Mapping[str, Sequence[MeasureRecord]], own: Iterable[MeasureRecord]) -> None:
        for task in self.tasks:
            measured = (record.over(task.task.sample) for record in history.get(task.task.workload_key, ()))
            known = [record for record in measured if record is not None]
            if known:
                self._learn(task, known)
                task.fastest = fastest((*(record.program for record in known), *task.fastest))
                task.candidate_seconds = min(
                    (record.seconds for record in known if record.is_unsearched), default=math.inf
                )
                if not all(record.is_unsearched for record in known):  # never searched
                    task.state = replace(task.state, best_seconds=min(record.seconds for record in known))
        self.end_losers()
        by_key = {task.task.workload_key: index for index, task in enumerate(self.tasks)}
        # Stable: within a round the stored order is the order in which programs were told.
        mine = sorted((record for record in own if record.task_key in by_key), key=lambda record: record.round)
        for key in {record.task_key for record in mine}:
            policy = self.tasks[by_key[key]].policy
            if isinstance(policy, SketchPolicy):
                policy.expect(record.steps for record in mine if record.task_key == key)
        for _, group in groupby(mine, key=lambda record: (record.round, record.task_key)):
            records = tuple(group)
            self.tell(by_key[records[0].task_key], records)

    def ask(self, index: int, count: int, spent: float = 0.0) -> tuple[TaskProgram, ...]:
        """Up to `count` unmeasured programs of a task; the first round begins with the default schedule.
        May be empty. `spent` is the share of the run's budget that is gone.
        """
        task = self.tasks[index]
        first: tuple[TaskProgram, ...] = ()
        # The default schedule is measured first: the report's speedup and the confirmation compare with it.
        if task.state.rounds == 0:
            default = default_program(task.task)
            first = () if default.steps in task.known else (default,)
        if count > len(first):
            asked = self._ask(index, count - len(first), spent)
            first = (*first, *(candidate for candidate in asked if candidate.steps not in task.known))
        return first

    def _ask(self, index: int, count: int, spent: float) -> tuple[TaskProgram, ...]:
        task = self.tasks[index]
        policy = task.policy
        if isinstance(policy, SketchPolicy):
            policy.warm_start(self.advice(index))
        if isinstance(policy, SketchPolicy | BlockSearch):
            return policy.ask(count, task.state.rounds, spent)
        return policy.ask(count, task.state.rounds)

    def records_of(
        self,
        index: int,
        candidates: Sequence[TaskProgram],
        measurements: Sequence[Measurement],
        elapsed: float,
        new_id: Callable[[], str],
    ) -> tuple[MeasureRecord, ...]:
        """The rows of one measured round, in the order of the candidates. `elapsed` is the run's clock now."""
        task, run_info = self.tasks[index].task, replace(self.run_info, round=self.rounds, elapsed=elapsed)
        return tuple(
            run_info.record(task, program, measured, new_id())
            for program, measured in zip(candidates, measurements, strict=True)
        )

    def tell(self, index: int, records: Sequence[MeasureRecord]) -> None:
        """Learn one stored round. A first round that fails as a whole in one way ends the task, with the reason in
        `stop_reason`.
        """
        task = self.tasks[index]
        is_first = task.state.rounds == 0 and math.isinf(task.state.best_seconds)
        self._learn(task, records)
        task.trials += len(records)
        before = self.rounds
        failure = common_failure(records) if is_first else ""
        self.finish_round(index, [record.program for record in records], failure, task.candidate_seconds)
        self.rounds = max([before, *(record.round + 1 for record in records)])
        # max: records of one round may be told in any order, and the clock never goes back.
        self.elapsed = max([self.elapsed, *(record.elapsed for record in records)])
        self._contention += contention_of(records)

    @property
    def metrics(self) -> ModelMetrics | None:
        """How well the model predicted the latest round; None while it knew too little."""
        return None if self.model is None else self.model.last_metrics

    def _learn(self, task: TunedTask, records: Sequence[MeasureRecord]) -> None:
        task.policy.tell([record.program for record in records])
        task.failed_rules = tuple(getattr(task.policy, "failed_rules", ()))
        task.known.update(record.steps for record in records)
        defaults = [record.seconds for record in records if record.mutation == DEFAULT_SCHEDULE]
        task.default_seconds = min([task.default_seconds, *defaults])


def begin(
    tasks: Sequence[SearchTask],
    weights: Sequence[int],
    run_info: RunHeader,
    options: SearchOptions | None = None,
    layers: Sequence[int] = (),
    scheduler: SchedulerOptions | None = None,
) -> Tuning:
    """A run before its first round: a policy for every task, all learning into one boosted-tree model. `layers`
    says which tasks compute the same and `scheduler` how rounds are given to them, see `Tuning`.
    """
    model = XGBModel(
        seed=run_info.seed, threads=1
    )  # one thread: no idle threads that spin beside the programs being timed
    chosen = options or SearchOptions()
    return Tuning(
        run_info,
        tasks,
        weights,
        lambda task: policy_of(task, model, chosen, run_info.seed),
        model,
        layers,
        scheduler,
    )


def policy_of(task: SearchTask, model: CostModel, options: SearchOptions, seed: int = 0) -> SketchPolicy | BlockSearch:
    """The search for programs of a task: by sizes of blocks, if it has a sample of shapes."""
    return (BlockSearch if task.shapes else SketchPolicy)(task, model, options, seed)


def default_program(task: SearchTask) -> TaskProgram:
    return TaskProgram(task.workload_key, dump_steps(default_steps_of(task)), mutation=DEFAULT_SCHEDULE)


def contention_of(records: Iterable[MeasureRecord]) -> list[float]:
    return [record.contention for record in records if record.contention is not None]


def typical(shares: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    return statistics.median([*shares] or [0.0])


def common_failure(records: Sequence[MeasureRecord]) -> str:
    """The one reason for which all of at least two records failed; empty when they did not, or not alike."""
    reasons = {(record.status, cause_of(record.error)) for record in records}
    # One failure proves nothing: the next program may work.
    if len(records) < 2 or len(reasons) != 1 or records[0].status is MeasureStatus.OK:
        return ""
    return (
        f"all {len(records)} programs of its first round failed alike ({records[0].status.name}): "
        f"{_headline(records[0].error)}"
    )


def cause_of(error: str) -> str:
    """What failures that are alike have in common: the first line of the text, without its numbers."""
    return _NUMBER.sub("#", _headline(error))


def _headline(error: str) -> str:
    """The first line of an error text."""
    return error.strip().partition("\n")[0]
