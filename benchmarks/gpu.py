"""In: trials for each operator. Out: JSON lines, how fast tuned GPU programs are. Always: beside PyTorch, in one run.

    python -m benchmarks.gpu [--only REGEX] [--seconds S] [--trials N] [--device N] [--out FILE] [--plot FILE]

Matrix products, batched ones, the convolutions of ResNet-50, softmax and layer normalisation, each in fp32 (strict),
tf32 and f16 where that makes a difference, and ResNet-50 and BERT end to end in fp32. Ours is tuned first, for
`--trials` programs or `--seconds` (a network's are shared by its kernels); then it, PyTorch eager and PyTorch compiled
take turns on the GPU's own clock. `peak_ratio` is the share of the float32 peak of a kernel of ours that stays in
registers (fp32), of PyTorch's product of 8192 (tf32, f16), or, for what memory bounds, of the bandwidth of a copy, all
measured in the same run. Without a GPU it says what is missing and ends.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np
import onnx

from benchmarks.gpu_cases import CASES, NETWORKS, Array, GpuCase
from benchmarks.gpu_networks import OurNetwork, torch_networks
from benchmarks.gpu_peak import measured_bandwidth, measured_flops
from benchmarks.gpu_torch import EAGER, TorchPeers
from benchmarks.harness import Figure, Run, parse
from benchmarks.network_peers import seeded_inputs
from compiler.cost_model.xgb import XGBModel
from compiler.driver.build import build_kernel
from compiler.driver.compile_network import KnownProgram
from compiler.driver.extract import extract_network
from compiler.driver.hardware import hardware_of_gpu
from compiler.driver.winners import Guess
from compiler.frontend import zoo
from compiler.measure.measurer import LocalMeasurer, Measurer
from compiler.measure.options import MeasureOptions
from compiler.measure.record import MeasureStatus
from compiler.runtime.artifact import KernelArtifact
from compiler.runtime.cuda import driver, why_not
from compiler.runtime.cuda_array import DeviceArray
from compiler.runtime.cuda_driver import Driver, GpuDevice
from compiler.runtime.cuda_program import DeviceProgram, Stopwatch
from compiler.schedule.steps import Step, dump_steps
from compiler.schedule.task import SearchTask
from compiler.search.asked import Told
from compiler.search.policy import SketchPolicy
from compiler.target import Target

OURS = "retune"
BATCH, TURNS = 64, 7


class Contender(Protocol):
    """One way to compute an operator on the GPU."""

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        ...

    def result(self) -> Array:
        """What it computes."""
        ...


@dataclass(frozen=True, slots=True)
class Gpu:
    """An open GPU with what it can do at most: operations a second by mode, and bytes a second."""

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
class Tuned:
    """The best program of a task, None when none was right; programs measured, and failed, and wall seconds."""

    steps: tuple[Step, ...] | None
    trials: int
    failed: int
    seconds: float


def main(argv: Sequence[str] | None = None) -> None:
    """Print three JSON lines an operator and mode. Raises: SystemExit with a sentence where there is no GPU."""
    options = {"trials": (500, "programs measured for each operator"), "device": (0, "the GPU's number in CUDA")}
    run = parse(__doc__, argv, seconds=1800, seconds_help="most seconds of tuning for each operator", options=options)
    if missing := why_not():
        sys.exit(f"nothing is measured: {missing}")
    number = run.options["device"]
    cuda = driver()
    cuda.open(number)
    stream, device = cuda.stream(), cuda.devices()[number]
    peers = TorchPeers(number)
    peak = {"fp32": measured_flops(cuda, stream, device), **peers.product_speeds()}
    gpu = Gpu(cuda, stream, device, peak, measured_bandwidth(cuda, stream, device))
    with LocalMeasurer.with_options(MeasureOptions(), gpu=number) as measurer:
        for name, case in CASES.items():
            for mode in case.modes:
                if run.wants(f"{name}_{mode}"):
                    for figure in figures(name, case, mode, gpu, measurer, peers.contenders, run):
                        run.write(figure)
        for name in filter(run.wants, NETWORKS):
            model = zoo.build(name)
            for figure in network_figures(name, model, gpu, measurer, torch_networks(model, number, tf32=False), run):
                run.write(figure)


Peers = Callable[[GpuCase, str], Mapping[str, Contender]]
"""The other contenders of a case and mode, by backend."""


def figures(
    name: str, case: GpuCase, mode: str, gpu: Gpu, measurer: Measurer, peers: Peers, run: Run
) -> Iterator[Figure]:
    """Tune one operator and time it beside its peers."""
    task = SearchTask(f"{name}_{mode}", case.graph(mode), gpu.target_of(mode), hardware_of_gpu(gpu.device))
    tuned = tune(task, measurer, run.options["trials"], run.seconds)
    contenders = dict(peers(case, mode))
    if tuned.steps is not None:
        contenders[OURS] = Ours(gpu, build_kernel(task, tuned.steps, "kernel"), case.arrays(mode))
    for backend, seconds, error in taken_in_turn(contenders):
        spent = {"trials": tuned.trials, "failed": tuned.failed, "tuning_seconds": round(tuned.seconds, 1)}
        details: dict[str, object] = {
            "mode": mode,
            "gpu": gpu.device.name,
            "us": round(seconds * 1e6, 3),
            **(spent if backend == OURS else {}),
        }
        yield _figure(f"{name}_{mode}", backend, case, mode, seconds, gpu, error, details)


def network_figures(
    name: str, model: onnx.ModelProto, gpu: Gpu, measurer: Measurer, peers: Mapping[str, Contender], run: Run
) -> Iterator[Figure]:
    """Tune the kernels of a network, most of the budget for those that compute most, and time it beside its peers."""
    network = extract_network(name, str(gpu.target), 1, winograd=False)
    work = sum(task.flop_count * weight for task, weight in zip(network.tasks, network.weights, strict=True))
    best: dict[str, KnownProgram] = {}
    trials = failed = 0
    for task, weight in zip(network.tasks, network.weights, strict=True):
        share = task.flop_count * weight / max(work, 1.0)
        tuned = tune(task, measurer, max(1, round(share * run.options["trials"])), share * run.seconds)
        trials, failed = trials + tuned.trials, failed + tuned.failed
        if tuned.steps is not None:
            best[task.workload_key] = Guess(dump_steps(tuned.steps))
    inputs = dict(zip([value.name for value in network.graph.inputs], seeded_inputs(model).values(), strict=True))
    ours = OurNetwork(gpu.driver, gpu.device.number, network, best, inputs)
    for backend, seconds, error in taken_in_turn({**peers, OURS: ours}):
        details: dict[str, object] = {"mode": "fp32", "gpu": gpu.device.name}
        if backend == OURS:
            details |= {"trials": trials, "failed": failed, "tasks": len(network.tasks), "tuned": len(best)}
        share_of_peak = work / seconds / gpu.flops["fp32"]
        yield Figure(name, backend, 1, "latency", seconds * 1e3, "ms", share_of_peak, error, details)


def taken_in_turn(contenders: Mapping[str, Contender]) -> Iterator[tuple[str, float, float | None]]:
    """Of every contender its name, the median of its seconds, and its largest error beside PyTorch, relative to the
    largest result, None without PyTorch.
    """
    times: dict[str, list[float]] = {backend: [] for backend in contenders}
    for _ in range(TURNS):  # a noisy moment hits all alike
        for backend, contender in contenders.items():
            times[backend].append(contender.seconds())
    results = {backend: contender.result().astype(np.float64) for backend, contender in contenders.items()}
    wanted = results.get(EAGER)
    for backend, taken in times.items():
        error = None if wanted is None else _relative_error(results[backend], wanted)
        yield backend, statistics.median(taken), error


def _figure(
    name: str,
    backend: str,
    case: GpuCase,
    mode: str,
    seconds: float,
    gpu: Gpu,
    error: float | None,
    details: Mapping[str, object],
) -> Figure:
    """A speed, and its share of what bounds it."""
    if case.flops:
        speed = case.flops / seconds
        peak = gpu.flops.get(mode)
        share = None if peak is None else speed / peak
        return Figure(name, backend, 1, "speed", speed / 1e9, "GFLOP/s", share, error, details)
    rate = case.nbytes(mode) / seconds
    return Figure(name, backend, 1, "bandwidth", rate / 1e9, "GB/s", rate / gpu.bandwidth, error, details)


def tune(task: SearchTask, measurer: Measurer, trials: int, seconds: float) -> Tuned:
    """Measure at most `trials` programs in at most about `seconds`; the fastest that was right."""
    policy = SketchPolicy(task, XGBModel(), seed=0)
    best: tuple[float, tuple[Step, ...] | None] = (inf, None)
    began, measured, failed, number = time.monotonic(), 0, 0, 0
    while measured < trials and time.monotonic() - began < seconds:
        candidates = policy.ask(min(BATCH, trials - measured), number, spent=measured / trials)
        if not candidates:
            break
        found = measurer.measure(task, [one.steps for one in candidates], best[0])
        for candidate, each in zip(candidates, found, strict=True):
            right = each.status is MeasureStatus.OK
            failed += not right
            if right and min(each.costs) < best[0]:
                best = min(each.costs), tuple(candidate.steps)
        told = zip(candidates, found, strict=True)
        policy.tell([Told(one.steps_text, min(each.costs, default=inf)) for one, each in told])
        measured += len(candidates)
        number += 1
    return Tuned(best[1], measured, failed, time.monotonic() - began)


class Ours:
    """A built program on the GPU."""

    def __init__(self, gpu: Gpu, artifact: KernelArtifact, arrays: Mapping[str, Array]) -> None:
        cuda, number = gpu.driver, gpu.device.number
        made = [DeviceArray.made(cuda, gpu.stream, number, spec.shape, spec.dtype) for spec in artifact.args]
        given = list(arrays.values())
        for array, values in zip(made, given, strict=False):
            array.write(values)
        self._output = made[len(given)]
        self._workspace = DeviceArray.made(cuda, gpu.stream, number, (max(artifact.workspace_bytes, 1),), "uint8")
        self._call = DeviceProgram(cuda, gpu.stream, artifact).bind(made, self._workspace.address)
        self._watch = Stopwatch(cuda, gpu.stream)
        self._roughly = self._watch.look(self._call)

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        return self._watch.passes(self._call, 1, self._roughly)[0]

    def result(self) -> Array:
        """What it computes."""
        return self._output.numpy()


def _relative_error(result: Array, wanted: Array) -> float:
    return float(np.abs(result - wanted).max() / max(np.abs(wanted).max(), 1e-30))


if __name__ == "__main__":
    main()
