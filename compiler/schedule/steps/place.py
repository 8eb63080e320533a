"""Steps that move where a stage is computed.

The result does not change. Bounds inference refuses a location that cannot work.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import Attached, Inlined, Location, Root, State
from retune.compiler.schedule.steps.base import Step, iterator_of, refuse_attached, refuse_family, refuse_function_input
from retune.compiler.te.tensor import ExternOp, WithoutLoops


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Compute a stage inside a loop of a reader: the part that one iteration of that loop needs."""

    tag: ClassVar[str] = "CA"

    target_stage: int
    target_iter: int

    def apply(self, state: State) -> State:
        """The stage's extents become unknown until bounds are inferred."""
        name = state.stage(self.stage).op.name
        target = state.stage(self.target_stage).op
        if isinstance(target, WithoutLoops):
            what = "calls a function" if isinstance(target, ExternOp) else "is a scan"
            raise ScheduleError(f"{name}: {target.name} {what} and has no loops")
        iterator_of(state, self.target_stage, self.target_iter)
        # Stages are in topological order: only a later stage can read this stage.
        if self.target_stage <= self.stage:
            raise ScheduleError(
                f"{name}: can only be computed inside a later stage, not {state.stages[self.target_stage].op.name}"
            )
        refuse_function_input(state, self.stage, "compute it inside another stage")
        if isinstance(state.stages[self.target_stage].location, Inlined):
            raise ScheduleError(f"{name}: {state.stages[self.target_stage].op.name} is inlined and has no loops")
        if self.stage in state.dag.output_ids:
            raise ScheduleError(f"{name}: an output cannot be computed inside another stage")
        return _relocate(state, self.stage, Attached(self.target_stage, self.target_iter))


def _relocate(state: State, stage_id: int, location: Location) -> State:
    stage = state.stage(stage_id)
    if not stage.is_compute:
        raise ScheduleError(f"{stage.op.name}: an input has no loops to place; cache it first (cache_read)")
    iters = tuple(replace(iterator, extent=None) for iterator in stage.iters)
    return state.with_stage(stage_id, replace(stage, iters=iters, location=location))


@dataclass(frozen=True, slots=True)
class ComputeRoot(Step):
    """Give a stage its own loop nest again."""

    tag: ClassVar[str] = "CR"

    def apply(self, state: State) -> State:
        """Undoes `ComputeAt`."""
        return _relocate(state, self.stage, Root())


@dataclass(frozen=True, slots=True)
class ComputeInline(Step):
    """Compute an elementwise stage wherever it is read."""

    tag: ClassVar[str] = "CI"

    def apply(self, state: State) -> State:
        """The stage's loops disappear."""
        stage = state.stage(self.stage)
        if not stage.is_compute or stage.has_reduce_iter or self.stage in state.dag.output_ids:
            raise ScheduleError(
                f"{stage.op.name}: only a computed stage that is neither reduction nor output can be inlined"
            )
        refuse_attached(state, self.stage, "inline it")
        refuse_family(stage, "inline it")
        refuse_function_input(state, self.stage, "inline it")
        return state.with_stage(self.stage, replace(stage, location=Inlined()))
