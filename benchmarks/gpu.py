"""Speed of tuned GPU programs, next to PyTorch in the same run.

    python -m benchmarks.gpu [--only REGEX] [--seconds S] [--trials N] [--budget S] [--device N] [--out FILE]
                             [--log FILE] [--plot FILE]

Matrix products, batched ones, the convolutions of ResNet-50, softmax and layer normalization, each in fp32 (strict),
tf32, f16 and bf16 where that makes a difference, and ResNet-50 and BERT end to end in fp32. Ours is tuned first, for
`--trials` programs or three fifths of `--seconds` (the kernels of a network share its budget). PyTorch eager and
PyTorch compiled have a fifth each to warm up, at least ten seconds; then all are interleaved and timed by the GPU's
clock. `--budget` limits the whole run to so many seconds, shared by what is measured. `--log` names a tuning log of
GPUs of the same kind, which the run continues.

Compiled, a single product or convolution is the same call of cuBLAS or cuDNN, so it is compiled in networks alone.
`peak_ratio` is the fraction of a peak measured in the same run: for fp32 the float32 rate of one of our kernels that
stays in registers, for tf32, f16 and bf16 that of PyTorch's product of 8192, for memory-bound operators the bandwidth
of a copy. A contender that fails gets a line with the reason (`failure`), and the others continue. Without a GPU the
benchmark says what is missing and ends.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

from benchmarks import zoo
from benchmarks.gpu_cases import CASES, MODES, NETWORKS, Array, GpuCase
from benchmarks.gpu_interleaved import (
    Contender,
    Failed,
    Makers,
    Timed,
    attempted,
    failed_by,
    failure_line,
    ready,
    relative_error,
    timed_interleaved,
)
from benchmarks.gpu_networks import OurNetwork, torch_networks
from benchmarks.gpu_peak import measured_bandwidth, measured_flops
from benchmarks.gpu_torch import EAGER, TorchPeers
from benchmarks.gpu_tuning import Tuned, TuningLog, tune
from benchmarks.harness import Figure, Run, parse
from benchmarks.network_peers import seeded_inputs
from retune.compiler.core.errors import DeviceError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of_gpu
from retune.compiler.measure.measurer import LocalMeasurer, Measurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus, TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver import driver, why_not
from retune.compiler.runtime.cuda.driver_interface import Driver, GpuDevice
from retune.compiler.runtime.cuda.program import DeviceProgram, Stopwatch
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask

OURS = "retune"

_UNCHECKED_FLOPS = 5e10
"""From here on a CPU would take too long for the right answers, so results are compared with PyTorch's alone."""

_TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "f16": 5e-2, "bf16": 5e-2}
"""By how much of the largest result ours may differ from PyTorch's."""

_TUNING, _PEER = 0.6, 0.2
"""The shares of an operator's seconds for tuning, and for each of the others to get ready."""

_LEAST_PEER = 10.0
"""Seconds that one may take at least: some of that goes to its inputs."""

_NETWORK_PARTS = 6
"""A network has the seconds of so many operators."""

_NETWORK_READY = 120.0
"""Seconds that a network may at least take to be compiled, also by PyTorch, where it has as many in all."""

_PEAK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """An open GPU and its measured peaks: operations per second by mode, and bytes per second (NaN if unknown)."""

    driver: Driver
    stream: Any
    device: GpuDevice
    flops: Mapping[str, float]
    bandwidth: float

    @property
    def target(self) -> Target:
        """What code is generated for, in strict float32."""
        return self.target_of("fp32")

    def target_of(self, mode: str) -> Target:
        """What code of a mode is generated for."""
        return Target("cuda", arch=self.device.arch, math="tf32" if mode == "tf32" else "")


@dataclass(frozen=True, slots=True)
class Limits:
    """The budget of one operator: programs, and wall seconds for everything; and the log of its tuning."""

    trials: int
    seconds: float
    log: TuningLog | None = None

    @property
    def tuning(self) -> float:
        """Seconds for tuning."""
        return self.seconds * _TUNING

    @property
    def peer(self) -> float:
        """Seconds for a contender to get ready, or for all passes."""
        return max(self.seconds * _PEER, _LEAST_PEER)


