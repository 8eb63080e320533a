"""`LoopChoices`: by stage, how many loops run in parallel, whether the last is a vector, and the unroll limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from retune.compiler.schedule.state import Annotation, FuseRelation, Inlined, Number, State


@dataclass(frozen=True, slots=True, eq=False)
class LoopChoices:
    """Choices by stage number; a missing stage means 0."""

    parallel: Mapping[int, Number] = field(default_factory=dict)
    """Number of outermost loops of a root stage that are fused and run in parallel."""
    vector: Mapping[int, Number] = field(default_factory=dict)
    """1 where the last spatial loop is a vector loop."""
    unroll: Mapping[int, Number] = field(default_factory=dict)
    """The limit up to which reduction loops are unrolled, in operations."""


def choices_of(state: State) -> LoopChoices:
    """The choices that a concrete state's annotations make."""
    parallel: dict[int, Number] = {}
    vector: dict[int, Number] = {}
    unroll: dict[int, Number] = {}
    for stage_id, stage in enumerate(state.stages):
        if not stage.is_compute or isinstance(stage.location, Inlined):
            continue
        fused = {
            relation.fused: len(relation.parts) for relation in stage.relations if isinstance(relation, FuseRelation)
        }
        for iterator in stage.iters:
            if iterator.annotation is Annotation.PARALLEL:
                parallel[stage_id] = parallel.get(stage_id, 0) + fused.get(iterator.name, 1)
            if iterator.annotation is Annotation.VECTORIZE:
                vector[stage_id] = 1
        unroll[stage_id] = stage.unroll_limit
    return LoopChoices(parallel, vector, unroll)
