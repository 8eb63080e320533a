"""Times a case of `benchmarks.kernel_cases`: its hand-written schedule, other libraries and the machine's limits.

All contenders are interleaved in one process, preferably a fresh one; every result is compared with the reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness import interleaved
from benchmarks.kernel_cases import CASES, Case
from benchmarks.kernel_peers import peers
from benchmarks.problems import Floats, moved_bytes, random_inputs
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.measure.limit_kernels import peak_kernel, stream_kernel
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

OURS, PEAK, STREAM = "retune", "peak", "stream"
PASS_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Timed:
    """One way to compute a case: seconds of its fastest call, and the error of its result."""

    backend: str
    seconds: float
    error: float


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """The timed contenders of a case, ours first.

    It also holds the case's work and what the machine reached in the same passes: peak GFLOP/s, and GB/s through as
    much memory as the case moves.
    """

    contenders: tuple[Timed, ...]
    gflop: float
    gigabytes: float
    peak: float
    bandwidth: float


def time_case(name: str, threads: int, seconds: float) -> CaseTimes:
    """Time case `name`, about `seconds` for each contender."""
    case = CASES[name]
    dag = case.problem.graph()
    arrays = random_inputs(dag)
    wanted = case.problem.reference(arrays)
    task, steps = scheduled(case, dag, threads)
    ours, output = bound_kernel(task, steps, arrays, threads)
    peak_run, peak_work = peak_kernel(threads)
    stream_run, stream_bytes = stream_kernel(*moved_bytes(dag), threads)
    others = peers(case.problem, arrays, threads)
    runs: dict[str, Callable[[], object]] = {PEAK: peak_run, STREAM: stream_run, OURS: ours}
    runs |= {backend: call.run for backend, call in others.items()}
    passes = max(3, round(seconds / PASS_SECONDS))
    times = interleaved(runs, passes=passes, pass_seconds=PASS_SECONDS, figure=min)
    results = {OURS: output, **{backend: call.result() for backend, call in others.items()}}
    found = tuple(Timed(backend, times[backend], _error(result, wanted)) for backend, result in results.items())
    return CaseTimes(
        found,
        task.flop_count / 1e9,
        sum(moved_bytes(dag)) / 1e9,
        peak_work / times[PEAK],
        stream_bytes / times[STREAM] / 1e9,
    )


def scheduled(case: Case, dag: ComputeDAG, threads: int) -> tuple[SearchTask, tuple[Step, ...]]:
    """The case's task for this machine and the steps of its schedule."""
    target = Target.host()
    task = SearchTask("hand", dag, target, hardware_of(target, threads))
    return task, tuple(step for step in case.schedule(State.initial(dag)).steps if isinstance(step, Step))


def bound_kernel(
    task: SearchTask, steps: tuple[Step, ...], arrays: Mapping[str, Floats], threads: int
) -> tuple[BoundKernel, Floats]:
    """A call of the compiled program on `arrays`, and where it leaves its result."""
    artifact = build_kernel(task, steps, "kernel")
    buffers: list[Any] = [aligned_array(spec.buffer_shape, spec.dtype) for spec in artifact.args]
    for tensor, spec, buffer in zip(task.dag.inputs, artifact.args, buffers, strict=False):
        array = arrays[tensor.name]
        buffer[...] = array if spec.packing is None else spec.packing.pack(array)
    return load_kernels([artifact])["kernel"].bind(buffers, threads), buffers[-1]


def _error(got: Floats, wanted: np.ndarray) -> float:
    """The largest difference, relative to the largest value wanted."""
    return float(np.max(np.abs(got - wanted)) / np.max(np.abs(wanted)))