class Measurers:
    """Times programs on GPU number `gpu`, with or without comparing all results with those of a CPU."""

    def __init__(self, gpu: int) -> None:
        self._gpu = gpu
        self._stack = ExitStack()
        self._open: dict[bool, Measurer] = {}

    def of(self, *, check: bool) -> Measurer:
        """One of them, started when it is first asked for."""
        if check not in self._open:
            made = LocalMeasurer.with_options(MeasureOptions(check=check), gpu=self._gpu)
            self._open[check] = self._stack.enter_context(made)
        return self._open[check]

    def __enter__(self) -> "Measurers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Shares:
    """How many of the remaining seconds of `budget` each part of a run may take (0: no limit)."""

    def __init__(self, budget: float, each: float, parts: int) -> None:
        self._end = time.monotonic() + budget if budget else None
        self._each = each
        self._parts = parts

    @property
    def least(self) -> float:
        """Seconds that what is not measured itself may take: a twentieth of the budget, or as many as it likes."""
        return inf if self._end is None else max(1.0, (self._end - time.monotonic()) / 20)

    def next(self, parts: int = 1) -> float:
        """Seconds for the next piece of so many parts; 0 when nothing is left."""
        share, self._parts = parts / max(self._parts, 1), self._parts - parts
        if self._end is None:
            return self._each * parts
        return max(0.0, min(self._each * parts, (self._end - time.monotonic()) * share))


def main(argv: Sequence[str] | None = None) -> None:
    """Print lines for every operator and mode, and the networks. Raises: SystemExit in words where there is no GPU."""
    options = {
        "trials": (500, "programs measured for each operator"),
        "budget": (0, "most seconds of the whole run, 0 for any"),
        "device": (0, "the GPU's number in CUDA"),
    }
    texts = {"log": ("FILE", "tuning log of earlier runs, which this one continues")}
    run = parse(
        __doc__, argv, seconds=1800, seconds_help="most seconds for each operator", options=options, texts=texts
    )
    if missing := why_not():
        sys.exit(f"nothing is measured: {missing}")
    number = run.options["device"]
    cases = [(name, mode) for name, case in CASES.items() for mode in case.modes if run.wants(f"{name}_{mode}")]
    networks = list(filter(run.wants, NETWORKS))
    shares = Shares(run.options["budget"], run.seconds, len(cases) + _NETWORK_PARTS * len(networks))
    peers = TorchPeers(number)
    gpu = opened(number, peers, run, min(_PEAK_SECONDS, shares.least))
    log = TuningLog(Path(run.texts["log"])) if run.texts["log"] else None
    with Measurers(number) as measurers:
        for name, mode in cases:
            case, limits = CASES[name], Limits(run.options["trials"], shares.next(), log)
            check = not peers.known or case.flops < _UNCHECKED_FLOPS
            makers = peers.makers(case, mode)
            part = figures(name, case, mode, gpu, measurers.of(check=check), makers, limits, checked=check)
            write(run, f"{name}_{mode}", limits, part)
        for name in networks:
            limits = Limits(run.options["trials"], shares.next(_NETWORK_PARTS), log)
            write(run, name, limits, network_figures(name, gpu, measurers.of(check=True), limits))


def write(run: Run, case: str, limits: Limits, figures: Iterator[Figure]) -> None:
    """Write the lines of one part of the run as they come; what ends them early is a line too.

    Raises: SystemExit when the GPU does nothing more for this process.
    """
    if limits.seconds <= 0:
        run.write(failure_line(case, Failed(OURS, "the budget is spent"), {}))
        return
    try:
        run.write_all(figures)
    except Exception as failure:  # one operator's may be anything, and the others are still to be measured
        run.write(failure_line(case, failed_by(OURS, failure), {}))
        if isinstance(failure, DeviceError) and failure.lasting:
            sys.exit(f"the GPU does nothing more for this process: go on behind {case}, with --only")


