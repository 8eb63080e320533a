"""The command `retune run`: times a compiled network."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import Extent, Size, parse_shape
from retune.compiler.graph.program import Program
from retune.compiler.graph.region import Param
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
    for inputs in _sample(executable.program, shapes):
        arrays = {name: np.zeros(extents, dtype) for name, (dtype, extents) in inputs.items()}
        machine.set_input("main", **arrays)
        yield _Timing(inputs, machine.threads, where, machine.run, lambda: evaluator(machine.run))


def _sample(program: Program, shapes: Sequence[str]) -> list[dict[str, tuple[str, tuple[int, ...]]]]:
    """Types and shapes of all inputs at the smallest, a middle and the largest size of the ranges, each once.

    Raises: OptionError when a shape fits no input, or an extent has neither a number nor a range.
    """
    ranges = {**program.ranges, **_ranges_in(program, dict(map(parse_shape, shapes)))}
    samples: list[dict[str, tuple[str, tuple[int, ...]]]] = []
    for sizes in (
        {symbol: low for symbol, (low, _) in ranges.items()},
        {symbol: round(sqrt(max(low, 1) * high)) for symbol, (low, high) in ranges.items()},
        {symbol: high for symbol, (_, high) in ranges.items()},
    ):
        inputs = {param.name: (str(param.dtype), _extents(param, sizes)) for param in program.inputs}
        if inputs not in samples:
            samples.append(inputs)
    return samples


def _extents(param: Param, sizes: Mapping[str, int]) -> tuple[int, ...]:
    if param.dims is None or param.dtype is None:
        raise OptionError(f"shape and type of the input {param} are not known: time the network in Python")
    extents = []
    for axis, dim in enumerate(param.dims):
        size = dim if isinstance(dim, int) else sizes.get(_symbol(param, axis))
        if size is None:
            example = ",".join(str(dim) if isinstance(dim, int) else "1" for dim in param.dims)
            raise OptionError(f"dimension {axis} of the input {param} has any size: choose it, such as "
                              f"--shape {param.name}={example}")  # fmt: skip
        extents.append(size)
    return tuple(extents)


def _ranges_in(program: Program, shapes: Mapping[str, Sequence[Extent]]) -> dict[str, tuple[int, int]]:
    """The ranges of symbols that shapes of inputs give. Raises: OptionError for a shape that fits no input."""
    params = {param.name: param for param in program.inputs}
    ranges: dict[str, tuple[int, int]] = {}
    for name, shape in shapes.items():
        param = params.get(name)
        if param is None:
            raise OptionError(f"a shape is given for {name}, but the inputs are {', '.join(params)}")
        dims = param.dims or ()
        if len(dims) != len(shape) or any(isinstance(d, int) and d != e for d, e in zip(dims, shape, strict=True)):
            raise OptionError(f"the shape given for {name} does not fit the input {param}")
        for axis, extent in enumerate(shape):
            bounds = extent.range if isinstance(extent, Size) else (extent, extent)
            if bounds is not None:
                ranges[_symbol(param, axis)] = bounds
    return ranges


def _symbol(param: Param, axis: int) -> str:
    """What names an extent: its symbol, or where it is."""
    dim = (param.dims or ())[axis]
    return dim if isinstance(dim, str) else f"{param.name}_{axis}"
