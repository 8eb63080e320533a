"""Times built programs, one after another, in a single worker process: on its CPUs, or on a GPU.

One `Measurement` a program, in order; a program that crashes, hangs or computes wrong results costs only its own. Only
the worker process uses CUDA, so a kernel that breaks its context breaks nothing else; the right answers are those of
the default schedule on the CPU.
"""

import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from retune.compiler.codegen.backend import backend_of
from retune.compiler.core.closing import Closing
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import DeviceError, MeasureError, OptionError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.measure.attribution import collect
from retune.compiler.measure.check import roundings_of
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes.worker_process import WorkerFailedError, WorkerProcess, WorkerTimeoutError
from retune.compiler.measure.record import Measurement, MeasureStatus, describe, in_order
from retune.compiler.measure.task_buffers import TaskSetup
from retune.compiler.measure.task_inputs import revision, special_inputs
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda.driver_interface import GpuDevice
from retune.compiler.runtime.threads.affinity import choose_cpus, openmp_environment
from retune.compiler.schedule.contraction import has_tf32_products
from retune.compiler.schedule.task import SearchTask

_LOG = logging.getLogger(__name__)

_BUILD_REFERENCE = "retune.compiler.measure.processes.build_worker:build_reference"
# Filling buffers and one run of the default schedule: far more than a candidate may take, since nothing is tuned yet.
_PREPARE_SECONDS = 120.0
# Bounds the leaks of loading thousands of kernels.
_USES_PER_WORKER = 5000