def opened(number: int, peers: TorchPeers, run: Run, seconds: float = _PEAK_SECONDS) -> Gpu:
    """The GPU, and what it can do at most, of which there are lines; each of these may take so many seconds."""
    cuda = driver()
    cuda.open(number)
    stream, device = cuda.stream(), cuda.devices()[number]
    details = {"gpu": device.name, "arch": device.arch}
    found: dict[str, float] = {}
    works: dict[str, tuple[str, Callable[[], float]]] = {
        "fp32": (OURS, lambda: measured_flops(cuda, stream, device)),
        **{mode: (EAGER, partial(peers.product_speed, mode)) for mode in MODES[1:] if peers.known},
        "bandwidth": (OURS, lambda: measured_bandwidth(cuda, stream, device)),
    }
    for what, (backend, work) in works.items():
        speed = attempted(backend, work, seconds)
        if isinstance(speed, Failed):
            run.write(failure_line(f"peak_{what}", speed, details))
            continue
        found[what] = speed
        unit = "GB/s" if what == "bandwidth" else "GFLOP/s"
        run.write(Figure(f"peak_{what}", backend, 1, "speed", speed / 1e9, unit, details=details))
    return Gpu(cuda, stream, device, found, found.get("bandwidth", nan))


def figures(
    name: str,
    case: GpuCase,
    mode: str,
    gpu: Gpu,
    measurer: Measurer,
    makers: Makers,
    limits: Limits,
    *,
    checked: bool = True,
) -> Iterator[Figure]:
    """Tune one operator and time it beside its peers. `checked` says whether the measurer looks at results."""
    label, common = f"{name}_{mode}", {"mode": mode, "gpu": gpu.device.name}
    task = SearchTask(label, case.graph(mode), gpu.target_of(mode), hardware_of_gpu(gpu.device))
    tuned = tune(task, measurer, limits.trials, limits.tuning, limits.log)
    contenders, failures = ready(makers, limits.peer)
    ours, wrong = right_program(task, tuned, case, mode, gpu, contenders.get(EAGER), checked=checked)
    if limits.log and wrong:
        refused = [Measurement((), MeasureStatus.WRONG_ANSWER, "its result is not that of PyTorch")] * wrong
        limits.log.add(task, [steps for _, steps in tuned.best[:wrong]], refused)
    spent = {**tuned.spent, **({"wrong": wrong} if wrong else {})}
    if ours is None:
        failures.append(Failed(OURS, tuned.stopped or "no program was right"))
    else:
        contenders[OURS] = ours
    for failed in failures:
        yield failure_line(label, failed, {**common, **(spent if failed.backend == OURS else {})})
    for timed in timed_interleaved(contenders, EAGER, limits.peer):
        details = {**common, **(spent if timed.backend == OURS else {})}
        if isinstance(timed, Failed):
            yield failure_line(label, timed, details)
        else:
            yield _figure(label, case, mode, timed, gpu, details)
    if ours is not None:
        ours.free()


def right_program(
    task: SearchTask,
    tuned: Tuned,
    case: GpuCase,
    mode: str,
    gpu: Gpu,
    reference: Contender | None,
    *,
    checked: bool,
) -> tuple["Ours | None", int]:
    """The fastest program, on the GPU, whose result is that of the reference; and how many were not. Without a
    reference there is one only if results were `checked` before.
    """
    wanted = None if reference is None or not tuned.best else reference.result()
    if wanted is None and not checked:
        return None, 0
    for wrong, (_, steps) in enumerate(tuned.best):
        ours = Ours(gpu, build_kernel(task, steps, "kernel"), case.arrays(mode))
        if wanted is None or relative_error(ours.result(), wanted) <= _TOLERANCE[mode]:
            return ours, wrong
        ours.free()
    return None, len(tuned.best)


