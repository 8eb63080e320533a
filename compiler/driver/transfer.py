"""Transfer of a tuned program from the most similar task, fitted to the sizes of this task.

Nothing is measured or sampled; the program is legal, and its steps are those of a sketch of the task.
"""

from collections.abc import Iterable

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.sketch import derive_sketches, rules_of
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import spaces_of
from retune.compiler.search.transfer import k_nearest, refitted

_TRIED = 4
"""So many of the programs most alike are tried, until one fits."""


def transfer_program(task: SearchTask, programs: Iterable[TaskProgram]) -> tuple[Step, ...] | None:
    """The steps of the nearest program that fits; None when none does, or no task among them is alike."""
    close = k_nearest(task.workload_key, programs, _TRIED)
    if not close:
        return None
    context = SketchContext(task.hardware, SearchOptions())
    # Fitted to a sketch of this task: lengths are set for these extents, and the result is legal by construction.
    spaces = spaces_of(task.dag, context, derive_sketches(task.dag, context, rules_of(context)))
    for program in close:
        try:
            steps = load_steps(program.steps)
        except ScheduleError:
            continue
        for space in spaces:
            fitted = _fitted(space, steps)
            if fitted is not None:
                return fitted
    return None


def _fitted(space: SketchSpace, steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    row = refitted(space, steps)
    if row is None:
        return None
    for _, group in space.groups(np.asarray(row)[None]):
        if space.legal(group).all():
            return space.steps(group.rows[0])
    return None
