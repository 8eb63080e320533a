"""What the reads of a compute graph or a state imply: what to inline and to tile, who reads whom, types of results.

Pure functions, with TVM's definitions where it has them; sketch rules, default schedules and lowering call them.
"""

from collections.abc import Iterator
from itertools import pairwise

from retune.compiler.core.dtype import sum_type
from retune.compiler.ir.expr import Binary, BinaryOp, Call, Const, Expr, Select
from retune.compiler.ir.visit import uses, walk
from retune.compiler.schedule.dag import ComputeDAG, cached_on_dag
from retune.compiler.schedule.state import Attached, Inlined, State
from retune.compiler.te.reduction import Axis, Reduce
from retune.compiler.te.tensor import (
    CONCATENATED,
    LOOKS_UP_TABLES,
    MOVES_ELEMENTS,
    PARTIAL_SUMS,
    SCATTERS,
    ComputeOp,
    Operation,
    TensorRead,
    WithoutLoops,
    reads_of,
)

LEAST_PIECE = 16
"""Least elements of each operand of a concatenation that readers compute: less than a vector is slower than a copy."""
_MOST_PIECES = 8
"""Most operands of a concatenation that readers compute: each becomes a loop of a sum over it, or a branch in a
reduction of its rows.
"""


def is_shifted_axis(index: Expr, axis: Axis) -> bool:
    """Whether `index` is `axis` with TVM's constant shift: v, v + c, v - c or c + v; neither 2 * v nor v + w."""
    if index == axis:
        return True
    if isinstance(index, Binary) and index.op in (BinaryOp.ADD, BinaryOp.SUB):
        if index.lhs == axis and isinstance(index.rhs, Const):
            return True
        return index.op is BinaryOp.ADD and index.rhs == axis and isinstance(index.lhs, Const)
    return False


def _matched_axes(op: ComputeOp, indices: tuple[Expr, ...]) -> list[int] | None:
    """The number of the axis that each index is a shift of, without indices that are the same for all elements, such as
    literals and the step of a scan; None when some index is neither.
    """
    matched = []
    for index in indices:
        if not any(isinstance(node, Axis | TensorRead) for node in walk(index)):
            continue
        match = next((number for number, axis in enumerate(op.axes) if is_shifted_axis(index, axis)), None)
        if match is None:
            return None
        matched.append(match)
    return matched


@cached_on_dag
def is_strictly_inlineable(dag: ComputeDAG, op_id: int) -> bool:
    """Whether each reader may recompute the operation at little cost: its own reads are plain and in axis order, and
    its body is cheap and has no branch. Constants, lookups in tables, and the concatenations and moves of
    `_is_summed_piece_by_piece` and `_moves_rows` count too.
    """
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp):
        return False
    # As in TVM, a stage that reads nothing is a constant and always inlined.
    if not dag.reads[op_id] or LOOKS_UP_TABLES in op.attrs:
        return True
    if _is_summed_piece_by_piece(dag, op_id) or _moves_rows(dag, op_id):
        return True
    if _is_reused_in_step(dag, op_id):
        return False
    for node in walk(op.body):
        # As in TVM, exp is the only call that is too expensive to be repeated by every reader.
        if isinstance(node, Select) or (isinstance(node, Call) and node.name == "exp"):
            return False
    for _, indices in dag.reads[op_id]:
        matched = _matched_axes(op, indices)
        # Each axis at most once and in order: a reader then walks memory as the stage itself would.
        if matched is None or matched != sorted(set(matched)):
            return False
    return True


def _is_reused_in_step(dag: ComputeDAG, op_id: int) -> bool:
    """Whether a reduction in the same step of a scan reads each element several times, and its value takes arithmetic.

    Fusion keeps such stages out of the kernel of a product, but all stages of a step are in one kernel.
    """
    op = dag.ops[op_id]
    if op_id not in dag.scan_of or not isinstance(op, ComputeOp) or isinstance(op.body, TensorRead):
        return False
    return any(
        isinstance(reading, ComputeOp)
        and bool(reading.reduce_axes)
        and any(axis.extent > 1 and not any(uses(index, axis) for index in indices) for axis in reading.axes)
        for reading in (dag.ops[reader] for reader in dag.readers[op_id])
        for tensor, indices in reads_of(reading)
        if dag.id_of(tensor) == op_id and op.axes
    )


