"""TVM-compatible `State`: a mutable wrapper of `retune.compiler.schedule.state.State`.

Each call appends one transform step, kept in `steps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from html import escape

from retune.compiler.schedule import primitives
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.primitives import LoopRef, StageRef
from retune.compiler.schedule.state import Attached, Inlined, Iterator, Number
from retune.compiler.schedule.steps import Step, steps_of
from retune.compiler.te.tensor import Operation, Tensor


# TVM's numbers, which scripts compare with.
class ComputeAtKind(IntEnum):
    """The location of a stage: its own loop nest, inlined at every read, or inside a loop of another stage."""

    ROOT = 0
    INLINED = 1
    ITER = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """A snapshot of one stage of a program."""

    op: Operation
    iters: tuple[Iterator, ...]
    compute_at: ComputeAtKind
    auto_unroll_max_step: Number
    storage_offset: int


class State:
    """A program whose loops are transformed by calls, each of which appends one step.

    A stage is given by its number, its tensor, its operation or its name; a loop by its number, its name or the
    iterator that an earlier call returned. Handles stay valid when stages are added. Two states are equal if their
    loops print alike, whatever their steps.
    Raises: every call raises ScheduleError naming the stage, the loop and a remedy when it does not fit, and leaves the
    program unchanged.
    """

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self, state_object: "immutable.State | State", dag: ComputeDAG | None = None) -> None:
        """An independent program that begins as `state_object`. `dag` is redundant, and ignored."""
        del dag
        self._state = state_object.value if isinstance(state_object, State) else state_object

    @property
    def value(self) -> immutable.State:
        return self._state

    @property
    def state_object(self) -> immutable.State:
        """Same as `value`, under TVM's name."""
        return self._state

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self._state)

    transform_steps = steps

    @property
    def compute_dag(self) -> ComputeDAG:
        return self._state.dag

    @property
    def concrete(self) -> bool:
        """Whether every tile size is known."""
        return self._state.concrete

    @property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(self[number] for number in range(len(self._state.stages)))

    @property
    def stage_ops(self) -> tuple[Operation, ...]:
        return self._state.dag.ops

    def __getitem__(self, stage: StageRef) -> Stage:
        current = self._state.stages[primitives.stage_number(self._state, stage)]
        location = current.location
        kind = ComputeAtKind.INLINED if isinstance(location, Inlined) else ComputeAtKind.ROOT
        kind = ComputeAtKind.ITER if isinstance(location, Attached) else kind
        offset = 0 if current.alignment is None else current.alignment.offset
        return Stage(current.op, current.iters, kind, current.unroll_limit, offset)

    def __eq__(self, other: object) -> bool:
        # By their text, as in TVM: steps may differ for equal loops.
        return isinstance(other, State) and str(self) == str(other)

    def __str__(self) -> str:
        return str(self._state)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def copy(self) -> "State":
        return State(self._state)

    def bind(self, stage: StageRef, iterator: LoopRef, thread_name: str) -> Iterator:
        """Run the iterations of a loop on GPU threads: `blockIdx.x`, `threadIdx.y`, `vthread`, …"""
        self._state, loop = primitives.bind(self._state, stage, iterator, thread_name)
        return loop

    def parallel(self, stage: StageRef, iterator: LoopRef) -> Iterator:
        """Run the iterations of an outermost loop on several threads."""
        self._state, loop = primitives.parallel(self._state, stage, iterator)
        return loop

    def unroll(self, stage: StageRef, iterator: LoopRef, max_unroll: int | None = None) -> Iterator:
        """Replace a loop by its copies, unless it is known to be longer than `max_unroll`."""
        # -1 is "no limit" in the steps of TVM's logs.
        limit = -1 if max_unroll is None else max_unroll
        self._state, loop = primitives.unroll(self._state, stage, iterator, limit)
        return loop

    def vectorize(self, stage: StageRef, iterator: LoopRef) -> Iterator:
        """Run the iterations of a loop in the lanes of a vector."""
        self._state, loop = primitives.vectorize(self._state, stage, iterator)
        return loop

    def fuse(self, stage: StageRef, iters: Sequence[LoopRef]) -> Iterator:
        self._state, loop = primitives.fuse(self._state, stage, iters)
        return loop

    def pragma(self, stage: StageRef, iterator: LoopRef, pragma_type: str) -> None:
        """Advise the code generator: `auto_unroll_max_step$N`."""
        self._state = primitives.pragma(self._state, stage, iterator, pragma_type)

    def reorder(self, stage: StageRef, order: Sequence[LoopRef]) -> None:
        """Permute the loops; every loop is named once, outermost first."""
        self._state = primitives.reorder(self._state, stage, order)

    def split(
        self, stage: StageRef, iterator: LoopRef, lengths: Sequence[Number | None], inner_to_outer: bool = True
    ) -> tuple[Iterator, ...]:
        """Tile a loop. `lengths` are those of all parts but the first, or but the last (`inner_to_outer` False)."""
        self._state, parts = primitives.split(self._state, stage, iterator, lengths, inner_to_outer)
        return parts

    def follow_split(self, stage: StageRef, iterator: LoopRef, src_step_id: int, n_split: int) -> tuple[Iterator, ...]:
        """Tile a loop like step number `src_step_id`, into `n_split` + 1 parts."""
        self._state, parts = primitives.follow_split(self._state, stage, iterator, src_step_id, n_split)
        return parts

    def follow_fused_split(
        self, stage: StageRef, iterator: LoopRef, src_step_ids: Sequence[int], level: int, factor_or_nparts: bool
    ) -> tuple[Iterator, ...]:
        """Split in two; the product of length `level` of several splits is the inner (True) or outer extent."""
        self._state, parts = primitives.follow_fused_split(
            self._state, stage, iterator, src_step_ids, level, factor_or_nparts
        )
        return parts

    def storage_align(self, stage: StageRef, iterator: LoopRef, factor: int, offset: int) -> None:
        """Pad the stage's buffer along the axis of a loop."""
        self._state = primitives.storage_align(self._state, stage, iterator, factor, offset)

    def compute_at(self, stage: StageRef, target_stage: StageRef, target_iter: LoopRef) -> None:
        """Compute a stage inside a loop of a stage that reads it."""
        self._state = primitives.compute_at(self._state, stage, target_stage, target_iter)

    def compute_inline(self, stage: StageRef) -> None:
        """Compute an elementwise stage wherever it is read."""
        self._state = primitives.compute_inline(self._state, stage)

    def compute_root(self, stage: StageRef) -> None:
        """Give a stage a loop nest of its own again."""
        self._state = primitives.compute_root(self._state, stage)

    def cache_read(self, stage: StageRef, scope_name: str, reader_stages: Sequence[StageRef]) -> Tensor:
        """Copy a tensor into a buffer that `reader_stages` read instead; returns the buffer's tensor."""
        self._state, cache = primitives.cache_read(self._state, stage, scope_name, reader_stages)
        return cache

    def cache_write(self, stage: StageRef, scope_name: str) -> Tensor:
        """Compute a stage into a buffer first and copy it from there; returns the buffer's tensor."""
        self._state, cache = primitives.cache_write(self._state, stage, scope_name)
        return cache

    def rfactor(self, stage: StageRef, iterator: LoopRef, factor_iter_id: int) -> Tensor:
        """Reduce in two steps; returns the tensor of the first."""
        self._state, partial = primitives.rfactor(self._state, stage, iterator, factor_iter_id)
        return partial
