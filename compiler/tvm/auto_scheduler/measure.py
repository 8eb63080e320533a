"""TVM-compatible measurement: builders, runners, `ProgramMeasurer`, callbacks and tuning options.

Results are in the order of the programs. A failing program yields a failed result, whatever it does to its worker
process; only failures of the infrastructure and errors of the caller raise.

Differences from TVM:

* a failed result has no costs, instead of a cost of 1e10 seconds, and its full message; a log does not store messages;
* too many failures in a row end the search, where TVM only becomes more verbose;
* the best program has the fastest repeat, since other load only slows repeats down, even if its operations cannot be
  counted; TVM compares operations per mean second;
* the arrays for special inputs are checked before anything is built, so a wrong array does not end a run midway; a dead
  worker is a failed result.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice, starmap
from typing import Any, Protocol, runtime_checkable

from retune.compiler.core.closing import Closing
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import DeviceError, MeasureError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.measure import builder as builders
from retune.compiler.measure import runner as runners
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial, is_timed
from retune.compiler.measure.measurer import LocalMeasurer, Measurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.fleet import FleetRunner
from retune.compiler.measure.runner import RUNNERS, runner_for
from retune.compiler.measure.task_inputs import special_inputs
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tvm.auto_scheduler.loop_state import State

_log = logging.getLogger(__name__)

MeasureErrorNo = MeasureStatus
"""The end of a measurement, by TVM's numbers."""

# TVM's default.
MAX_CONTINUOUS_ERROR = 150
"""Default number of failures in a row after which a search gives up."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The program of a record: its steps, without the resulting loops."""

    steps: tuple[Step, ...]

    @property
    def transform_steps(self) -> tuple[Step, ...]:
        return self.steps


@dataclass(frozen=True, slots=True)
class MeasureInput:
    """A program of a task. From a record it is light: without computation and loops, see `recover_measure_input`."""

    task: SearchTask | LoggedTask
    state: State | RecordedState

    def serialize(self) -> "tuple[SearchTask | LoggedTask, tuple[Step, ...]]":
        """Plain data for another process: the task, with its registered workload, and the steps."""
        return self.task, self.state.steps

    @staticmethod
    def deserialize(data: "tuple[SearchTask | LoggedTask, tuple[Step, ...]]") -> "MeasureInput":
        """The inverse of `serialize`, light."""
        return MeasureInput(data[0], RecordedState(data[1]))


recover_measure_input: Callable[..., MeasureInput]
"""The function of `measure_record`, set by the package for TVM's scripts."""


class Cost(float):
    """Seconds of one call. TVM's scripts read them as `cost.value`."""

    @property
    def value(self) -> float:
        return float(self)


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The result of a measurement. `costs` are seconds per call, empty after a failure. `all_cost` is the seconds of
    building and running, `timestamp` is in seconds since 1970.
    """

    costs: tuple[float, ...]
    error_no: MeasureStatus
    error_msg: str
    all_cost: float
    timestamp: float

    def __post_init__(self) -> None:
        # TVM's costs are FloatImm nodes: scripts read `cost.value`.
        object.__setattr__(self, "costs", tuple(map(Cost, self.costs)))

    @classmethod
    def of(cls, measured: Measurement) -> "MeasureResult":
        """The current measurement as a result."""
        elapsed = measured.build_seconds + measured.run_seconds
        return cls(measured.costs, measured.status, measured.error, elapsed, time.time())

    @property
    def seconds(self) -> float:
        """The decisive cost: the fastest repeat; infinite for a failure."""
        failed = self.error_no != MeasureStatus.OK
        return math.inf if failed else min(self.costs, default=math.inf)


class LocalBuilder(builders.LocalBuilder):
    __doc__ = builders.LocalBuilder.__doc__

    def build(self, measure_inputs: Any, verbose: Any = 1) -> list[Measurement]:
        """Build programs of any tasks. Like the compiler's builder it also takes a task and candidates."""
        if isinstance(measure_inputs, SearchTask):
            return super().build(measure_inputs, verbose)
        return list(chain(*starmap(super().build, _by_task(measure_inputs))))


