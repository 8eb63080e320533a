"""Comparison of compiled networks with the ONNX model they came from: latency, and the error of their outputs.

All are timed in turn in one process, so that a noisy moment hits all alike.

The reference is ONNX Runtime where it is installed and can run the model, else the first network given. The outputs
of a quantized network are taken without graph optimizations: on x86 without VNNI, its kernels for products of bytes
saturate. Where an error is larger than usual in float32, `accuracy` says what is exact and how large it may be.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.core.errors import MeasureError, install_hint
from retune.compiler.core.target import Target
from retune.compiler.frontend.offload.wider import Arrays as Inputs
from retune.compiler.frontend.offload.wider import Outputs
from retune.compiler.graph.ir import Value
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.threads.contention import ContentionMeter
from retune.compiler.schedule.task import SampledShape
from retune.compiler.tune import openvino
from retune.compiler.tune.accuracy import errors_of, find_error_limits
from retune.compiler.tune.by_shape import represent
from retune.compiler.tune.machine_at import MachineAt
from retune.compiler.tune.onnx_runtime import OnnxRuntime, is_installed
from retune.compiler.tune.precision.errors import error_of
from retune.compiler.tune.precision.request import PrecisionRequest
from retune.compiler.tune.precision.samples import hold_out, read_samples
from retune.compiler.tune.report import ROUGH, TOLERANCE, Comparison, Contender
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.machine import VirtualMachine

REFERENCE = "ONNX Runtime"
OPENVINO, OPENVINO_DEFAULT = "OpenVINO float32", "OpenVINO default ({precision})"
"""OpenVINO in float32, and in the precision that it takes by itself, where that is another."""
# The minimum of 25 passes meets a quiet moment on most machines; slow networks end after `_TOTAL_SECONDS`.
_PASSES = 25
_AGREEING, _AGREEMENT = 3, 1.03
"""The passes end when so many of each contender are within this factor of its fastest."""
_PASS_SECONDS = 0.05
_TOTAL_SECONDS = 10.0
_MOST_SHAPES = 3
"""At so many shapes networks of dynamic shapes are compared."""
_CHOICE_SECONDS = 3.0
"""After so many seconds no pass begins that compares two numbers of instances."""
_LEAST_CALLS = 4
"""Of each of several instances: the last of them has the machine to itself for a part of its last call."""
_PAUSE_SECONDS = 0.02
"""Between passes: long enough for the idle threads of the engine before to stop spinning."""

Executor = GraphExecutor | MachineAt
"""Runs one of our networks on inputs of fixed shapes."""
Run = Callable[[], object]
"""Runs a network once."""
Result = TypeVar("Result")


@dataclass(slots=True)
class _Peers:
    """The engines beside ours that run `model`: how they are called, what they compute, and why a peer is missing."""

    model: bytes
    threads: int
    instances: int
    runs: dict[str, Sequence[Run]] = field(default_factory=dict)
    outputs: dict[str, Outputs] = field(default_factory=dict)
    optimized: Outputs | None = None
    """The outputs of ONNX Runtime with its graph optimizations."""
    notes: list[str] = field(default_factory=list)
    sessions: dict[str, Any] = field(default_factory=dict)
    """What was opened before, by name: comparisons at several shapes share it."""

    def _open(self, name: str, make: Callable[[], Result]) -> Result:
        if name not in self.sessions:
            self.sessions[name] = make()
        opened: Result = self.sessions[name]
        return opened

    def add_onnx_runtime(
        self, executor: Executor, seed: int, given: Inputs | None, *, is_quantized: bool
    ) -> Inputs | None:
        """Run ONNX Runtime on the inputs `given`, else on random inputs of `executor`; return them, or None if it has
        no session.
        """
        if not is_installed():
            self.notes.append(f"ONNX Runtime is not installed: {install_hint('report')}")
            return None
        inputs: Inputs | None = None
        try:
            sessions = self._open(
                REFERENCE, lambda: [OnnxRuntime(self.model, self.threads) for _ in range(self.instances)]
            )
            inputs = given or _comparable_inputs(executor, seed, sessions[0].run)
            self.outputs[REFERENCE] = self.optimized = sessions[0].run(inputs)
            self.runs[REFERENCE] = [partial(session.run, inputs) for session in sessions]
            if is_quantized:
                # Its unfused nodes dequantize to float32, so nothing saturates.
                self.outputs[REFERENCE] = OnnxRuntime(self.model, self.threads, is_optimized=False).run(inputs)
        except MeasureError as error:
            # A peer that cannot run the model must not end our comparison.
            self.notes.append(str(error))
        return inputs

    def add_openvino(self, inputs: Inputs) -> None:
        """Run OpenVINO on `inputs` in float32, and in its default precision, where it is installed and can run the
        model.
        """
        if not openvino.is_installed():
            return
        try:
            about = self.model, self.threads, self.instances
            for name, is_float32 in ((OPENVINO, True), (OPENVINO_DEFAULT, False)):
                peer = self._open(name, partial(openvino.OpenVino, *about, is_float32=is_float32))
                if is_float32 or peer.precision != "f32":
                    label = name.format(precision=peer.precision)
                    self.outputs[label] = peer.run(inputs)
                    self.runs[label] = [partial(peer.run, inputs, number) for number in range(self.instances)]
        except MeasureError as error:
            self.notes.append(str(error))

    def judge(
        self, outputs: Mapping[str, Outputs], networks: Collection[str], inputs: Inputs, tolerances: tuple[float, float]
    ) -> tuple[str, dict[str, float], float]:
        """What the `outputs` of all contenders are compared with, the error of each, and how large the errors of
        `networks` may be. `tolerances` are those of `_tolerances`.
        """
        least, tolerance = tolerances
        reference = REFERENCE if REFERENCE in outputs else next(iter(outputs))
        errors = {name: errors_of(each, outputs[reference]) for name, each in outputs.items()}
        worst = {name: float(np.max(error[:, 0], initial=0.0)) for name, error in errors.items()}
        is_far = reference != REFERENCE or any(worst[name] > least for name in networks)
        if is_far and is_installed():
            try:
                reference, exact, limits = find_error_limits(self.model, self.threads, inputs, self.optimized, least)
                errors = {name: errors_of(each, exact) for name, each in outputs.items()}
                ratios = np.max([errors[name] / limits for name in networks], axis=0)
                # The output that decides, by its largest or its mean error.
                row, column = np.unravel_index(np.argmax(ratios), ratios.shape)
                worst = {name: float(error[row, column]) for name, error in errors.items()}
                tolerance = float(limits[row, column])
            except MeasureError as error:
                self.notes.append(str(error))
        return reference, worst, tolerance


def compare_networks(
    networks: Mapping[str, Path],
    model: bytes,
    threads: int,
    seed: int,
    instances: int = 1,
    precision: PrecisionRequest | None = None,
    shapes: Sequence[SampledShape] = (),
) -> Comparison:
    """Run and time every compiled network of `networks`, by name, and on `model` ONNX Runtime and OpenVINO where they
    are installed, on `threads` threads and the same seeded inputs, so many `instances` at a time. With a `precision`
    the inputs are a held-out sample, and errors are by its metric and within its tolerance. Networks of dynamic shapes
    are compared at a few shapes that represent `shapes`.

    Raises: ArtifactError.
    """
    if shapes:
        return _compare_at_shapes(networks, model, threads, seed, represent(shapes, _MOST_SHAPES))
    libraries = {name: Library.load(path) for name, path in networks.items()}
    pools = {name: _executors(library, threads, instances) for name, library in libraries.items()}
    kernels = [kernel for library in libraries.values() for kernel in library.network.kernels]
    return _compare(pools, kernels, _Peers(model, threads, instances), seed, precision)


def _compare_at_shapes(
    networks: Mapping[str, Path], model: bytes, threads: int, seed: int, shapes: Sequence[SampledShape]
) -> Comparison:
    """The comparison of networks of dynamic shapes: the weighted mean of those at each of the shapes."""
    loaded = {name: Executable.load(path) for name, path in networks.items()}
    machines = {name: VirtualMachine(executable, threads=threads) for name, executable in loaded.items()}
    kernels = [kernel for executable in loaded.values() for kernel in executable.library.kernels]
    parts, sessions = [], dict[str, Any]()
    for shape in shapes:
        pools = {name: [MachineAt(machine, loaded[name], shape.sizes)] for name, machine in machines.items()}
        peers = _Peers(model, threads, 1, sessions=sessions)
        parts.append(_compare(pools, kernels, peers, seed, limit=_TOTAL_SECONDS / len(shapes)))
    return Comparison.of_shapes(parts, [shape.weight for shape in shapes])


def _compare(
    pools: Mapping[str, Sequence[Executor]],
    kernels: Sequence[KernelArtifact],
    peers: _Peers,
    seed: int,
    precision: PrecisionRequest | None = None,
    limit: float = _TOTAL_SECONDS,
) -> Comparison:
    """The comparison of the networks that `pools` of executors run, with these `kernels`, and of `peers`."""
    executors = [pool[0] for pool in pools.values()]
    threads, instances = peers.threads, peers.instances
    inputs = None if precision is None else _held_out(executors[0], precision, seed)
    is_quantized = precision is None and _is_quantized(kernels)
    inputs = peers.add_onnx_runtime(executors[0], seed, inputs, is_quantized=is_quantized) or inputs
    inputs = inputs or _comparable_inputs(executors[0], seed, partial(_outputs, executors[0]))
    computed = {name: [_outputs(executor, inputs) for executor in pool] for name, pool in pools.items()}
    outputs = {name: results[0] for name, results in computed.items()}
    peers.add_openvino(inputs)
    runs: dict[str, Sequence[Run]] = {name: [executor.run for executor in pool] for name, pool in pools.items()}
    runs |= peers.runs
    on_gpu = any(len(executor.devices) > 1 for executor in executors)
    timed = _time_interleaved(runs, threads * instances, limit)
    shares = [share for _, share in timed.values() if share is not None]
    # A thread that waits for a GPU, or for another instance, is not disturbed.
    contention = max(shares) if shares and not on_gpu and instances == 1 else None
    outputs |= peers.outputs
    if precision is None:
        reference, errors, tolerance = peers.judge(outputs, pools.keys(), inputs, _tolerances(kernels))
    else:
        reference, tolerance = REFERENCE if REFERENCE in outputs else next(iter(outputs)), precision.allowed
        errors = {name: error_of(precision.metric, [each], [outputs[reference]]) for name, each in outputs.items()}
    contenders = tuple(
        Contender(name, timed[name][0], None if name == reference else errors[name], is_peer=name not in pools)
        for name in runs
    )
    return Comparison(reference, contenders, "; ".join(peers.notes), tolerance, contention, instances)


def _held_out(executor: Executor, precision: PrecisionRequest, seed: int) -> Inputs:
    """The first held-out sample of the choice of precisions. Raises: OptionError."""
    shapes, dtypes = executor.get_input_info()
    inputs = [Value(name, shape, dtypes[name]) for name, shape in shapes.items()]
    return hold_out(read_samples(precision.calibrate, inputs, seed))[1][0]


def choose_instances(networks: Mapping[int, Path], threads: int, seed: int) -> int:
    """How many instances of a network do most in a second: one of the numbers for which it was compiled, each instance
    on its part of `threads` threads. Raises: ArtifactError.
    """
    best: dict[str, Sequence[Run]] = {}
    for instances, path in networks.items():
        pool = _executors(Library.load(path), threads // instances, instances)
        inputs = _comparable_inputs(pool[0], seed, partial(_outputs, pool[0]))
        for executor in pool:
            _outputs(executor, inputs)
        # Two numbers at a time: all of them would need the memory of each.
        both = {**best, str(instances): [executor.run for executor in pool]}
        timed = _time_interleaved(both, threads, _CHOICE_SECONDS) if best else dict.fromkeys(both, (0.0, None))
        fastest = min(timed, key=lambda name: timed[name][0])
        best = {fastest: both[fastest]}
    return int(next(iter(best)))


def _executors(library: Library, threads: int, instances: int) -> list[GraphExecutor]:
    """Instances of a network, which share its kernels and weights."""
    return [executor_of(library.network, threads, None, library.kernels) for _ in range(instances)]


def _is_quantized(kernels: Iterable[KernelArtifact]) -> bool:
    """Whether a network computes with bytes."""
    return any(arg.dtype in ("int8", "uint8") for kernel in kernels for arg in kernel.args)


def _tolerances(kernels: Sequence[KernelArtifact]) -> tuple[float, float]:
    """How far outputs may always be off, and how far they may where nothing says what ONNX Runtime's are off."""
    used = {arg.dtype for kernel in kernels for arg in kernel.args}
    # ONNX Runtime does not compute with tf32.
    uses_tf32 = any(Target(kernel.target).allow_tf32 for kernel in kernels)
    least = ROUGH["tf32"] if uses_tf32 else TOLERANCE
    return least, max([least, *(ROUGH[dtype] for dtype in used & ROUGH.keys())])


