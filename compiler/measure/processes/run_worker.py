"""Measures and verifies CPU kernels inside the only worker process that times.

The default schedule runs first, and every candidate must compute the same results, on the buffers of
`retune.compiler.measure.task_buffers`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from retune.compiler.core.errors import ArtifactError, MeasureError
from retune.compiler.measure.adaptive_timer import AdaptiveTimer, Timing
from retune.compiler.measure.attribution import STARTED
from retune.compiler.measure.check import Expected
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus, describe
from retune.compiler.measure.reference_kernel import reference_kernel
from retune.compiler.measure.task_buffers import Sweeper, TaskBuffers, TaskSetup
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.loader import BoundKernel, RotatingKernel
from retune.compiler.runtime.threads.affinity import bind_process
from retune.compiler.runtime.threads.contention import ContentionMeter
from retune.compiler.runtime.threads.openmp import openmp_runtime

# Rounds alternate between tasks: refilling buffers and running the reference cost more than the memory.
_KEPT_BYTES = 1 << 30

_tasks: OrderedDict[str, TaskBuffers] = OrderedDict()


def set_up(cpus: tuple[int, ...]) -> None:
    """Bind this process to `cpus` and load the OpenMP runtime. Raises: ArtifactError when there is none."""
    bind_process(cpus)
    openmp_runtime()


def knows(key: str) -> bool:
    """Whether this worker has the buffers of the task with this key."""
    return key in _tasks


def prepare(key: str, pattern: KernelArtifact, setup: TaskSetup, options: MeasureOptions) -> None:
    """Allocate the buffers of a task; `pattern` is its default kernel, run here for its results when answers are
    checked.

    Raises: ArtifactError when the default kernel cannot be run or writes out of bounds; MemoryError; OptionError when
    an input of `setup` does not fit.
    """
    reference_kernel(options.threads)  # before a candidate's time runs
    buffers = TaskBuffers.filled(pattern.args, options.seed, key, setup)
    if options.check:
        buffers.poison_outputs()
        # The reference runs in this process, on the same buffers: both sides see the same inputs bit for bit.
        buffers.bind(pattern, options.threads)()
        if damage := buffers.damage():
            raise ArtifactError(f"the default kernel writes {damage}")
        names = [spec.name for spec in pattern.outputs]
        buffers.expected = tuple(
            Expected.of(name, np.array(array), setup.terms, setup.types, options.tolerance_factor)
            for name, array in zip(names, buffers.outputs, strict=True)
        )
    _tasks[key] = buffers
    while len(_tasks) > 1 and sum(task.nbytes for task in _tasks.values()) > _KEPT_BYTES:
        # Least recently used first: `buffers_of` moves a task to the end.
        _tasks.popitem(last=False)


def run_stream(
    key: str, artifacts: Sequence[KernelArtifact], best_seconds: float, options: MeasureOptions
) -> Iterator[str | Measurement]:
    """STARTED, then one result per kernel. `best_seconds` is the best cost known for the task, infinite for none."""
    buffers = buffers_of(key)
    return run_all(artifacts, best_seconds, lambda artifact, best: _run(buffers, artifact, best, options))


def run_all(
    artifacts: Sequence[KernelArtifact], best_seconds: float, run: Callable[[KernelArtifact, float], Measurement]
) -> Iterator[str | Measurement]:
    """STARTED, then the result of `run` for each kernel and the best cost so far, with the seconds that it took."""
    yield STARTED
    for artifact in artifacts:
        begun = time.perf_counter()
        result = run(artifact, best_seconds)
        # A fast program of the batch raises the bar for later programs, which then get only a probe.
        best_seconds = min(best_seconds, result.seconds)
        yield replace(result, run_seconds=time.perf_counter() - begun)


def compare_stream(
    key: str, artifacts: Sequence[KernelArtifact], passes: int, options: MeasureOptions
) -> Iterator[str | Measurement]:
    """STARTED after each of `passes`, in which every kernel is timed once in turn, so that a disturbance affects them
    all; then one result per kernel, with the costs of the passes.

    The kernels were run and checked before: here they share packed constants, in whatever order those are.
    """
    buffers = buffers_of(key)
    yield STARTED
    kernels = [buffers.bind(artifact, options.threads) for artifact in artifacts]
    # One untimed call each: page faults and cold caches must not count.
    for kernel in kernels:
        kernel()
    before_pass = _before_pass(buffers, options)
    with ContentionMeter(options.threads) as meter:
        reference = reference_kernel(options.threads)
        timers = [
            AdaptiveTimer(options, meter, _call(buffers, kernel, options), before_pass, reference) for kernel in kernels
        ]
        for _ in range(passes):
            for timer in timers:
                timer.interleave()
            yield STARTED
        for timing in (timer.timing for timer in timers):
            yield Measurement(timing.costs, MeasureStatus.OK, "", contention=timing.contention)


def buffers_of(key: str) -> TaskBuffers:
    """The buffers of the task with this key. Raises: MeasureError when this worker does not have them."""
    if key not in _tasks:
        raise MeasureError("this worker was replaced before it was told of the task; ask again")
    _tasks.move_to_end(key)
    return _tasks[key]


def _run(buffers: TaskBuffers, artifact: KernelArtifact, best_seconds: float, options: MeasureOptions) -> Measurement:
    try:
        kernel = buffers.bind(artifact, options.threads)
    except MemoryError as failure:  # no memory for its workspace
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, describe(failure))
    except Exception as failure:  # a candidate that cannot be loaded is a result
        return Measurement((), MeasureStatus.COMPILE_DEVICE, describe(failure))
    try:
        if wrong := _check_once(buffers, kernel):
            return wrong
        timing = _time(buffers, kernel, best_seconds * options.give_up_factor, options)
        if options.rotate_bytes and buffers.constants:
            kernel()  # on its own constants again
        if wrong := _check(buffers):  # data races do not fail on every run
            return replace(wrong, error=f"right at first, later not: {wrong.error}")
    except Exception as failure:  # so is a candidate that fails while it runs
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, describe(failure))
    return Measurement(timing.costs, MeasureStatus.OK, "", censored=timing.censored, contention=timing.contention)


def _time(buffers: TaskBuffers, kernel: BoundKernel, limit: float, options: MeasureOptions) -> Timing:
    """Time a kernel that has just run, with its constants where `options` want them."""
    with ContentionMeter(options.threads) as meter:
        call = _call(buffers, kernel, options)
        reference = reference_kernel(options.threads)
        timing = AdaptiveTimer(options, meter, call, _before_pass(buffers, options), reference).run(limit)
    if isinstance(call, RotatingKernel):
        call.restore()
    return timing


def _call(buffers: TaskBuffers, kernel: BoundKernel, options: MeasureOptions) -> BoundKernel | RotatingKernel:
    if options.rotate_bytes and buffers.constants:
        return kernel.rotating(buffers.addresses_of_constants(options.rotate_bytes))
    return kernel


def _before_pass(buffers: TaskBuffers, options: MeasureOptions) -> Callable[[], None] | None:
    return buffers.flusher() or Sweeper() if options.enable_cpu_cache_flush else None


def _check_once(buffers: TaskBuffers, kernel: BoundKernel) -> Measurement | None:
    """Run a kernel on poisoned outputs; returns the failure, if any."""
    buffers.poison_outputs()
    kernel()
    return _check(buffers)


def _check(buffers: TaskBuffers) -> Measurement | None:
    """The failure in the outputs of the last run, if any."""
    if damage := buffers.damage():
        return Measurement((), MeasureStatus.RUNTIME_DEVICE, damage)
    if mismatch := buffers.mismatch():
        return Measurement((), MeasureStatus.WRONG_ANSWER, mismatch)
    return None
