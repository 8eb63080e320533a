"""Sketch rule: compute an elementwise stage inside the product with a constant matrix that reads it (GPU)."""

from dataclasses import dataclass

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.reads import consumers, producers
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import ComputeAt
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import CONST_INDICES, named_loops, should_always_be_inlined


@dataclass(frozen=True, slots=True)
class SpecialComputeLocation:
    """Compute such a stage once before the unrolled loops: inlined, each of its elements would be read again for every
    row of the matrix.

    before: t = gather(a); for p: unroll e: unroll r: u += t * m
    after:  for p: (for e r: t = gather(a)); unroll e: unroll r: u += t * m
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY_AND_STOP if the stage would be inlined into a product with a constant matrix."""
        readers = consumers(state, stage)
        if len(readers) != 1 or not producers(state, stage) or not should_always_be_inlined(context, state, stage):
            return Verdict.SKIP
        return Verdict.APPLY_AND_STOP if named_loops(state, readers[0], CONST_INDICES) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with the stage in the last loop before the reader's first unrolled loop.

        Raises: ScheduleError when all loops of the reader are unrolled.
        """
        (reader,) = consumers(state, stage)
        for number, iterator in enumerate(state.stages[reader].iters):
            if iterator.annotation is Annotation.UNROLL:
                if number == 0:
                    break
                return ((state.apply(ComputeAt(stage, reader, number - 1)), stage - 1),)
        name = state.stages[reader].op.name
        raise ScheduleError(f"{name}: {CONST_INDICES} must list some of its loops, not all and not others")
