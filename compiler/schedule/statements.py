"""The loops of every statement with their extents, and its accesses as linear forms.

It works on one program or a family of them, with a few hundred NumPy calls whatever the number of programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.affine import Affine
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.bounds import (
    Loop,
    StageBounds,
    axis_values,
    extents_of,
    fused_parts_of,
    infer_stage_bounds,
)
from retune.compiler.schedule.counts import OpCounts
from retune.compiler.schedule.default.fused_parts import FusedPart, cover_fused_parts
from retune.compiler.schedule.inlining import counts_of, inlined_stages, reads_of
from retune.compiler.schedule.linear import Linear, LoopKey, linearize
from retune.compiler.schedule.relations import buffer_strides
from retune.compiler.schedule.state import BLOCK_LOOPS, THREAD_LOOPS, Annotation, Attached, IterKind, Number, State
from retune.compiler.te.tensor import ComputeOp, ScanOp, Tensor

_LAUNCHED = (*BLOCK_LOOPS, *THREAD_LOOPS)


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A read or write of one element."""

    tensor: Tensor
    shape: tuple[Number, ...]
    """The shape of the buffer, which may hold only a region of the tensor."""
    index: tuple[Linear, ...]
    """One form a dimension."""
    is_write: bool
    strides: tuple[Number, ...] | None = None
    """In elements; None: row-major without padding."""


@dataclass(frozen=True, slots=True, eq=False)
class StageNest:
    """A statement with everything around it."""

    stage: int
    op: ComputeOp
    loops: tuple[Loop, ...]
    """All loops around it, outermost first."""
    own: int
    """How many of these, the last, are the stage's own; the others belong to the stages around it, or are the steps of
    a scan.
    """
    write: Access
    reads: tuple[Access, ...]
    ops: OpCounts
    attached: bool
    whole: tuple[Number, ...] | None = None
    """Shape of the stage's whole result; None: that of the operation."""
    more_writes: tuple[Access, ...] = ()
    pipeline: tuple[str, Number] | None = None
    steps: int = 0
    """1 if the first loop is that over the steps of a scan."""

    @property
    def writes(self) -> tuple[Access, ...]:
        """The write of every result, in order."""
        return (self.write, *self.more_writes)


def statement_nests(state: State) -> tuple[StageNest, ...]:
    """Every statement of the program, in stage order. A reduction appears as its update.

    Raises: ScheduleError as `infer_stage_bounds`.
    """
    bounds = infer_stage_bounds(state)
    extents = {key: extent for stage_bounds in bounds.values() for key, extent in extents_of(stage_bounds).items()}
    return tuple(_nest(state, bounds, extents, stage_id) for stage_id in sorted(bounds))


def _nest(
    state: State, bounds: Mapping[int, StageBounds], extents: Mapping[LoopKey, Number], stage_id: int
) -> StageNest:
    stage, own_bounds = state.stages[stage_id], bounds[stage_id]
    op = stage.op
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"{op.name} is an input and has no statement")
    steps = _steps_around(state, stage_id)
    leaves = axis_values(op, own_bounds)
    if steps is not None:
        extents = {**extents, steps[1].key: steps[1].extent}
        leaves[steps[0].step] = Affine(steps[0].first, {steps[1].key: 1})
    fused_parts = fused_parts_of(bounds)
    inlined = inlined_stages(state)
    forms = _Forms(leaves, extents)
    reads = [
        _read_access(state, bounds, node.tensor, node.indices, forms, fused_parts)
        for node in reads_of(state.dag, stage_id, inlined)
    ]
    # The buffer of an attached stage holds only its region, in coordinates of the region.
    values = own_bounds.local if isinstance(stage.location, Attached) else leaves
    point = tuple(cover_fused_parts(values[axis], fused_parts) for axis in op.axes)
    shape = own_bounds.region.extents
    strides = buffer_strides(stage, shape)
    writes = [Access(tensor, shape, point, True, strides) for tensor in state.dag.nodes[stage_id].tensors]
    counts = counts_of(state.dag, stage_id, inlined)
    attached = isinstance(stage.location, Attached)
    loops = (*own_bounds.outer, *own_bounds.own)
    # A GPU launches a kernel for each step: its kernels have no loop over the steps.
    is_inside = steps is not None and not any(loop.annotation in _LAUNCHED for loop in loops)
    return StageNest(
        stage=stage_id,
        op=op,
        loops=(steps[1], *loops) if steps is not None and is_inside else loops,
        own=len(own_bounds.own),
        write=writes[0],
        reads=tuple(reads),
        ops=counts,
        attached=attached,
        whole=stage.shape,
        more_writes=tuple(writes[1:]),
        pipeline=stage.pipeline,
        steps=int(is_inside),
    )


def _steps_around(state: State, stage_id: int) -> tuple[ScanOp, Loop] | None:
    """The scan whose steps compute a stage, and the loop over them."""
    number = state.dag.scan_of.get(stage_id)
    scan = None if number is None else state.dag.ops[number]
    if number is None or not isinstance(scan, ScanOp):
        return None
    return scan, Loop((number, scan.step.name), scan.steps, IterKind.REDUCTION, Annotation.NONE)


class _Forms:
    """The linear forms of a statement's index expressions, each made once: the reads of a window share forms."""

    def __init__(self, leaves: Mapping[Expr, Linear], extents: Mapping[LoopKey, Number]) -> None:
        self._leaves = leaves
        self._extents = extents
        self._known: dict[tuple[Expr, int, int], Linear] = {}

    def get(
        self, index: Expr, producer: int, dim: int, low: Linear | None, fused_parts: Mapping[LoopKey, FusedPart]
    ) -> Linear:
        """`index`, in dimension `dim` of stage `producer`, relative to `low`, as a form over loops alone."""
        # `low` and `fused_parts` need not be part of it: within a statement, producer and dimension determine them.
        key = index, producer, dim
        if key not in self._known:
            form = linearize(index, self._leaves, self._extents)
            self._known[key] = cover_fused_parts(form if low is None else form + low * -1, fused_parts)
        return self._known[key]


def _read_access(
    state: State,
    bounds: Mapping[int, StageBounds],
    tensor: Tensor,
    indices: Sequence[Expr],
    forms: _Forms,
    fused_parts: Mapping[LoopKey, FusedPart],
) -> Access:
    producer = state.dag.id_of(tensor)
    stage = state.stages[producer]
    shape: tuple[Number, ...] = stage.shape if stage.is_compute else tensor.shape
    mins: Sequence[Linear | None] = (None,) * len(indices)
    if producer in bounds and isinstance(stage.location, Attached):
        shape, mins = bounds[producer].region.extents, bounds[producer].region.mins
    index = tuple(
        forms.get(each, producer, dim, low, fused_parts)
        for dim, (each, low) in enumerate(zip(indices, mins, strict=True))
    )
    return Access(tensor, shape, index, False, buffer_strides(stage, shape))
