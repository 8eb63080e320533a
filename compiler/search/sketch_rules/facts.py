"""In: a state and one of its stages. Out: what several sketch rules ask about it. Always: pure functions."""

from compiler.schedule.access import is_strictly_inlineable
from compiler.schedule.state import State
from compiler.schedule.steps import CacheWrite


def should_always_be_inlined(state: State, stage: int) -> bool:
    """Whether computing the stage anew at every read costs nothing worth keeping."""
    described = state.stages[stage]
    if not described.is_compute or stage in state.dag.output_ids or described.has_reduce_iter:
        return False
    return is_strictly_inlineable(state.dag, stage)


def has_cache_write(state: State, stage: int) -> bool:
    """Whether the stage is a write cache that an earlier step added; numbers are traced back through the history."""
    for step in reversed(state.steps):
        if isinstance(step, CacheWrite):
            if step.stage == stage:
                return True
            if step.stage < stage:
                stage -= 1
    return False
