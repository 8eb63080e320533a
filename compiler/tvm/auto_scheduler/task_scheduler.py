"""TVM's scheduler of several tasks: each round goes to the task with the largest expected gain.

The loop and its decisions are those of `retune.compiler.tune.tuning_loop`.

Differences from TVM:

* a run is repeatable: there is a `seed`, and ties go to the task with fewer rounds;
* a task without a valid program keeps getting rounds, and an empty round ends only its own task;
* a run that begins with a log has the whole history of every task, round by round, and each task uses the records of
  its own target; the budget applies to each call of `tune`;
* a call of `tune` knows the measurements of earlier calls, and repeats none;
* towards the end of the budget the neighbors of the best programs get a part, and tasks of the same structure share
  their best programs;
* the table of latencies is appended to, never deleted;
* tasks of the same structure form groups automatically; `gamma` has no meaning, as in TVM.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import OptionError, StoreError
from retune.compiler.core.options import SchedulerOptions
from retune.compiler.measure.logs.log import code_target, read_log
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import XGBOptions
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.task_scheduler import UNKNOWN_SECONDS, TaskState
from retune.compiler.search.transfer import fastest
from retune.compiler.tune.tuning_loop import Budget, Round, TaskProgress, TuningLoop, first_state
from retune.compiler.tvm.auto_scheduler.cost_model import CostModel, RandomModel, XGBModel, seed_of
from retune.compiler.tvm.auto_scheduler.measure import ProgramMeasurer, TuningOptions
from retune.compiler.tvm.auto_scheduler.search_policy import (
    PreloadMeasuredStates,
    SearchPolicy,
    SketchPolicy,
    finish_round,
    measured_programs,
    search_policy_of,
)

_log = logging.getLogger(__name__)


class TaskSchedulerCallback:
    """Called before and after every round. Override as needed."""

    def pre_tune(self, task_scheduler: "TaskScheduler", task_id: int) -> None:
        """Called before a round of task `task_id`."""

    def post_tune(self, task_scheduler: "TaskScheduler", task_id: int) -> None:
        """Called after a round of task `task_id`."""


TABLE_TRIALS = 64
"""Trials between printed tables of tasks: TVM's default round."""


class PrintTableInfo(TaskSchedulerCallback):
    """Writes to `stream` (the standard output), before every round, one line about the run; before the first round, and
    after each `TABLE_TRIALS` further trials, also a table of all tasks.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream
        self._trials: int | None = None

    def pre_tune(self, task_scheduler: "TaskScheduler", task_id: int) -> None:
        """Write the line, and the table if it is due."""
        stream = self.stream or sys.stdout
        if self._trials is None or not 0 <= task_scheduler.ct - self._trials < TABLE_TRIALS:
            self._trials = task_scheduler.ct
            stream.write(f"{table_of(task_scheduler)}\n")
        stream.write(f"{_summary(task_scheduler)}\tNext ID: {task_id}\n")
        stream.flush()


class LogEstimatedLatency(TaskSchedulerCallback):
    """Appends the run's time, latency and trials to a file after every round."""

    def __init__(self, log_file: str | Path = "total_latency.tsv") -> None:
        self.log_file = Path(log_file)

    def post_tune(self, task_scheduler: "TaskScheduler", task_id: int) -> None:  # noqa: ARG002
        """Append one line.

        Raises: StoreError when the file cannot be written.
        """
        latency = "N/A" if task_scheduler.dead_ends() else f"{task_scheduler.cur_score * 1e3:.3f}"
        line = (
            f"ElapsedTime(s)\t{time.monotonic() - task_scheduler.tic:.0f}\t"
            f"EstimatedLatency(ms)\t{latency}\tTrials\t{task_scheduler.ct}\n"
        )
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise StoreError(f"the latency log {self.log_file} cannot be written: {error}; name another file") from None