def _is_summed_piece_by_piece(dag: ComputeDAG, op_id: int) -> bool:
    """Whether an operation concatenates a few long tensors along an axis that all readers sum over: lowering splits the
    sum at the seams, so that each of its loops reads one tensor, without a branch.
    """
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or CONCATENATED not in op.attrs:
        return False
    axis = op.attrs[CONCATENATED]
    for reader in dag.readers[op_id]:
        reading = dag.ops[reader]
        sums = reading.reduce_axes if isinstance(reading, ComputeOp) else ()
        if not all(indices[axis] in sums for source, indices in dag.reads[reader] if source == op_id):
            return False
    widths = piece_widths(op, axis)
    return widths is not None and len(widths) <= _MOST_PIECES and min(widths) >= LEAST_PIECE


def _moves_rows(dag: ComputeDAG, op_id: int) -> bool:
    """Whether each row of an operation that moves elements, along its last axis, is a row of an operand, and the only
    reductions that read it, also through inlined moves, are of whole rows: others would compute the index of a row
    again and again. If nothing reduces them, some rows may be constant, as those around an image.
    """
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or MOVES_ELEMENTS not in op.attrs:
        return False
    if not op.axes or op.axes[-1].extent < LEAST_PIECE or len(dag.reads[op_id]) > _MOST_PIECES:
        return False
    reductions = [reader for reader in _readers_beyond(dag, op_id) if _reduces(dag.ops[reader])]
    if not all(reduces_rows(dag, reader) and not needs_multi_level_tiling(dag, reader) for reader in reductions):
        return False
    return _is_row(op.body, op.axes[-1], may_be_constant=not reductions)


def _readers_beyond(dag: ComputeDAG, op_id: int) -> Iterator[int]:
    """The operations that read `op_id`, looking through those that are inlined."""
    for reader in dag.readers[op_id]:
        inlined = reader not in dag.output_ids and is_strictly_inlineable(dag, reader)
        yield from _readers_beyond(dag, reader) if inlined else (reader,)


def _reduces(op: Operation) -> bool:
    return isinstance(op, ComputeOp) and bool(op.reduce_axes)


def _is_row(value: Expr, last: Axis, *, may_be_constant: bool) -> bool:
    """Whether `value` is an element of a row whose choice does not depend on the axis along it."""
    match value:
        case Select(condition, then, otherwise):
            sides = (_is_row(side, last, may_be_constant=may_be_constant) for side in (then, otherwise))
            return not uses(condition, last) and all(sides)
        case TensorRead(_, indices):
            return bool(indices) and indices[-1] == last and not any(uses(index, last) for index in indices[:-1])
    return may_be_constant and isinstance(value, Const)


def piece_widths(op: ComputeOp, axis: int) -> list[int] | None:
    """How many elements of an axis come from each operand of a concatenation; the whole extent if no operands join
    along it. None if a choice of operands is not a comparison of one index with a constant.
    """
    joined = op.axes[axis]
    seams = {0, joined.extent}
    for node in walk(op.body):
        if isinstance(node, Select):
            match node.condition:
                case Binary(op=BinaryOp.LT, lhs=Axis() as index, rhs=Const(value=seam)):
                    seams |= {int(seam)} if index == joined else set()
                case _:
                    return None
    return [after - before for before, after in pairwise(sorted(seams))]


@cached_on_dag
def needs_multi_level_tiling(dag: ComputeDAG, op_id: int) -> bool:
    """Whether tiles reuse data, by TVM's rule: two producers are each read without some axis of the result, as in an
    outer product, or one is, and the operation reduces. Lookups in tables are never tiled.
    """
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or LOOKS_UP_TABLES in op.attrs:
        return False
    if op.attrs.get("auto_scheduler_simplify_const_tensor_indices"):
        return False
    used: dict[int, set[Expr]] = {}
    for producer, indices in dag.reads[op_id]:
        axes_used = used.setdefault(producer, set())
        for index in indices:
            axes_used.update(node for node in walk(index) if isinstance(node, Axis))
    missing = sum(any(axis.extent > 1 and axis not in axes for axis in op.axes) for axes in used.values())
    return missing >= 2 or (missing >= 1 and bool(op.reduce_axes))


