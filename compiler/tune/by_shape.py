"""Tunes tasks with symbolic extents for a distribution of shapes, in this process.

The score of a program is its expected time over the task's sample of shapes. At the end at most a few programs with
one layout of constants become one kernel, which is timed in turn with the best single program and the default schedule.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod

import numpy as np

from retune.compiler.core.errors import OptionError, ShapeMismatchError
from retune.compiler.core.input_shapes import WeightedShapes, read_shapes
from retune.compiler.graph.program import Program
from retune.compiler.graph.region import bind
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.record import DEFAULT_SCHEDULE, Measurement, TaskProgram
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.search.choose_by_size import TimedProgram, choose_by_size
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.tuning import default_program
from retune.compiler.tune.tuning_loop import EMPTY_ROUND, Budget, TaskProgress, TuningLoop, first_state
from retune.compiler.tune.winners import Confirmation, confirm_fastest, time_again

SAMPLE = 8
"""Shapes of a sample: each is timed for every program."""
_MOST = 16
"""Most shapes that a file gives a sample."""
_BATCH = 16


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
    rows = sorted(weights, key=lambda row: (prod(row), row))
    middles = np.cumsum([weights[row] for row in rows]) - [weights[row] / 2 for row in rows]
    total = sum(weights.values())
    parts: dict[int, list[tuple[int, ...]]] = {}
    for number, (row, middle) in enumerate(zip(rows, middles, strict=True)):
        parts.setdefault(number if len(rows) <= _MOST else int(middle / total * _MOST), []).append(row)
    shares = ((part[len(part) // 2], sum(weights[row] for row in part) / total) for part in parts.values())
    return tuple(SampledShape(dict(zip(symbols, row, strict=True)), share) for row, share in shares)


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


class _ShapedTask(TaskProgress):
    """A task with its search, and what was measured, by steps text."""

    def __init__(self, task: SearchTask, weight: float, search: BlockSearch) -> None:
        super().__init__(task, first_state(task, weight))
        self.search = search
        self.measured: dict[str, Measurement] = {}


def tune_by_shape(
    tasks: Sequence[tuple[SearchTask, float]],
    measurer: LocalMeasurer,
    budget: Budget,
    options: SearchOptions | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
    patience: int = 0,
) -> list[Confirmation]:
    """Spend the budget on tasks with `shapes`, each with the weight of its calls, and confirm the best kernel of each,
    of at most `MOST_PROGRAMS` programs. `tell` is called with a line after each round, and after `patience` trials
    without a gain (0: never) the search ends.

    Raises: MeasureError when nothing can be measured.
    """
    model, began = XGBModel(seed=seed, threads=1), time.monotonic()
    shaped = [_ShapedTask(task, weight, BlockSearch(task, model, options, seed)) for task, weight in tasks]
    loop = TuningLoop(shaped, seed=seed)
    for round_ in loop.rounds_until(budget, _BATCH, patience, clock=lambda: time.monotonic() - began):
        own = loop.tasks[round_.index]
        first = () if own.measured else (default_program(own.task),)
        candidates = (*first, *own.search.ask(round_.count - len(first), own.state.rounds, round_.spent))
        if not candidates:
            loop.exhaust(round_.index, EMPTY_ROUND)
            continue
        steps = [load_steps(program.steps) for program in candidates]
        results = measurer.measure(own.task, steps, own.state.best_seconds)
        own.measured |= {program.steps: result for program, result in zip(candidates, results, strict=True)}
        told = [replace(program, seconds=result.seconds) for program, result in zip(candidates, results, strict=True)]
        own.search.tell(told)
        loop.finish_round(round_.index, told)
        loop.elapsed = time.monotonic() - began
        tell(f"{own.task.name}: {len(own.measured)} programs, {milliseconds(own.state.best_seconds)} ms")
    timed = [
        time_again(own.task, shortlist(own.task, own.measured), measurer.builder, measurer.runner) for own in shaped
    ]
    return confirm_fastest(timed, measurer.runner)


def shortlist(task: SearchTask, measured: Mapping[str, Measurement]) -> tuple[TaskProgram, ...]:
    """The fastest single program, and the kernel of a few programs, of those `measured` by steps text."""
    timed = {text: result for text, result in measured.items() if isfinite(result.seconds) and result.shapes}
    texts = [min(timed, key=lambda text: timed[text].seconds)] if timed else []
    texts.append(dump_steps(choose_by_size(task, [_timed_program(text, result) for text, result in timed.items()])))
    return tuple(
        TaskProgram(task.workload_key, text, mutation=DEFAULT_SCHEDULE if text == "[]" else "by size")
        for text in dict.fromkeys(texts)
        if text != "[]"
    )


def _timed_program(text: str, result: Measurement) -> TimedProgram:
    assert result.artifact is not None, "what was timed was built"
    layout = tuple(arg.packing for arg in result.artifact.args)
    return TimedProgram(load_steps(text), tuple(min(shape.costs) for shape in result.shapes), layout)
