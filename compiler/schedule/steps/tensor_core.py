"""Steps that map a matrix product to tensor cores, and that pipeline its copies.

The result stays the same up to the rounding that the instruction's kind names.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from retune.compiler.core.errors import DefinitionError, ScheduleError
from retune.compiler.schedule.contraction import as_matmul
from retune.compiler.schedule.state import IterKind, Number, Root, State, initial_stage
from retune.compiler.schedule.steps.base import Step, iterator_of, refuse_annotated, refuse_attached
from retune.compiler.schedule.steps.stages import is_untouched, with_new_stages

MOST_IN_FLIGHT = 8
"""Most iterations of a loop whose copies may be in flight."""


@dataclass(frozen=True, slots=True)
class AsMatmul(Step):
    """Write an operation as a product of two matrices, or a batch of them, that are gathered in shared memory."""

    tag: ClassVar[str] = "MM"

    kind: str

    def apply(self, state: State) -> State:
        """`C[i, j] = Σ A[i, k] B[k, j]` becomes `C.left.shared`, `C.right.shared`, their product `C.mma` and `C`, which
        picks its elements from it; they take the stage's number and the next, and start from naive loops. `kind` is the
        instruction: f16, bf16, or tf32, to which float32 is rounded.
        """
        stage = state.stage(self.stage)
        if not is_untouched(stage):
            raise ScheduleError(f"{stage.op.name}: write it as a product of matrices before transforming the stage")
        refuse_annotated(stage, "write it as a product of matrices")
        refuse_attached(state, self.stage, "write it as a product of matrices")
        try:
            dag = as_matmul(state.dag, self.stage, self.kind)
        except DefinitionError as error:
            raise ScheduleError(str(error)) from None
        fresh = {number: initial_stage(dag.ops[number]) for number in range(self.stage, self.stage + 4)}
        return with_new_stages(state, dag, self.stage, fresh, 3)


@dataclass(frozen=True, slots=True)
class Pipeline(Step):
    """Start the copies into shared memory for an iteration of a loop some iterations earlier."""

    tag: ClassVar[str] = "PL"

    iter: int
    depth: Number

    def apply(self, state: State) -> State:
        """The copies of `depth` iterations of the loop are in flight or ready; 1: those of each iteration alone."""
        iterator = iterator_of(state, self.stage, self.iter)
        stage = state.stages[self.stage]
        if iterator.kind is not IterKind.REDUCTION or isinstance(stage.location, Root):
            raise ScheduleError(
                f"{stage.op.name}: {iterator.name} is no loop that reduces inside another stage, so that nothing is "
                "copied ahead of it"
            )
        if isinstance(self.depth, int) and not 1 <= self.depth <= MOST_IN_FLIGHT:
            raise ScheduleError(f"{stage.op.name}: a pipeline is 1 to {MOST_IN_FLIGHT} deep, not {self.depth}")
        return state.with_stage(self.stage, replace(stage, pipeline=(iterator.name, self.depth)))