def _comparable_inputs(executor: Executor, seed: int, reference: Callable[[Inputs], Outputs]) -> Inputs:
    """Random inputs whose outputs are numbers by the reference, if that can be had: a mask of attention that leaves a
    token nothing to attend to makes them NaN, and then all integers are 1.
    """
    inputs = _inputs(executor, seed)
    if all(np.isfinite(array).all() for array in reference(inputs) if is_float(array.dtype.name)):
        return inputs
    return _inputs(executor, seed, least=1)


def _outputs(executor: Executor, inputs: Inputs) -> Outputs:
    for key, array in inputs.items():
        executor.set_input(key, array)
    executor.run()
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


def _inputs(executor: Executor, seed: int, least: int = 0) -> Inputs:
    """Random inputs: normal for floats, `least` to 1 for integers, which are legal indices everywhere."""
    rng = np.random.default_rng(seed)
    shapes, dtypes = executor.get_input_info()
    return {
        name: rng.standard_normal(shape).astype(dtypes[name])
        if is_float(dtypes[name])
        else rng.integers(least, 2, shape).astype(dtypes[name])
        for name, shape in shapes.items()
    }


def _time_interleaved(
    runs: Mapping[str, Sequence[Run]], threads: int, limit: float = _TOTAL_SECONDS
) -> dict[str, tuple[float, float | None]]:
    """Seconds per call of the functions of every contender, which run at a time on so many threads in all, and which
    share of that others took: the mean of its fastest, least disturbed pass.

    A pass is at least one call of each, and goes on for `_PASS_SECONDS`, after one call that is not timed. After
    `limit` seconds none begins.
    """
    best: dict[str, tuple[float, float | None]] = dict.fromkeys(runs, (math.inf, None))
    passes: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    with ThreadPoolExecutor(max(map(len, runs.values()))) as pool:
        for instances in runs.values():
            _each(pool, lambda run: run(), instances)
        with ContentionMeter(threads) as meter:  # all threads exist by now
            # Passes in turn: drift of the clock frequency hits all contenders alike.
            for number in range(_PASSES):
                if number >= _AGREEING and (
                    time.perf_counter() - began > limit or all(map(_are_steady, passes.values()))
                ):
                    break
                for name, instances in runs.items():
                    time.sleep(_PAUSE_SECONDS)
                    _each(pool, lambda run: run(), instances)
                    # That is not timed: it brings weights back into the caches that the contender before took.
                    meter.start()
                    start = time.perf_counter()
                    least = 1 if len(instances) == 1 else _LEAST_CALLS
                    seconds = 1.0 / sum(_each(pool, partial(_calls_per_second, least=least), instances))
                    elapsed = time.perf_counter() - start
                    passes[name].append(seconds)
                    if seconds < best[name][0]:
                        best[name] = seconds, meter.share(int(elapsed * 1e9))
    return best


def _each(pool: ThreadPoolExecutor, function: Callable[[Run], Result], runs: Sequence[Run]) -> list[Result]:
    """The function of every run, at a time: in the threads of the pool where there are several."""
    return list(map(function, runs) if len(runs) == 1 else pool.map(function, runs))


def _calls_per_second(run: Run, least: int) -> float:
    """Call a function again and again for `_PASS_SECONDS`, and so often at least."""
    start, calls = time.perf_counter(), 0
    while calls < least or time.perf_counter() - start < _PASS_SECONDS:
        run()
        calls += 1
    return calls / (time.perf_counter() - start)


def _are_steady(seconds: Sequence[float]) -> bool:
    """Whether the fastest of some passes was no accident."""
    return sorted(seconds)[_AGREEING - 1] <= _AGREEMENT * min(seconds)