class InputRunner:
    """Gives a runner of the compiler TVM's form of `run`, besides its own."""

    def run(self, measure_inputs: Any, build_results: Sequence[Measurement], verbose: Any = None) -> list[Any]:
        """Time results of `LocalBuilder.build`; also takes a task, builds and best seconds."""
        run: Callable[..., list[Any]] = getattr(super(), "run")  # noqa: B009 - no method of the base that mypy knows
        if isinstance(measure_inputs, SearchTask):
            return run(measure_inputs, build_results, verbose)
        left, results = iter(build_results), list[MeasureResult]()
        for task, steps in _by_task(measure_inputs):
            builds = list(islice(left, len(steps)))
            if isinstance(self, runners.LocalRunner) and task.target.is_gpu:
                with runner_for(task.target, self.options) as on_gpu:
                    results += map(MeasureResult.of, on_gpu.run(task, builds))
            else:
                results += map(MeasureResult.of, run(task, builds))
        return results


class LocalRunner(InputRunner, runners.LocalRunner):
    """Times kernels on this machine with `threads` threads, by default a thread for every CPU.

    The first six parameters are those of TVM's runner, with its defaults: `timeout` and `cooldown_interval` are in
    seconds. `MeasureOptions` says what each means; runs of Retune use its defaults.
    """

    def __init__(
        self,
        timeout: float = 10.0,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 100.0,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        *,
        threads: int | None = None,
        check: bool = True,
    ) -> None:
        super().__init__(
            MeasureOptions(
                len(usable_cpus()) if threads is None else threads,
                run_timeout_s=timeout,
                number=number,
                repeat=repeat,
                min_repeat_ms=min_repeat_ms,
                cooldown_interval=cooldown_interval,
                enable_cpu_cache_flush=enable_cpu_cache_flush,
                check=check,
            )
        )


def _by_task(inputs: Sequence[MeasureInput]) -> Iterator[tuple[SearchTask, list[tuple[Step, ...]]]]:
    """Each task, with the steps of its consecutive inputs."""
    if not isinstance(inputs, Sequence) or not all(isinstance(inp, MeasureInput) for inp in inputs):
        raise OptionError(f"a list of MeasureInput is needed, not {inputs!r:.80}")
    for _, group in groupby(inputs, lambda inp: id(inp.task)):
        programs = list(group)
        yield _plain(_require_graph(programs[0])), [inp.state.steps for inp in programs]


def trial_of(inp: MeasureInput, result: MeasureResult) -> LoggedTrial:
    """A measurement as a log entry; a log cannot express success without a time, which becomes an unknown failure."""
    task = inp.task
    if isinstance(task, LoggedTask):
        logged = task
    else:
        host = getattr(task, "target_host", None)
        logged = LoggedTask.of(task, "" if host is None else str(host), getattr(task, "task_input_names", ()))
    status = MeasureStatus(result.error_no)
    costs = tuple(float(cost) for cost in result.costs) if status is MeasureStatus.OK else ()
    if status is MeasureStatus.OK and not is_timed(costs):
        status, costs = MeasureStatus.UNKNOWN, ()
    return LoggedTrial(logged, inp.state.steps, costs, status, float(result.all_cost), int(result.timestamp))


def measurement_of(trial: LoggedTrial) -> tuple[MeasureInput, MeasureResult]:
    """A line of a log as a measurement, light."""
    inp = MeasureInput(trial.task, RecordedState(trial.steps))
    return inp, MeasureResult(trial.costs, trial.status, "", trial.elapsed, trial.timestamp)


def announce(logger: logging.Logger, verbose: int, text: str) -> None:
    """Report the progress of a search, unless `verbose` is 0: in the log if it shows INFO, else on standard output."""
    if not verbose or logger.isEnabledFor(logging.INFO):
        logger.log(logging.INFO if verbose else logging.DEBUG, "%s", text)
    else:
        sys.stdout.write(f"{text}\n")
        # Notebooks and pipes buffer: progress is useful only while it happens.
        sys.stdout.flush()