class LocalRunner(Closing):
    """Times kernels on this machine, by default with a thread for every CPU.

    `build_func` and `reference_steps` are the dotted paths of what makes the kernel with the right answers, a task's
    default kernel or a faster kernel of the same results: (task, steps, kernel name) -> KernelArtifact, and
    (dag, hardware) -> steps.
    """

    worker = "retune.compiler.measure.processes.run_worker"
    """The module of the functions that the worker process runs."""
    uses_threads = True
    """Whether kernels run on CPUs, so that builds must not disturb them."""

    def __init__(
        self,
        options: MeasureOptions | None = None,
        *,
        build_func: str = "retune.compiler.codegen.build:build_kernel",
        reference_steps: str = "retune.compiler.schedule.default.cpu:reference_steps",
    ) -> None:
        self.options = options or MeasureOptions(threads=len(usable_cpus()))
        self._reference_recipe = (build_func, reference_steps)
        self._references: dict[str, KernelArtifact] = {}
        self.cpus = cpus = choose_cpus(self.options.threads)
        self._worker = WorkerProcess(
            initializer=f"{self.worker}:set_up",
            initargs=self._initial_arguments(),
            maximum_uses=_USES_PER_WORKER,
            environment=openmp_environment(cpus),
        )

    @classmethod
    def of(cls, options: MeasureOptions, gpu: int = 0) -> Self:  # noqa: ARG003 for runners of GPUs
        """A runner with these options, on GPU number `gpu` where it runs kernels on GPUs."""
        return cls(options)

    def check(self) -> None:
        """Check that the device exists. Raises: DeviceError saying what is missing."""

    def run(
        self, task: SearchTask, builds: Sequence[Measurement], best_seconds: float | None = None
    ) -> list[Measurement]:
        """Check and time every built candidate; failed builds pass through. `best_seconds` is the task's best cost so
        far.

        A failed result has status COMPILE_DEVICE (cannot be loaded), RUNTIME_DEVICE (crashed, wrote out of bounds),
        WRONG_ANSWER or RUN_TIMEOUT. When the task's default kernel itself fails, so do all its candidates.

        Raises: MeasureError when the worker cannot work at all, DeviceError when there is no GPU to work on;
        OptionError when an array that is registered for an input does not fit, see
        `retune.compiler.measure.task_inputs`.
        """
        artifacts = [build.artifact for build in builds if build.artifact is not None]
        best = math.inf if best_seconds is None else best_seconds
        if not task.shapes:
            return in_order(builds, self._run_built(task, artifacts, best))
        # The best time of a shape is not known, only that of all.
        columns = [self._run_built(part, kernels, math.inf) for part, kernels in _by_shape(task, artifacts)]
        return in_order(builds, _means(task, columns))

    def compare(self, task: SearchTask, builds: Sequence[Measurement], passes: int = 7) -> list[Measurement] | None:
        """Time programs that passed `run`, in turn: the costs of each are its times in the `passes`, one repeat of
        each. None when the worker did not survive: then the cause is unknown.

        Raises: MeasureError when the worker cannot work at all.
        """
        artifacts = [build.artifact for build in builds if build.artifact is not None]
        if not artifacts:
            return []
        if not task.shapes:
            return self._compare_built(task, artifacts, passes)
        columns = []
        for part, kernels in _by_shape(task, artifacts):
            if (column := self._compare_built(part, kernels, passes)) is None:
                return None
            columns.append(column)
        return _means(task, columns)

    def restart(self) -> None:
        """Time the next programs in a fresh process."""
        self._worker.kill()

    def stop(self) -> None:
        """From any thread or a signal handler: make the current run and all later runs fail, until `close`."""
        self._worker.stop()

    def close(self) -> None:
        """End the worker process; a later `run` starts a new process."""
        self._worker.close()

    def _initial_arguments(self) -> tuple[object, ...]:
        """The arguments of the worker's `set_up`."""
        return (self.cpus,)

    def _reference_task(self, task: SearchTask) -> SearchTask:
        """The task whose default kernel has the right answers."""
        return task

    def _compare_built(
        self, task: SearchTask, artifacts: Sequence[KernelArtifact], passes: int
    ) -> list[Measurement] | None:
        self._prepare(task, artifacts[0])
        stream = self._worker.stream(
            f"{self.worker}:compare_stream",
            _key(task),
            artifacts,
            passes,
            self.options,
            # The limit is per item of the stream, and one item is a pass over all programs.
            timeout_s=self.options.run_timeout_s * len(artifacts),
        )
        try:
            return [item for item in stream if isinstance(item, Measurement)]
        # Programs are timed together here, so it is unknown which of them ended the worker.
        except RetuneError as error:
            _LOG.warning("%s: the best programs could not be timed in turn: %s", task.name, error)
            return None

    def _run_built(self, task: SearchTask, artifacts: Sequence[KernelArtifact], best: float) -> list[Measurement]:
        if not artifacts:
            return []
        try:
            self._prepare(task, artifacts[0])
        except WorkerFailedError as error:
            # Killed from outside, as by the kernel's OOM killer or a user: no fault of the candidates.
            if error.from_outside:
                raise
            return [self._without_reference(task, describe(error))] * len(artifacts)
        except (MeasureError, OptionError, DeviceError):
            raise
        except Exception as error:
            return [self._without_reference(task, describe(error))] * len(artifacts)
        # After a crash the stream resumes after the culprit, with the best cost measured before it.
        done: list[float] = [best]

        def stream_from(first: int) -> Iterator[object]:
            self._prepare(task, artifacts[0])
            stream = self._worker.stream(
                f"{self.worker}:run_stream",
                _key(task),
                artifacts[first:],
                min(done),
                self.options,
                timeout_s=self.options.run_timeout_s,
            )
            for item in stream:
                if isinstance(item, Measurement):
                    done.extend(item.costs)
                yield item

        return collect(len(artifacts), stream_from, self._failure)

    def _prepare(self, task: SearchTask, pattern: KernelArtifact) -> None:
        """Ensure that a worker that is not worn out has the task's buffers and right answers."""
        self._worker.renew()
        key = _key(task)
        if self._worker.call(f"{self.worker}:knows", key, timeout_s=_PREPARE_SECONDS):
            return
        if self.options.check:
            if key not in self._references:
                reference = self._reference_task(task)
                # Built in the worker: a bug of the compiler must not end the run.
                self._references[key] = self._worker.call(
                    _BUILD_REFERENCE, reference, *self._reference_recipe, timeout_s=_PREPARE_SECONDS
                )
            pattern = self._references[key]
        dag = task.dag
        constants = tuple(index for index, tensor in enumerate(dag.inputs) if dag.id_of(tensor) in dag.layout_free)
        terms, types = roundings_of(dag)
        if task.target.allow_tf32 and has_tf32_products(dag):
            types = (*types, "float16")  # its fraction has the ten bits of tf32's
        setup = TaskSetup(terms, constants, special_inputs(task), types)
        self._worker.call(f"{self.worker}:prepare", key, pattern, setup, self.options, timeout_s=_PREPARE_SECONDS)

    def _without_reference(self, task: SearchTask, text: str) -> Measurement:
        error = f"{task.name}: its default kernel, the reference, fails: {text}"
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, error)

    def _failure(self, error: WorkerFailedError, seconds: float) -> Measurement:
        if isinstance(error, WorkerTimeoutError):
            text = f"the kernel took more than {self.options.run_timeout_s:g} s"
            return Measurement((), MeasureStatus.RUN_TIMEOUT, text, run_seconds=seconds)
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, f"the kernel crashed: {error}", run_seconds=seconds)


