"""Steps that annotate how a loop runs or how a buffer is laid out.

The order of the computation does not change.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import (
    Alignment,
    Annotation,
    Attached,
    FuseRelation,
    Inlined,
    IterKind,
    SplitRelation,
    Stage,
    State,
)
from retune.compiler.schedule.steps.base import Step, iterator_of, refuse_function_input, splice
from retune.compiler.schedule.steps.place import ComputeRoot
from retune.compiler.te.tensor import ComputeOp

_ANNOTATIONS = frozenset(int(annotation) for annotation in Annotation)
UNROLL_PRAGMA = "auto_unroll_max_step$"
"""Before the limit of unrolling in the text of a pragma."""
_MOST_DIGITS = 18
"""Digits of an unroll limit, an int64 in arrays."""

_UNORDERED = (IterKind.SPATIAL, IterKind.SPECIAL)
"""Loops whose iterations may run concurrently: they write different elements, or there is only one iteration."""


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """Say how a loop runs."""

    tag: ClassVar[str] = "AN"

    iter: int
    annotation: int

    def apply(self, state: State) -> State:
        """`for i` becomes `parallel i`, `vectorize i`, …"""
        iterator = iterator_of(state, self.stage, self.iter)
        stage = state.stages[self.stage]
        if iterator.annotation is not Annotation.NONE:
            raise ScheduleError(f"{stage.op.name}: the loop {iterator.name} is annotated already")
        if self.annotation not in _ANNOTATIONS or self.annotation == Annotation.NONE:
            raise ScheduleError(
                f"{stage.op.name}: {self.annotation} is no annotation of the loop {iterator.name}; "
                f"known: 1 to {max(_ANNOTATIONS)}"
            )
        if self.annotation == Annotation.VECTORIZE and iterator.kind not in _UNORDERED:
            raise ScheduleError(
                f"{stage.op.name}: the loop {iterator.name} reduces; only a spatial loop can be a vector loop "
                "(an innermost reduction over neighboring elements runs in lanes without being told)"
            )
        if self.annotation == Annotation.PARALLEL and iterator.kind not in _UNORDERED:
            raise ScheduleError(
                f"{stage.op.name}: the loop {iterator.name} reduces; only a spatial loop can run in parallel"
            )
        changed = replace(iterator, annotation=Annotation(self.annotation))
        return state.with_stage(self.stage, replace(stage, iters=splice(stage.iters, self.iter, 1, (changed,))))


@dataclass(frozen=True, slots=True)
class Pragma(Step):
    """Advice to the code generator: `auto_unroll_max_step$N`, or `debug_skip_region`."""

    tag: ClassVar[str] = "PR"

    iter: int
    text: str

    def apply(self, state: State) -> State:
        """Sets the stage's unroll limit. `debug_skip_region` moves the stage out of the loop it is computed in; it gets
        its own loop nest, because a kernel computes what its definition says.
        """
        stage = state.stage(self.stage)
        if self.text == "debug_skip_region":
            return ComputeRoot(self.stage).apply(state) if isinstance(stage.location, Attached) else state
        value = self.text.removeprefix(UNROLL_PRAGMA)
        if value == self.text or not value.isdecimal():
            raise ScheduleError(
                f"{stage.op.name}: the pragma {self.text!r} is unknown; "
                "known: auto_unroll_max_step$N, debug_skip_region"
            )
        if len(value) > _MOST_DIGITS:
            raise ScheduleError(f"{stage.op.name}: an unroll limit of {len(value)} digits is none")
        return state.with_stage(self.stage, replace(stage, unroll_limit=int(value)))


@dataclass(frozen=True, slots=True)
class StorageAlign(Step):
    """Pad the buffer of a stage, so that rows do not compete for the same cache sets."""

    tag: ClassVar[str] = "SA"

    iter: int
    factor: int
    offset: int

    def apply(self, state: State) -> State:
        """A step along the axis of loop `iter` moves a multiple of `factor`, plus `offset`, elements."""
        iterator = iterator_of(state, self.stage, self.iter)
        stage = state.stages[self.stage]
        name = stage.op.name
        if self.factor < 1 or not 0 <= self.offset < self.factor:
            raise ScheduleError(
                f"{name}: cannot align {iterator.name} to {self.offset} modulo {self.factor}; "
                "the factor must be positive and the offset below it"
            )
        if self.stage in state.dag.output_ids:
            raise ScheduleError(
                f"{name}: an output lies where its reader expects it; align a write cache of it instead (cache_write)"
            )
        if isinstance(stage.location, Inlined):
            raise ScheduleError(f"{name}: it is inlined and has no storage; align it before, or compute it somewhere")
        refuse_function_input(state, self.stage, "align its storage")
        alignment = Alignment(_axis_under(stage, iterator.name), self.factor, self.offset)
        return state.with_stage(self.stage, replace(stage, alignment=alignment))


def _axis_under(stage: Stage, loop: str) -> str:
    """The axis that a loop, or the loop it was split from, runs over."""
    name = loop
    # From the last relation to the first: up from the loop to its axis.
    for relation in reversed(stage.relations):
        if isinstance(relation, SplitRelation) and name in relation.parts:
            name = relation.parent
        elif isinstance(relation, FuseRelation) and name == relation.fused:
            raise ScheduleError(
                f"{stage.op.name}: the loop {loop} was fused from {', '.join(relation.parts)}; "
                "align the storage along one of those before fusing"
            )
    if not isinstance(stage.op, ComputeOp) or name not in {axis.name for axis in stage.op.axes}:
        raise ScheduleError(
            f"{stage.op.name}: its storage has no dimension for the loop {loop}; align along a spatial loop"
        )
    return name
