"""Measures and verifies GPU kernels inside the only worker process that uses the GPU.

The default schedule runs first, on the CPU, and every candidate must compute the same results. A worker whose CUDA
context a kernel has broken ends, and a fresh worker replaces it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import DeviceError, MeasureError
from retune.compiler.measure.attribution import STARTED
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes import run_worker
from retune.compiler.measure.record import Measurement, MeasureStatus, describe
from retune.compiler.measure.task_buffers import TaskBuffers, TaskSetup
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver import driver, why_not
from retune.compiler.runtime.cuda.driver_interface import Driver, GpuDevice, Stream
from retune.compiler.runtime.cuda.program import DeviceProgram, Stopwatch

# After a sticky error every CUDA call of the process fails: NVIDIA's only remedy is to end the process.
BROKEN = 86
"""The exit code of a worker whose CUDA context is broken."""


@dataclass(slots=True)
class _Gpu:
    """The open device, and the buffer that flushes its cache."""

    driver: Driver
    number: int
    stream: Stream
    cache: int
    spare: DeviceArray | None = None

    def flush(self) -> None:
        """Queue a write larger than the cache."""
        if self.spare is None:
            # Twice the cache, as for CPUs: one sweep then replaces everything in it.
            self.spare = self.array((2 * max(self.cache, 1 << 20),), "uint8")
        self.driver.fill(self.spare.address, 0, self.spare.nbytes, self.stream)

    def array(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        return DeviceArray.allocate(self.driver, self.stream, self.number, shape, dtype)


@dataclass(slots=True)
class _OnDevice:
    """The arguments of a task's kernels in the GPU's memory."""

    host: TaskBuffers
    arrays: tuple[DeviceArray, ...]
    workspace: DeviceArray | None = None

    @property
    def outputs(self) -> Iterator[tuple[DeviceArray, Array]]:
        """The outputs, each with its host array for checks."""
        pairs = zip(self.host.specs, self.arrays, strict=True)
        return zip((array for spec, array in pairs if spec.is_output), self.host.outputs, strict=True)

    def free(self) -> None:
        """Give all memory back."""
        for array in (*self.arrays, *([self.workspace] if self.workspace else [])):
            array.free()


_gpu: _Gpu | None = None
_tasks: dict[str, _OnDevice] = {}


def set_up(cpus: tuple[int, ...], number: int) -> None:
    """Bind this process to `cpus`, and to GPU number `number` if it exists."""
    global _gpu
    run_worker.set_up(cpus)
    _gpu = None
    _tasks.clear()
    if not missing(number):
        cuda = driver()
        cuda.open(number)
        _gpu = _Gpu(cuda, number, cuda.stream(), cuda.devices()[number].facts.cache)


def missing(number: int) -> str:
    """Why GPU number `number` cannot be used here, in one sentence; "" when it can."""
    if text := why_not():
        return text
    count = len(driver().devices())
    return "" if number < count else f"there is no GPU number {number}; this machine has {count}"


def gpu_device(number: int) -> GpuDevice | None:
    """GPU number `number`; None when it cannot be used here."""
    return None if missing(number) else driver().devices()[number]


def knows(key: str) -> bool:
    """Whether this worker has the buffers of the task with this key."""
    return key in _tasks


def prepare(key: str, pattern: KernelArtifact, setup: TaskSetup, options: MeasureOptions) -> None:
    """Allocate the buffers of a task, and compute the expected outputs: `pattern` is its default kernel for the CPU.

    Raises: DeviceError when there is no GPU, or it has no memory; as `run_worker.prepare`.
    """
    gpu = _open()
    for old_key in list(_tasks):  # one task at a time: the GPU may be smaller than this machine
        _tasks.pop(old_key).free()
    if pattern.device is None:
        run_worker.prepare(key, pattern, setup, options)
        host = run_worker.buffers_of(key)
    else:  # nothing is checked, so nothing was built for the CPU
        host = TaskBuffers.filled(pattern.args, options.seed, key, setup)
    arrays = tuple(gpu.array(spec.shape, spec.dtype) for spec in host.specs)
    for array, fenced in zip(arrays, host.arrays, strict=True):
        array.write(np.array(fenced.array))
    _tasks[key] = _OnDevice(host, arrays)


def run_stream(
    key: str, artifacts: Sequence[KernelArtifact], best_seconds: float, options: MeasureOptions
) -> Iterator[str | Measurement]:
    """STARTED, then one result per kernel. `best_seconds` is the best cost known for the task, infinite for none."""
    gpu, task = _open(), _task(key)
    return run_worker.run_all(artifacts, best_seconds, lambda artifact, best: _run(gpu, task, artifact, best, options))


def compare_stream(
    key: str, artifacts: Sequence[KernelArtifact], passes: int, options: MeasureOptions
) -> Iterator[str | Measurement]:
    """STARTED after each of `passes`, in which every kernel is timed once in turn; then one result per kernel, with the
    costs of the passes. The kernels were run and checked before.
    """
    gpu, task = _open(), _task(key)
    yield STARTED
    costs: list[list[float]] = [[] for _ in artifacts]
    try:
        watch = _watch(gpu, options)
        calls = [_bound(gpu, task, artifact) for artifact in artifacts]
        # All are bound and probed before the first pass: loading a module between passes would disturb the next.
        probes = [watch.probe(call) for call in calls]
        for _ in range(passes):
            for call, probe, times in zip(calls, probes, costs, strict=True):
                times.extend(watch.passes(call, 1, probe))
            yield STARTED
    except DeviceError as failure:
        if failure.lasting:  # later calls must not meet a broken CUDA context
            _end(failure)
        raise
    for times in costs:
        yield Measurement(tuple(times), MeasureStatus.OK, "")


def _open() -> _Gpu:
    if _gpu is None:
        raise DeviceError(missing(0) or "this worker has no GPU")
    return _gpu


def _task(key: str) -> _OnDevice:
    if key not in _tasks:
        raise MeasureError("this worker was replaced before it was told of the task; ask again")
    return _tasks[key]


def _watch(gpu: _Gpu, options: MeasureOptions) -> Stopwatch:
    flush = gpu.flush if options.enable_cpu_cache_flush else None
    return Stopwatch(gpu.driver, gpu.stream, options.min_repeat_ms / 1e3, flush)


def _bound(gpu: _Gpu, task: _OnDevice, artifact: KernelArtifact) -> Callable[[], None]:
    workspace = 0
    if artifact.workspace_bytes:
        if task.workspace is not None and task.workspace.nbytes < artifact.workspace_bytes:
            task.workspace.free()
            task.workspace = None
        if task.workspace is None:
            task.workspace = gpu.array((artifact.workspace_bytes,), "uint8")
        workspace = task.workspace.address
    return DeviceProgram(gpu.driver, gpu.stream, artifact).bind(task.arrays, workspace)


def _run(
    gpu: _Gpu, task: _OnDevice, artifact: KernelArtifact, best_seconds: float, options: MeasureOptions
) -> Measurement:
    try:
        call = _bound(gpu, task, artifact)
    except DeviceError as failure:  # a candidate that cannot be loaded is a result
        if failure.lasting:  # caused by an earlier candidate
            _end(failure)
        return Measurement((), MeasureStatus.COMPILE_DEVICE, describe(failure))
    try:
        if wrong := _once(gpu, task, call):
            return wrong
        watch = _watch(gpu, options)
        probe = watch.probe(call)
        if probe > best_seconds * options.give_up_factor:
            return Measurement((probe,), MeasureStatus.OK, "", censored=True)
        costs = watch.passes(call, options.repeat, probe)
        if wrong := _check(gpu, task):  # data races do not fail on every run
            return replace(wrong, error=f"right at first, later not: {wrong.error}")
    except DeviceError as failure:  # so is a candidate that fails while it runs
        if failure.lasting:
            _end(failure)
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, describe(failure))
    return Measurement(costs, MeasureStatus.OK, "")


def _end(failure: DeviceError) -> None:
    """End this process, in which nothing works any more: the parent reads its last output and starts another."""
    sys.stderr.write(f"{failure}\n")
    sys.stderr.flush()
    # Not sys.exit: finalizers would free memory in the broken context.
    os._exit(BROKEN)


def _once(gpu: _Gpu, task: _OnDevice, call: Callable[[], None]) -> Measurement | None:
    """Run a kernel on poisoned outputs; returns the failure, if any."""
    if task.host.expected:
        task.host.poison_outputs()
        for array, host in task.outputs:
            array.write(np.array(host))
    call()
    gpu.driver.wait(gpu.stream)
    return _check(gpu, task)


def _check(gpu: _Gpu, task: _OnDevice) -> Measurement | None:
    """The failure in the outputs of the last run, if any."""
    gpu.driver.wait(gpu.stream)
    texts = []
    named = [(spec.name, array) for spec, array in zip(task.host.specs, task.arrays, strict=True)]
    for name, array in (*named, *([("workspace", task.workspace)] if task.workspace is not None else [])):
        if text := array.damage():
            texts.append(f"{name}: {text}")
            array.mend()
    if texts:
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, f"out of bounds: {'; '.join(texts)}")
    if not task.host.expected:  # copying large outputs would take longer than computing them
        return None
    for array, host in task.outputs:
        host[...] = array.numpy()
    if mismatch := task.host.mismatch():
        return Measurement((), MeasureStatus.WRONG_ANSWER, mismatch)
    return None