def _by_shape(
    task: SearchTask, artifacts: Sequence[KernelArtifact]
) -> Iterator[tuple[SearchTask, list[KernelArtifact]]]:
    """The task of each of its shapes, and the kernels at this shape."""
    for shape in task.shapes:
        yield task.at(shape.sizes), [artifact.at(shape.sizes) for artifact in artifacts]


def _means(task: SearchTask, columns: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """The measurements of programs from those at each shape."""
    weights = [shape.weight for shape in task.shapes]
    texts = [shape.text for shape in task.shapes]
    return [Measurement.of_shapes(row, weights, texts) for row in zip(*columns, strict=True)]


def _key(task: SearchTask) -> str:
    return f"{task.identity} {revision(task.workload_key)}"


_KEY = re.compile(r"cuda([:-](?P<number>\d+))?")


class CudaRunner(LocalRunner):
    """Times kernels on GPU number `gpu` (CUDA's) of this machine.

    `options` mean the same as on a CPU, except `threads`, `rotate_bytes` and those about other processes;
    `enable_cpu_cache_flush` empties the GPU's own cache before each call.
    """

    worker = "retune.compiler.measure.processes.cuda_worker"
    uses_threads = False

    def __init__(self, options: MeasureOptions, gpu: int = 0) -> None:
        self.gpu = gpu
        # All CPUs compute the right answers; programs are built before or after that.
        super().__init__(replace(options, threads=len(usable_cpus()), overlap=False))

    @classmethod
    def of(cls, options: MeasureOptions, gpu: int = 0) -> Self:
        return cls(options, gpu)

    def _initial_arguments(self) -> tuple[object, ...]:
        return self.cpus, self.gpu

    def _reference_task(self, task: SearchTask) -> SearchTask:
        host = Target.host()
        return replace(task, target=host, hardware=backend_of(host).hardware(host, self.options.threads))

    def check(self) -> None:
        """Check that there is a GPU to time programs on. Raises: DeviceError saying what is missing."""
        missing = self._worker.call(f"{self.worker}:missing", self.gpu, timeout_s=self._worker.start_timeout_s)
        if missing:
            raise DeviceError(missing)


RUNNERS: dict[str, type[LocalRunner]] = {"cpu": LocalRunner, "cuda": CudaRunner}
"""The runner of each kind of device that a target may name."""


def runner_for(target: Target, options: MeasureOptions, gpu: int = 0) -> LocalRunner:
    """A runner on the target's kind of device, or on GPU number `gpu`, once the device is known to exist.

    Raises: DeviceError when there is no such GPU.
    """
    runner = RUNNERS[target.traits.device].of(options, gpu)
    try:
        runner.check()
    except DeviceError:
        runner.close()
        raise
    return runner


def gpu_here(number: int) -> GpuDevice | None:
    """GPU number `number` of this machine, examined in a process of its own; None when it cannot be used."""
    with WorkerProcess() as worker:
        device: GpuDevice | None = worker.call(
            f"{CudaRunner.worker}:gpu_device", number, timeout_s=worker.start_timeout_s
        )
    return device


def gpu_of_key(key: str) -> int | None:
    """The number of the GPU of a fleet's device key: 1 for cuda:1 (or cuda-1), 0 for cuda; None for other keys."""
    match = _KEY.fullmatch(key)
    return int(match.group("number") or 0) if match else None