@runtime_checkable
class MeasureCallback(Protocol):
    """A callback that receives every round of measurements."""

    def callback(self, policy: Any, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Called with the programs of one task and their results, in order; `policy` is the calling search policy."""


class PythonBasedMeasureCallback:
    """A base class for custom callbacks; any class with the same method works."""

    def callback(self, policy: Any, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Override this."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """The amount and kind of measurements. Raises: OptionError for invalid values."""

    num_measure_trials: int = 0
    """Number of programs to measure; with 0 the search returns its first candidate (in TVM with 1 too)."""
    early_stopping: int | None = None
    """The search ends after more than this many measurements without an improvement."""
    num_measures_per_round: int = 64
    """Programs measured together."""
    verbose: int = 1
    """With 0 the search is silent, else it reports progress: in the log if that shows INFO, else on standard output."""
    builder: builders.LocalBuilder | str = "local"
    """Either "local" or a `LocalBuilder`."""
    runner: runners.LocalRunner | FleetRunner | Measurer | str = "local"
    """Either "local", a `LocalRunner`, an `RPCRunner`, or anything with the method `measure` of
    `retune.compiler.measure.measurer.Measurer`, which then needs no builder. "local" measures like Retune's runs:
    races, with as many threads as the task has cores.
    """
    measure_callbacks: Sequence[MeasureCallback] | None = None
    """Called after every round."""

    def __post_init__(self) -> None:
        least = {"num_measure_trials": 0, "num_measures_per_round": 1, "early_stopping": 1, "verbose": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is None and name == "early_stopping":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise OptionError(f"{name} must be an integer of at least {lowest}, not {value!r}")
        if self.builder != "local" and not isinstance(self.builder, builders.LocalBuilder):
            raise OptionError(f"builder must be 'local' or a LocalBuilder, not {self.builder!r}")
        known = isinstance(self.runner, (runners.LocalRunner, FleetRunner)) or hasattr(self.runner, "measure")
        if self.runner != "local" and not known:
            raise OptionError(f"runner must be 'local', a LocalRunner, an RPCRunner or a Measurer, not {self.runner!r}")
        if not isinstance(self.measure_callbacks, Iterable | None):
            raise OptionError(f"measure_callbacks must be a list, not {self.measure_callbacks!r}")
        for callback in self.measure_callbacks or ():
            if not isinstance(callback, MeasureCallback):
                raise OptionError(f"a measure callback needs a method called callback, {callback!r} has none")


class ProgramMeasurer(Closing):
    """Measures programs of any tasks, calls callbacks, and remembers the fastest program of each task.

    `builder` and `runner` are as in `TuningOptions`, `threads` the number for timing with "local" ones. It gives a task
    up after more than `max_continuous_error` failures in a row. Use it in a `with` block, which ends the processes of
    "local" ones.
    """

    def __init__(
        self,
        builder: builders.LocalBuilder | str = "local",
        runner: runners.LocalRunner | FleetRunner | Measurer | str = "local",
        callbacks: Sequence[MeasureCallback] = (),
        verbose: int = 1,
        max_continuous_error: int = -1,
        *,
        threads: int = 1,
        target: Target | None = None,
    ) -> None:
        self.callbacks = tuple(callbacks)
        self.verbose = verbose
        self.max_continuous_error = MAX_CONTINUOUS_ERROR if max_continuous_error < 0 else max_continuous_error
        self.trials = 0
        self.last_error = ""
        """The reason for the last failure, in one line."""
        self._failures: dict[str, int] = {}
        self._best: dict[str, tuple[float, MeasureInput]] = {}
        self._own: list[builders.LocalBuilder | runners.LocalRunner | FleetRunner] = []
        self._measurer = self._create_measurer(builder, runner, threads, target or Target.host())

    @classmethod
    def of(cls, options: TuningOptions, tasks: Sequence[SearchTask]) -> "ProgramMeasurer":
        """The measurer for these options and tasks.

        Raises: OptionError when an array for an input of a task does not fit, or some tasks are for CPUs and some for
        GPUs; DeviceError for GPUs when there is none.
        """
        for task in tasks:
            check_measurable(task)
        if len({task.target.kind for task in tasks}) > 1:
            raise OptionError("some of the tasks are for CPUs and some for GPUs; tune these after those")
        # One runner works for all tasks, so it is bound to as many CPUs as the largest needs.
        threads = max((task.hardware.num_cores for task in tasks), default=1)
        # A GPU's number of cores is -1, and parameters from a log may be another machine's.
        threads = max(1, min(threads, len(usable_cpus())))
        callbacks = options.measure_callbacks or ()
        target = next((task.target for task in tasks), None)
        made = cls(options.builder, options.runner, callbacks, options.verbose, threads=threads, target=target)
        if isinstance(made.runner, runners.LocalRunner):
            try:
                # Before the first program: without a GPU all would fail.
                made.runner.check()
            except DeviceError:
                made.close()
                raise
        return made

    @property
    def runner(self) -> object:
        """The runner of the programs; None for a custom measurer."""
        return getattr(self._measurer, "runner", None)

    def _create_measurer(
        self,
        builder: builders.LocalBuilder | str,
        runner: runners.LocalRunner | FleetRunner | Measurer | str,
        threads: int,
        target: Target,
    ) -> Measurer:
        if not isinstance(runner, (runners.LocalRunner, FleetRunner, str)):
            return runner
        times = runners.LocalRunner(MeasureOptions(threads=threads)) if isinstance(runner, str) else runner
        wanted = RUNNERS[target.traits.device]
        if isinstance(times, runners.LocalRunner) and not isinstance(times, wanted):
            times = wanted.of(times.options)
        lane = times.cpus if times.options.overlap else ()
        builds = builder if isinstance(builder, builders.LocalBuilder) else LocalBuilder(lane=lane)
        # Only processes started here are closed here: the caller may use the others again.
        self._own = [made for made, passed in ((builds, builder), (times, runner)) if made is not passed]
        return LocalMeasurer(builds, times)

    def gave_up(self, task: SearchTask) -> bool:
        """Whether too many programs of the task failed in a row."""
        return self._failures.get(task.identity, 0) > self.max_continuous_error

    def best(self, task: SearchTask) -> tuple[float, MeasureInput] | None:
        """Seconds and program of the fastest measurement of the task."""
        return self._best.get(task.identity)

    def measure(self, policy: Any, inputs: Sequence[MeasureInput]) -> list[MeasureResult]:
        """Measure programs of one task. Raises: MeasureError when nothing can be measured."""
        if not inputs:
            return []
        task = _require_graph(inputs[0])
        known = self._best.get(task.identity)
        measured = self._measurer.measure(
            _plain(task), [inp.state.steps for inp in inputs], None if known is None else known[0]
        )
        if len(measured) != len(inputs):
            raise MeasureError(f"{self._measurer!r} answered for {len(measured)} of {len(inputs)} programs")
        results = [MeasureResult.of(measurement) for measurement in measured]
        for inp, result in zip(inputs, results, strict=True):
            failed = result.error_no != MeasureStatus.OK
            # Consecutive failures only, as in TVM: single ones are part of every search.
            self._failures[task.identity] = self._failures.get(task.identity, 0) + 1 if failed else 0
            if result.seconds < (known[0] if known else math.inf):
                known = self._best[task.identity] = result.seconds, inp
        self.trials += len(results)
        self._tell(task, results, known)
        for callback in self.callbacks:
            callback.callback(policy, inputs, results)
        return results

    def _tell(
        self, task: SearchTask, results: Sequence[MeasureResult], best: tuple[float, MeasureInput] | None
    ) -> None:
        failed = [result for result in results if result.error_no != MeasureStatus.OK]
        fastest = "none yet" if best is None else f"{best[0] * 1e3:.4f} ms"
        text = f"{task.name}: {len(results)} measured, {len(failed)} failed, best {fastest}"
        announce(_log, self.verbose, text)
        if failed:
            self.last_error = failed[-1].error_msg.partition("\n")[0]
        if self.gave_up(task):
            count, reason = self._failures[task.identity], failed[-1].error_msg.partition("\n")[0]
            _log.warning("%s: %d programs in a row failed, the last one: %s", task.name, count, reason)

    def close(self) -> None:
        """End the worker processes that were started here."""
        for resource in self._own:
            resource.close()


def check_measurable(task: SearchTask) -> None:
    """Ensure that programs of the task can be measured here.

    Raises: OptionError when an array for an input does not fit.
    """
    for index, array in special_inputs(task).items():
        tensor = task.dag.inputs[index]
        if array.shape != tensor.shape or array.dtype.name != tensor.dtype:
            raise OptionError(
                f"{task.name}: the input {tensor.name} is {tensor.dtype}{list(tensor.shape)}, "
                f"the array given for it is {array.dtype.name}{list(array.shape)}"
            )


def _require_graph(inp: MeasureInput) -> SearchTask:
    if isinstance(inp.task, LoggedTask):
        raise OptionError("a program that was read from a record is measured after recover_measure_input")
    return inp.task


def _plain(task: SearchTask) -> SearchTask:
    """The task without parts that only scripts need, so that worker processes need not import them."""
    # A copy of the plain class: unpickling the subclass would import this package in every worker.
    graph = task.dag.with_nodes(task.dag.nodes)
    return SearchTask(task.name, graph, task.target, task.hardware, task.key, task.layout)
