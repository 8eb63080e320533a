"""The sketch spaces of a task, one for every sketch that has a sound placement."""

from collections.abc import Sequence

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.gpu.space import GpuSketchSpace
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.rules.base import CPU_SEARCH, GPU_SEARCH
from retune.compiler.search.sketch import derive_sketches, report_failure
from retune.compiler.search.space import SketchSpace

SPACES: dict[str, type[SketchSpace]] = {CPU_SEARCH.name: SketchSpace, GPU_SEARCH.name: GpuSketchSpace}
"""The sketch space of every kind of search."""


def build_spaces(task: SearchTask, options: SearchOptions) -> tuple[SketchSpace, ...]:
    """A space for every sketch of the task that has a sound placement, by the rules of the task's kind of machine."""
    context = SketchContext(task.hardware, options, None, task.target)
    return spaces_of(task.scored_dag, context, derive_sketches(task.scored_dag, context))


def spaces_of(
    dag: ComputeDAG, context: SketchContext, sketches: Sequence[State], failures: list[str] | None = None
) -> tuple[SketchSpace, ...]:
    """A space for every distinct sketch that has a sound placement, in order. A sketch whose space raises is dropped
    and reported like a failing rule of `derive_sketches`.
    """
    different: dict[tuple[object, ...], State] = {}
    for sketch in sketches:
        different.setdefault(sketch.steps, sketch)
    spaces = []
    for sketch in different.values():
        try:
            spaces.append(SPACES[context.kind.name].of(dag, context, sketch))
        except ScheduleError as error:
            report_failure(failures, f"a sketch allows no program: {error}")
    return tuple(space for space in spaces if space.placements)
