"""The sample of shapes that a network of dynamic shapes is tuned for, and its use by tasks.

The score of a program is its expected time over the task's sample of shapes. At the end at most a few programs with
one layout of constants become one kernel, which is timed in turn with the single programs and the default schedule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod

import numpy as np

from retune.compiler.core.errors import OptionError, ShapeMismatchError
from retune.compiler.core.input_shapes import WeightedShapes, read_shapes
from retune.compiler.graph.program import Program
from retune.compiler.graph.region import bind
from retune.compiler.measure.record import BY_SIZE, Measurement, TaskProgram
from retune.compiler.schedule.steps import SizeLimit, dump_steps, load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.choose_by_size import TimedProgram, choose_by_size

SAMPLE = 8
"""Shapes of a sample: each is timed for every program."""
_MOST = 16
"""Most shapes that a file gives a sample."""


def log_uniform(ranges: Mapping[str, tuple[int, int]], count: int = SAMPLE, seed: int = 0) -> tuple[SampledShape, ...]:
    """A sample of shapes with the symbols in `ranges`, first and last value, in which each doubling of a size is as
    likely as the next: a Latin hypercube, whose strata are all met once along every symbol.

    Raises: OptionError for a range that is empty or begins below 1.
    """
    for name, (low, high) in ranges.items():
        if not 1 <= low <= high:
            raise OptionError(f"the range {low}..{high} of {name} is empty or begins below 1; write it as 1..512")
    rng = np.random.default_rng(seed)
    columns = []
    for low, high in ranges.values():
        strata = (rng.permutation(count) + rng.random(count)) / count
        columns.append([min(high, int(low * (high / low) ** share + 0.5)) for share in strata])
    rows = [tuple(row) for row in zip(*columns, strict=True)]
    return tuple(
        SampledShape(dict(zip(ranges, row, strict=True)), rows.count(row) / len(rows))
        for row in sorted(set(rows), key=lambda row: (prod(row), row))
    )


def sample_of(program: Program, path: str | None, seed: int) -> tuple[SampledShape, ...]:
    """The sample of a network's symbols: that of the file of shapes at `path`, else log-uniform over its ranges.

    Raises: OptionError where a symbol of the inputs has no range, or the file no shapes that fit.
    """
    for param in program.inputs:
        if not param.is_tensor or param.dims is None or None in param.dims:
            raise OptionError(f"the shape of the input {param} is not known, so its kernels cannot be tuned for shapes")
    if path:
        return read_sample(path, program)
    symbols = sorted({dim for param in program.inputs for dim in param.dims or () if isinstance(dim, str)})
    if free := [symbol for symbol in symbols if symbol not in program.ranges]:
        raise OptionError(f"{free[0]} has no range to tune for: give each symbol a range, or --shapes a file")
    ranges = {symbol: program.ranges[symbol] for symbol in symbols}
    return log_uniform({symbol: (max(low, 1), high) for symbol, (low, high) in ranges.items()}, seed=seed)


def read_sample(path: str, program: Program) -> tuple[SampledShape, ...]:
    """The sample of a network's symbols that a file of shapes gives, see `read_shapes`. Where these are many, parts of
    equal weight have a shape each.

    Raises: OptionError for a shape that fits no input of the program, and where a symbol of the inputs has no value.
    """
    weights: dict[tuple[int, ...], float] = {}
    symbols = sorted({dim for param in program.inputs for dim in param.dims or () if isinstance(dim, str)})
    for entry in read_shapes(path):
        sizes = _sizes_of(entry, program)
        if missing := [symbol for symbol in symbols if symbol not in sizes]:
            raise OptionError(f"{entry.where}: no shape says what {missing[0]} is: name an input that has it")
        row = tuple(sizes[symbol] for symbol in symbols)
        weights[row] = weights.get(row, 0.0) + entry.weight
    total = sum(weights.values())
    shapes = (SampledShape(dict(zip(symbols, row, strict=True)), share / total) for row, share in weights.items())
    return represent(tuple(shapes), _MOST)


def represent(shapes: Sequence[SampledShape], most: int) -> tuple[SampledShape, ...]:
    """The shapes from the smallest on; where these are more than `most`, one for each part of equal weight."""
    ordered = sorted(shapes, key=lambda shape: (prod(shape.sizes.values()), *shape.sizes.values()))
    if len(ordered) <= most:
        return tuple(ordered)
    weights = np.array([shape.weight for shape in ordered])
    numbers = ((np.cumsum(weights) - weights / 2) * most).astype(int)
    parts = [[shape for shape, part in zip(ordered, numbers, strict=True) if part == number] for number in set(numbers)]
    return tuple(
        SampledShape(part[len(part) // 2].sizes, sum(shape.weight for shape in part))
        for part in sorted(parts, key=lambda part: ordered.index(part[0]))
    )


def _sizes_of(entry: WeightedShapes, program: Program) -> dict[str, int]:
    """The symbols that the shapes of an entry say. Raises: OptionError."""
    params = {param.name: param for param in program.inputs}
    if unknown := [name for name in entry.shapes if name not in params]:
        raise OptionError(f"{entry.where}: the network has no input {unknown[0]}; its inputs are {', '.join(params)}")
    named = [params[name] for name in entry.shapes]
    # Arrays of these shapes without memory.
    arrays = {param.name: np.broadcast_to(np.zeros((), param.dtype), entry.shapes[param.name]) for param in named}
    try:
        return bind(named, arrays, program.ranges)
    except (ShapeMismatchError, ValueError) as error:
        raise OptionError(f"{entry.where}: {error}") from error


def with_shapes(task: SearchTask, symbols: Mapping[str, str], sample: Sequence[SampledShape]) -> SearchTask | None:
    """The task with a `sample` of its network's symbols, to which `symbols` maps its own; None if it has others."""
    if not task.symbols or any(symbols.get(own) not in sample[0].sizes for own in task.symbols):
        return None
    weights: dict[tuple[int, ...], float] = {}
    for shape in sample:
        sizes = tuple(shape.sizes[symbols[own]] for own in task.symbols)
        weights[sizes] = weights.get(sizes, 0.0) + shape.weight
    shapes = (SampledShape(dict(zip(task.symbols, sizes, strict=True)), weight) for sizes, weight in weights.items())
    return replace(task, shapes=tuple(shapes))


def combine_by_size(
    task: SearchTask, programs: Sequence[TaskProgram], results: Sequence[Measurement]
) -> TaskProgram | None:
    """A kernel of at most a few of the `programs`, each for a range of sizes, by their times at each shape in
    `results`; None where a single program is as good, and for a task of one shape.
    """
    if not task.shapes:
        return None
    timed: list[TimedProgram] = []
    for program, result in zip(programs, results, strict=True):
        steps = load_steps(program.steps)
        if result.artifact and isfinite(result.seconds) and not any(isinstance(step, SizeLimit) for step in steps):
            layout = tuple(arg.packing for arg in result.artifact.args)
            timed.append(TimedProgram(steps, tuple(min(shape.costs) for shape in result.shapes), layout))
    text = dump_steps(choose_by_size(task, timed)) if timed else programs[-1].steps
    known = {program.steps for program in programs}
    return None if text in known else TaskProgram(task.workload_key, text, mutation=BY_SIZE)