class TaskScheduler:
    """Tunes several tasks, each round for the task with the largest expected gain.

    The objective is `objective_func` of the best seconds of every task (1e10 without a valid program), by default the
    sum of the times, weighted with `task_weights`. `strategy` is "gradient" or "round-robin"; `alpha`, `beta` and
    `backward_window_size` steer the gradient, see `retune.compiler.search.task_scheduler`. `load_log_file` is a log to
    begin with, `load_model_file` a saved `XGBModel`. `callbacks` default to `PrintTableInfo` and `LogEstimatedLatency`.
    Raises: OptionError for invalid values.
    """

    def __init__(
        self,
        tasks: Sequence[SearchTask],
        task_weights: Sequence[float] | None = None,
        objective_func: Callable[[Sequence[float]], float] | None = None,
        strategy: str = "gradient",
        load_model_file: str | Path | None = None,
        load_log_file: str | Path | None = None,
        alpha: float = 0.2,
        beta: float = 2,
        gamma: float = 0.5,
        backward_window_size: int = 3,
        callbacks: Sequence[TaskSchedulerCallback] | None = None,
        *,
        seed: int = 0,
    ) -> None:
        weights = [1.0] * len(tasks) if task_weights is None else list(task_weights)
        if not tasks or len(weights) != len(tasks):
            raise OptionError(f"there must be tasks, and a weight for each: {len(tasks)} tasks, {len(weights)} weights")
        if not all(0.0 <= weight < math.inf for weight in weights):
            raise OptionError(f"the weights of tasks must be finite and not negative: {weights}")
        self.tasks = list(tasks)
        self.task_weights = weights
        self.objective_func = objective_func
        self.strategy = strategy
        self.load_model_file = load_model_file
        self.load_log_file = load_log_file
        self.gamma = gamma
        self.options = SchedulerOptions(strategy, alpha, float(beta), backward_window_size)
        self.callbacks = [PrintTableInfo(), LogEstimatedLatency()] if callbacks is None else list(callbacks)
        self.seed = seed_of(seed)
        self.loop = TuningLoop(
            [TaskProgress(task, first_state(task, float(weight))) for task, weight in zip(tasks, weights, strict=True)],
            self.options,
            objective_func,
        )
        self.policies: list[Any] = []
        self.num_measures_per_round = 1
        self.tic = time.monotonic()
        self._made_by: tuple[Any, ...] = ()
        self._measured: list[list[TaskProgram]] = [[] for _ in tasks]

    @property
    def ct(self) -> int:
        """Number of programs measured in the run."""
        return self.loop.trials

    @ct.setter
    def ct(self, trials: int) -> None:
        self.loop.trials = trials

    @property
    def states(self) -> list[TaskState]:
        return self.loop.states

    @property
    def best_costs(self) -> NDArray[np.float64]:
        """Best seconds of every task, 1e10 if unknown; settable."""
        # 1e10 as in TVM: objective functions of scripts add and multiply these, and infinity would give NaN.
        return np.array([min(state.best_seconds, UNKNOWN_SECONDS) for state in self.states])

    @best_costs.setter
    def best_costs(self, seconds: Sequence[float]) -> None:
        for task, cost in zip(self.loop.tasks, seconds, strict=True):
            best = math.inf if cost >= UNKNOWN_SECONDS else float(cost)
            task.state = replace(task.state, best_seconds=best)

    @property
    def task_cts(self) -> list[int]:
        """Number of rounds of every task."""
        return [state.rounds for state in self.states]

    @property
    def dead_tasks(self) -> set[int]:
        """The tasks that get no further rounds."""
        return {index for index, state in enumerate(self.states) if state.exhausted}

    @property
    def cur_score(self) -> float:
        """The current value of the objective."""
        costs = [float(cost) for cost in self.best_costs]
        if self.objective_func is not None:
            return float(self.objective_func(costs))
        return math.fsum(weight * cost for weight, cost in zip(self.task_weights, costs, strict=True))

    def dead_ends(self) -> bool:
        """Whether a task has no valid program yet, so that the objective is meaningless."""
        return any(math.isinf(state.best_seconds) for state in self.states)

    def tune(
        self,
        tune_option: TuningOptions,
        search_policy: str | Sequence[Any] = "default",
        search_policy_params: Mapping[str, Any] | None = None,
        adaptive_training: bool = False,
        per_task_early_stopping: int | None = None,
    ) -> None:
        """Measure `tune_option.num_measure_trials` programs of all tasks together.

        `search_policy` is "default" or "sketch.xgb" (one boosted-tree model for all tasks), "sketch.random", or a
        policy for each task. A task ends after more than `per_task_early_stopping` measurements without gain; all end
        after the options' `early_stopping` measurements without an improvement of the objective.
        Raises: OptionError, LogFormatError; MeasureError, DeviceError like `SearchTask.tune`.
        """
        trials = tune_option.num_measure_trials
        # Every task must get its warm-up round out of the trials, as in TVM.
        self.num_measures_per_round = min(tune_option.num_measures_per_round, trials // len(self.tasks))
        if self.num_measures_per_round < 1:
            raise OptionError(
                f"{trials} trials are too few for {len(self.tasks)} tasks: num_measure_trials must be at least "
                f"{len(self.tasks)}"
            )
        if self.load_log_file is not None and not self.policies:
            self._restore(Path(self.load_log_file))
        made_by = (search_policy, dict(search_policy_params or {}), adaptive_training)
        # Policies are kept between calls of `tune`, with their training, unless others are requested.
        if made_by != self._made_by:
            self.policies = self._policies(search_policy, search_policy_params, tune_option, adaptive_training)
            self._made_by = made_by
        self.tic = time.monotonic()
        self.loop.objective = self.objective_func
        self.loop.restart()
        for index in range(len(self.tasks)):
            self._end_when_stalled(index, per_task_early_stopping)
        # TVM's rounds have a fixed size, so none is smaller for small budgets.
        budget, patience = Budget(trials, None, rounds_each=0), tune_option.early_stopping or 0
        with ProgramMeasurer.of(tune_option, self.tasks) as measurer:
            for round_ in self.loop.rounds_until(budget, self.num_measures_per_round, patience):
                self._tune_round(round_, measurer)
                self._end_when_stalled(round_.index, per_task_early_stopping)
        if self.loop.ended:
            _log.info("%s", self.loop.ended)

    def _tune_round(self, round_: Round, measurer: ProgramMeasurer) -> None:
        index, policy = round_.index, self.policies[round_.index]
        for callback in self.callbacks:
            callback.pre_tune(self, index)
        if isinstance(policy, SearchPolicy):
            policy.spent = round_.spent
            policy.warm_start(self.loop.advice(index))
        inputs, results = policy.continue_search_one_round(round_.count, measurer)
        programs = measured_programs(inputs, results)
        self._measured[index] += programs
        finish_round(self.loop, index, programs, measurer)
        for callback in self.callbacks:
            callback.post_tune(self, index)

    def _end_when_stalled(self, index: int, patience: int | None) -> None:
        unimproved = self.states[index].rounds_without_gain * self.num_measures_per_round
        if patience is not None and unimproved > patience:
            self.loop.exhaust(index, f"{unimproved} measurements brought nothing")

    def _policies(
        self,
        policy: str | Sequence[Any],
        params: Mapping[str, Any] | None,
        options: TuningOptions,
        adaptive_training: bool,
    ) -> list[Any]:
        if not isinstance(policy, str):
            if len(policy) != len(self.tasks):
                raise OptionError(f"each task needs a policy: {len(self.tasks)} tasks, {len(policy)} policies")
            return [search_policy_of(task, user_policy) for task, user_policy in zip(self.tasks, policy, strict=True)]
        model = self._model(policy, adaptive_training)
        preload = [] if self.load_log_file is None else [PreloadMeasuredStates(self.load_log_file)]
        policies = [
            SketchPolicy(task, model, params, self.seed, options.verbose, init_search_callbacks=preload)
            for task in self.tasks
        ]
        for new_policy, programs in zip(policies, self._measured, strict=True):
            new_policy.preload(programs)
        return policies

    def _model(self, policy: str, adaptive_training: bool) -> CostModel:
        if policy == "sketch.random":
            return RandomModel(seed=self.seed)
        if policy not in ("default", "sketch.xgb"):
            raise OptionError(f"search_policy must be 'default', 'sketch.xgb' or 'sketch.random', not {policy!r}")
        warmup = XGBOptions().warmup
        model = XGBModel(num_warmup_sample=warmup, seed=self.seed, adapative_training=adaptive_training)
        if self.load_model_file is not None and Path(self.load_model_file).exists():
            model.load(self.load_model_file)
        elif self.load_log_file is not None and Path(self.load_log_file).exists():
            model.update_from_file(self.load_log_file)
        return model

    def _restore(self, log: Path) -> None:
        """Restore every task's progress from the records of the log, in rounds of the current size."""
        if not log.exists():
            _log.warning("there is no log %s yet: nothing to begin with", log)
            return
        trials = list(read_log(log))
        for progress in self.loop.tasks:
            key, target = progress.task.workload_key, code_target(str(progress.task.target))
            programs = [
                trial.program
                for trial in trials
                if trial.task.workload_key == key and code_target(trial.task.target_text) == target
            ]
            progress.fastest = fastest((*programs, *progress.fastest))
            # Records have no rounds: cut into pieces of the current size they give the gradient its history.
            progress.state = replace(progress.state, rounds=0, best_seconds=math.inf, history=())
            for start in range(0, len(programs), self.num_measures_per_round):
                measured = programs[start : start + self.num_measures_per_round]
                progress.state = progress.state.after_round(min(program.seconds for program in measured))


def table_of(scheduler: TaskScheduler) -> str:
    """A table of all tasks: latency, speed and trials of each."""
    lines = [
        "-" * 86,
        f"| {'ID':>4} | {'Task Description':<30} | {'Latency (ms)':>12} | {'Speed (GFLOPS)':>14} | {'Trials':>6} |",
        "-" * 86,
    ]
    for index, (task, state) in enumerate(zip(scheduler.tasks, scheduler.states, strict=True)):
        known = math.isfinite(state.best_seconds)
        latency = f"{state.best_seconds * 1e3:.3f}" if known else "-"
        speed = f"{task.flop_count / state.best_seconds / 1e9:.2f}" if known and task.flop_count > 0 else "-"
        trials = state.rounds * scheduler.num_measures_per_round
        lines.append(f"| {index:>4} | {task.name[:30]:<30} | {latency:>12} | {speed:>14} | {trials:>6} |")
    return "\n".join([*lines, "-" * 86])


def _summary(scheduler: TaskScheduler) -> str:
    """A summary of the run, in one line."""
    total = "-" if scheduler.dead_ends() else f"{scheduler.cur_score * 1e3:.3f} ms"
    used = time.monotonic() - scheduler.tic
    return f"Estimated total latency: {total}\tTrials: {scheduler.ct}\tUsed time: {used:.0f} s"
