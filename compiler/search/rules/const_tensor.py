"""Sketch rules of products with a constant matrix, which becomes literals in straight-line code.

The loops over the matrix are unrolled; a GPU computes an elementwise stage that the product reads inside of it.
"""

from dataclasses import dataclass

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.reads import consumers, producers
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Split
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import CONST_INDICES, named_loops, should_always_be_inlined
from retune.compiler.search.rules.tiling import literal_extent

# As in TVM, loops that are not listed have two levels.
_LEVELS = 2


@dataclass(frozen=True, slots=True)
class SimplifyComputeWithConstTensor:
    """Unroll the loops that the operation lists as indices of its constant matrix; split the others in two.

    before: for e: for p: for r: u[e, p] += t[r, p] * m[r, e]
    after:  for p.0: for p.1: unroll e: unroll r: u += t * m
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY_AND_STOP for an operation with the attribute."""
        return Verdict.APPLY_AND_STOP if named_loops(state, stage, CONST_INDICES) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        """The state with the stage's loops in order.

        Raises: ScheduleError when a loop that is not listed reduces.
        """
        names = named_loops(state, stage, CONST_INDICES)
        levels: list[list[int]] = [[] for _ in range(_LEVELS)]
        unrolled: list[int] = []
        position = 0
        for iterator in state.stages[stage].iters:
            if iterator.name in names:
                state = state.apply(Annotate(stage, position, int(Annotation.UNROLL)))
                unrolled.append(position)
                position += 1
                continue
            if iterator.kind is not IterKind.SPATIAL:
                raise ScheduleError(
                    f"{state.stages[stage].op.name}: the reduction {iterator.name} must be among the loops that "
                    f"{CONST_INDICES} lists"
                )
            state = state.apply(Split(stage, position, literal_extent(iterator), (None,) * (_LEVELS - 1)))
            for level in levels:
                level.append(position)
                position += 1
        order = (*(number for level in levels for number in level), *unrolled)
        return ((state.apply(Reorder(stage, order)), stage - 1),)


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