def reduces_rows(dag: ComputeDAG, op_id: int) -> bool:
    """Whether a stage reduces rows, neighbors in memory. Lowering vectorizes along such a row; the lanes of a vector
    across rows would each read their own cache line.
    """
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or not op.reduce_axes or not op.axes:
        return False
    # Reads that do not move with the sum happen once for all of it.
    moving = [indices for _, indices in dag.reads[op_id] if any(uses(index, *op.reduce_axes) for index in indices)]
    fastest = [indices[-1] for indices in moving]
    return op.reduce_axes[-1] in fastest and op.axes[-1] not in fastest


@cached_on_dag
def elementwise_match(dag: ComputeDAG, op_id: int, target: int) -> bool:
    """Whether `target` is reached from `op_id` by a chain of single elementwise readers."""
    current = op_id
    while current != target:
        if len(dag.readers[current]) != 1:
            return False
        reader = dag.readers[current][0]
        op, reading = dag.ops[current], dag.ops[reader]
        if not isinstance(op, ComputeOp) or not isinstance(reading, ComputeOp) or op.shape != reading.shape:
            return False
        for producer, indices in dag.reads[reader]:
            # Every axis once and in order: neither a broadcast nor a transpose.
            if producer == current and _matched_axes(reading, indices) != list(range(len(reading.axes))):
                return False
        current = reader
    return True


def held_types(op: Operation) -> tuple[str, ...]:
    """The types of a stage's results until they are complete: float32 for sums and products of 16-bit floats."""
    match op:
        # Extremes round nothing, so they stay in their own type.
        case ComputeOp(body=Reduce(combiner=combiner)) if combiner not in ("max", "min"):
            return tuple(sum_type(value.dtype) for value in op.values)
    return stored_types(op)


def stored_types(op: Operation) -> tuple[str, ...]:
    """The types of a stage's results in memory: float32 for partial or scattered sums of 16-bit floats."""
    wide = PARTIAL_SUMS in op.attrs
    match op:
        case ComputeOp(body=Reduce(combiner="sum" | "prod")):
            wide = wide or SCATTERS in op.attrs
    return tuple(map(sum_type, op.dtypes)) if wide else op.dtypes


def consumers(state: State, stage_id: int) -> tuple[int, ...]:
    """Stages that read `stage_id`, looking through inlined stages, ascending."""
    readers: set[int] = set()
    for reader in state.dag.readers[stage_id]:
        if isinstance(state.stages[reader].location, Inlined):
            readers.update(consumers(state, reader))
        else:
            readers.add(reader)
    return tuple(sorted(readers))


def producers(state: State, stage_id: int) -> tuple[int, ...]:
    """Stages that `stage_id` reads, looking through inlined stages, ascending."""
    read: set[int] = set()
    for producer, _ in state.dag.reads[stage_id]:
        if isinstance(state.stages[producer].location, Inlined):
            read.update(producers(state, producer))
        else:
            read.add(producer)
    return tuple(sorted(read))


def single_consumer(state: State, stage_id: int) -> int | None:
    """The only consumer of a stage, or the one stage in which all its consumers are computed; None without either."""
    readers = consumers(state, stage_id)
    if len(readers) == 1:
        return readers[0]
    roots = set()
    for reader in readers:
        location = state.stages[reader].location
        roots.add(location.stage if isinstance(location, Attached) else reader)
    return roots.pop() if len(roots) == 1 else None


def single_elementwise_consumer(state: State, stage_id: int) -> int | None:
    """The only consumer, when it matches element by element and not both reduce."""
    readers = consumers(state, stage_id)
    if stage_id in state.dag.output_ids:  # one of several results may be read and another leave the graph
        return None
    if len(readers) != 1 or not elementwise_match(state.dag, stage_id, readers[0]):
        return None
    # As in TVM, two reductions are never fused.
    both_reduce = state.stages[stage_id].has_reduce_iter and state.stages[readers[0]].has_reduce_iter
    return None if both_reduce else readers[0]


def is_read_by_function(state: State, stage_id: int) -> bool:
    """Whether a stage that calls a function or a scan reads this stage, which must then be whole in memory."""
    return any(isinstance(state.stages[reader].op, WithoutLoops) for reader in state.dag.readers[stage_id])
