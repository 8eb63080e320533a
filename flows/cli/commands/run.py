"""The command `retune run`: times a compiled network."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import parse_shapes
from retune.compiler.graph.sample_shapes import sample_shapes
from retune.compiler.runtime.archive import VM_EXECUTABLE, kind_of
from retune.compiler.runtime.cuda.driver import gpus
from retune.compiler.runtime.device import Device, device, is_gpu
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.readable import busy_warning, count
from retune.compiler.runtime.threads.contention import ContentionMeter
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.machine import VirtualMachine
from retune.flows.cli.commands.arguments import Shapes
from retune.flows.cli.commands.output import Output


@dataclass(frozen=True, slots=True)
class _Timing:
    """What is timed: a network on inputs of these types and shapes; `where` is its GPU."""

    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    threads: int
    where: str
    run: Callable[[], object]
    benchmark: Callable[[], BenchmarkResult]


def run(
    output: Output,
    artifact: Annotated[Path, typer.Argument(help="A compiled network, .retune or .so. Run only your own.")],
    threads: Annotated[int | None, typer.Option(help="Threads to run on. Default: as it was compiled.")] = None,
    on: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, or another GPU: cuda:1. Default: as it was compiled.")
    ] = None,
    shape: Shapes = None,
) -> None:
    """Time a compiled network on inputs of zeros. For a GPU that includes the copies to it and back.

    A network of dynamic shapes is timed at the smallest, a middle and the largest size of its ranges.
    """
    devices = None if on is None else [device(on)]
    if kind_of(artifact) == VM_EXECUTABLE:
        timings = _dynamic_timings(artifact, threads, devices, shape or ())
    elif shape:
        raise OptionError(f"{artifact} was compiled for fixed shapes: leave out --shape")
    else:
        timings = _fixed_timing(artifact, threads, devices)
    for timing in timings:
        _time(timing, output)


def _time(timing: _Timing, output: Output) -> None:
    timing.run()  # starts the threads, so that the meter can observe them
    with ContentionMeter(timing.threads) as meter:
        meter.start()
        began = time.perf_counter_ns()
        result = timing.benchmark()
        share = None if timing.where else meter.share(time.perf_counter_ns() - began)
    inputs = {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in timing.inputs.items()}
    lines = [f"input {name}: {spec['dtype']}{spec['shape']}" for name, spec in inputs.items()]
    lines += [f"on {timing.where}" if timing.where else f"on {count(timing.threads, 'thread')}"]
    lines += [str(result), *filter(None, [busy_warning(share)])]
    fields = {"seconds": list(result.results), "contention": share, **({"gpu": timing.where} if timing.where else {})}
    output.say("\n".join(lines), inputs=inputs, threads=timing.threads, **fields)


# Half a second in all: repeats of 50 ms are longer than a time slice, so that none lies within a slice.
_REPEAT, _REPEAT_MS = 10, 50.0


def _fixed_timing(artifact: Path, threads: int | None, devices: Sequence[Device] | None) -> Iterator[_Timing]:
    library = Library.load(artifact)
    chosen = library.threads if threads is None else threads
    executor = executor_of(library.network, chosen, devices, library.kernels)
    where = ", ".join(gpus()[device.device_id].identity for device in executor.devices[1:])
    shapes, dtypes = executor.get_input_info()
    evaluator = TimeEvaluator(repeat=_REPEAT, min_repeat_ms=_REPEAT_MS)
    inputs = {name: (dtypes[name], shape) for name, shape in shapes.items()}
    yield _Timing(inputs, chosen, where, executor.run, lambda: executor.benchmark(evaluator))


def _dynamic_timings(
    artifact: Path, threads: int | None, devices: Sequence[Device] | None, shapes: Sequence[str]
) -> Iterator[_Timing]:
    executable = Executable.load(artifact)
    machine = VirtualMachine(executable, devices, threads=threads)
    where = ", ".join(gpus()[device.device_id].identity for device in machine.devices if is_gpu(device))
    evaluator = TimeEvaluator(repeat=_REPEAT, min_repeat_ms=_REPEAT_MS)
    for inputs in sample_shapes(executable.program, parse_shapes(shapes)):
        arrays = {name: np.zeros(extents, dtype) for name, (dtype, extents) in inputs.items()}
        machine.set_input("main", **arrays)
        yield _Timing(inputs, machine.threads, where, machine.run, lambda: evaluator(machine.run))
