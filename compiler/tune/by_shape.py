"""Tunes one task with symbolic extents for a distribution of shapes, in this process.

The score of a program is its expected time over the task's sample of shapes. At the end at most a few programs with
one layout of constants become one kernel, which is timed in turn with the best single program and the default schedule.
"""

from collections.abc import Mapping
from math import isfinite, prod

import numpy as np

from retune.compiler.core.errors import OptionError
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.record import DEFAULT_SCHEDULE, Measurement, TaskProgram
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.search.choose_by_size import MOST_PROGRAMS, TimedProgram, choose_by_size
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.tuning import default_program
from retune.compiler.tune.tuning_loop import Budget, TaskProgress, TuningLoop, first_state
from retune.compiler.tune.winners import Confirmation, choose_best

SAMPLE = 8
"""Shapes of a sample: each is timed for every program."""
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


def tune_by_shape(
    task: SearchTask,
    measurer: LocalMeasurer,
    trials: int,
    options: SearchOptions | None = None,
    seed: int = 0,
    most: int = MOST_PROGRAMS,
) -> Confirmation:
    """Measure `trials` programs of a task with `shapes`, and confirm the best kernel of at most `most` of them.

    Raises: MeasureError when nothing can be measured.
    """
    policy = BlockSearch(task, XGBModel(seed=seed, threads=1), options, seed)
    loop = TuningLoop([TaskProgress(task, first_state(task, 1.0))], seed=seed)
    measured: dict[str, Measurement] = {}
    for round_ in loop.rounds_until(Budget(trials, None), _BATCH):
        first = () if measured else (default_program(task),)
        candidates = (*first, *policy.ask(round_.count - len(first), loop.rounds, round_.spent))
        if not candidates:
            loop.exhaust(0, "it has no program left")
            continue
        steps = [load_steps(program.steps) for program in candidates]
        results = measurer.measure(task, steps, loop.tasks[0].state.best_seconds)
        measured |= {program.steps: result for program, result in zip(candidates, results, strict=True)}
        told = [
            TaskProgram(task.workload_key, program.steps, result.seconds, mutation=program.mutation)
            for program, result in zip(candidates, results, strict=True)
        ]
        policy.tell(told)
        loop.finish_round(0, told)
    return choose_best(task, shortlist(task, measured, most), measurer.builder, measurer.runner)


def shortlist(task: SearchTask, measured: Mapping[str, Measurement], most: int) -> tuple[TaskProgram, ...]:
    """The fastest single program, and the kernel of at most `most` programs, of those `measured` by steps text."""
    timed = {text: result for text, result in measured.items() if isfinite(result.seconds) and result.by_shape}
    texts = [min(timed, key=lambda text: timed[text].seconds)] if timed else []
    texts.append(
        dump_steps(choose_by_size(task, [_timed_program(text, result) for text, result in timed.items()], most))
    )
    return tuple(
        TaskProgram(task.workload_key, text, mutation=DEFAULT_SCHEDULE if text == "[]" else "by size")
        for text in dict.fromkeys(texts)
        if text != "[]"
    )


def _timed_program(text: str, result: Measurement) -> TimedProgram:
    assert result.artifact is not None, "what was timed was built"
    layout = tuple(arg.packing for arg in result.artifact.args)
    return TimedProgram(load_steps(text), tuple(part.seconds for part in result.by_shape), layout)