def network_figures(name: str, gpu: Gpu, measurer: Measurer, limits: Limits) -> Iterator[Figure]:
    """Tune the kernels of a network, those that compute most first and with most of the budget, and time it beside its
    peers. One that there is no time for is what the log knows, or the untested candidate of the search.
    """
    model, common = zoo.build(name), {"mode": "fp32", "gpu": gpu.device.name}
    network = zoo.extract(name, str(gpu.target), 1, winograd=False)
    pairs = sorted(
        zip(network.tasks, network.weights, strict=True), key=lambda pair: pair[0].flop_count * pair[1], reverse=True
    )
    work = sum(task.flop_count * weight for task, weight in pairs)
    best: dict[str, TaskProgram] = {}
    trials = failed = 0
    began = time.monotonic()
    for task, weight in pairs:
        known = limits.log.trials_of(task)[:1] if limits.log else []
        steps = next((one.steps for one in known if one.costs), None)
        if time.monotonic() - began < limits.tuning:
            # Half of the budget is shared alike: what computes little, such as a softmax, takes time as well.
            share = (task.flop_count * weight / max(work, 1.0) + 1.0 / len(pairs)) / 2.0
            tuned = tune(task, measurer, max(1, round(share * limits.trials)), share * limits.tuning, limits.log)
            trials, failed = trials + tuned.trials, failed + tuned.failed
            steps = tuned.steps or steps
        if steps is not None:
            best[task.workload_key] = TaskProgram(task.workload_key, dump_steps(steps))
    spent = {"trials": trials, "failed": failed, "tasks": len(network.tasks), "tuned": len(best)}
    inputs = dict(zip([value.name for value in network.graph.inputs], seeded_inputs(model).values(), strict=True))
    makers: Makers = {
        **torch_networks(model, gpu.device.number, tf32=False),
        OURS: lambda: OurNetwork(gpu.driver, gpu.device.number, network, best, inputs),
    }
    contenders, failures = ready(makers, max(limits.peer, min(limits.seconds, _NETWORK_READY)))
    for found in (*failures, *timed_interleaved(contenders, EAGER, limits.peer)):
        details = {**common, **(spent if found.backend == OURS else {})}
        if isinstance(found, Failed):
            yield failure_line(name, found, details)
            continue
        peak = gpu.flops.get("fp32")
        share_of_peak = None if peak is None else work / found.seconds / peak
        yield Figure(name, found.backend, 1, "latency", found.seconds * 1e3, "ms", share_of_peak, found.error, details)


def _figure(label: str, case: GpuCase, mode: str, timed: Timed, gpu: Gpu, details: Mapping[str, object]) -> Figure:
    """A speed, and its share of what bounds it."""
    about = {**details, "us": round(timed.seconds * 1e6, 3)}
    if case.flops:
        speed, peak = case.flops / timed.seconds, gpu.flops.get(mode)
        share = None if peak is None else speed / peak
        return Figure(label, timed.backend, 1, "speed", speed / 1e9, "GFLOP/s", share, timed.error, about)
    rate = case.nbytes(mode) / timed.seconds
    return Figure(label, timed.backend, 1, "bandwidth", rate / 1e9, "GB/s", rate / gpu.bandwidth, timed.error, about)


class Ours:
    """A built program on the GPU."""

    def __init__(self, gpu: Gpu, artifact: KernelArtifact, arrays: Mapping[str, Array]) -> None:
        cuda, number = gpu.driver, gpu.device.number
        made = [DeviceArray.allocate(cuda, gpu.stream, number, spec.shape, spec.dtype) for spec in artifact.args]
        given = list(arrays.values())
        for array, values in zip(made, given, strict=False):
            array.write(values)
        self._output = made[len(given)]
        workspace = DeviceArray.allocate(cuda, gpu.stream, number, (max(artifact.workspace_bytes, 1),), "uint8")
        self._arrays = (*made, workspace)
        self._call = DeviceProgram(cuda, gpu.stream, artifact).bind(made, workspace.address)
        self._watch = Stopwatch(cuda, gpu.stream)
        self._roughly = self._watch.probe(self._call)

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        return self._watch.passes(self._call, 1, self._roughly)[0]

    def result(self) -> Array:
        """What it computes."""
        return self._output.numpy()

    def free(self) -> None:
        """Give its memory back; it is not called any more."""
        for array in self._arrays:
            array.free()


if __name__ == "__main__":
    main()
