"""Recognizes (batched) matrix products, and rewrites an operation as one.

The axes of the result and of the sum form four groups: those that index both factors (batch), one of them (rows,
columns), or that are summed over. Each group becomes one axis. How a factor is read does not matter, so a convolution
is such a product too, of gathered patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from retune.compiler.dtype import HALVES, item_bytes
from retune.compiler.errors import DefinitionError
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Expr, cast, const, select
from retune.compiler.ir.tensor_core import COLUMNS, INSTRUCTIONS, ROWS
from retune.compiler.ir.visit import substitute, walk
from retune.compiler.schedule.dag import ComputeDAG, Node, cached_on_dag
from retune.compiler.schedule.relations import joined_index
from retune.compiler.te.tensor import Axis, AxisKind, ComputeOp, Reduce, TensorRead

KIND = "tensor_core"
"""The attribute of an operation that tensor cores do: the kind of their instruction."""
LEFT, RIGHT, PRODUCT = ".left.shared", ".right.shared", ".mma"
"""How the names of the new operations end."""

_TILE = 256
"""Gathered matrices have whole tiles of a block, as large as they may be, so that none is cut at the end."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """result[batch, rows, columns] = sum of left[batch, rows, sums] * right[batch, sums, columns]"""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    sums: tuple[Axis, ...]
    left: TensorRead
    right: TensorRead

    @property
    def dtype(self) -> str:
        """The type of the factors."""
        return self.left.dtype


@cached_on_dag
def contraction_of(dag: ComputeDAG, op_id: int) -> Contraction | None:
    """How an operation is a product of matrices; None when it is none."""
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or not isinstance(op.body, Reduce) or op.body.combiner != "sum":
        return None
    source = op.body.source
    if not isinstance(source, Binary) or source.op is not BinaryOp.MUL:
        return None
    first, second = _factor(source.lhs), _factor(source.rhs)
    if first is None or second is None or first.dtype != second.dtype:
        return None
    one, other = _axes_of(first), _axes_of(second)
    # A term that varies with one factor alone is no product of matrices.
    if any(axis.extent > 1 and not (axis in one and axis in other) for axis in op.reduce_axes):
        return None
    if any(axis.extent > 1 and axis not in one and axis not in other for axis in op.axes):
        return None
    last = next((axis for axis in reversed(op.axes) if axis.extent > 1 and not (axis in one and axis in other)), None)
    if last is not None and last in one:  # the result's neighbors are columns
        first, second, one, other = second, first, other, one
    batch = tuple(axis for axis in op.axes if axis in one and axis in other)
    columns = tuple(axis for axis in op.axes if axis in other and axis not in one)
    # An axis of one element may be in neither factor: it counts as a row.
    rows = tuple(axis for axis in op.axes if axis not in other)
    if not rows or not columns:
        return None
    return Contraction(batch, rows, columns, op.reduce_axes, first, second)


def instruction_for(dag: ComputeDAG, op_id: int, tf32: bool) -> str | None:
    """The kind of the instruction that multiplies the matrices of an operation, large enough for one of them; float32
    is only rounded to tf32 where that is allowed.
    """
    found = contraction_of(dag, op_id)
    if found is None:
        return None
    for kind, instruction in INSTRUCTIONS.items():
        if instruction.dtype != found.dtype or (kind == "tf32" and not tf32):
            continue
        large = (_size(found.rows), ROWS), (_size(found.columns), COLUMNS), (_size(found.sums), instruction.depth)
        # A product smaller than one instruction would mostly multiply padding.
        if all(size >= least for size, least in large):
            return kind
    return None


def has_tf32_products(dag: ComputeDAG) -> bool:
    """Whether a graph has products of float32 that tensor cores would round to tf32."""
    return any(instruction_for(dag, number, tf32=True) == "tf32" for number in range(len(dag.ops)))


def as_matmul(dag: ComputeDAG, op_id: int, kind: str) -> ComputeDAG:
    """A graph in which operation `op_id` is done by four: its factors gathered as matrices (numbers `op_id` and the
    next, zeros beyond their ends), their product (`op_id` + 2), and what picks the result from that (`op_id` + 3).

    Raises: DefinitionError when it is no such product, or too small or of another type for that kind of instruction.
    """
    op, found = dag.ops[op_id], contraction_of(dag, op_id)
    if not isinstance(op, ComputeOp) or found is None:
        raise DefinitionError(f"{op.name} is no product of matrices")
    if kind not in INSTRUCTIONS or kind != instruction_for(dag, op_id, tf32=True):
        raise DefinitionError(
            f"{op.name}: tensor cores cannot multiply {_size(found.rows)} x {_size(found.sums)} by {_size(found.sums)} "
            f"x {_size(found.columns)} elements of {found.dtype} as {kind}"
        )
    depth = INSTRUCTIONS[kind].depth
    batch = Axis("b", _size(found.batch), AxisKind.SPATIAL)
    row, column = (
        Axis(name, _whole(_size(axes), _TILE), AxisKind.SPATIAL)
        for name, axes in (("m", found.rows), ("n", found.columns))
    )
    summed = Axis("k", _whole(_size(found.sums), depth), AxisKind.SPATIAL)
    outer = _digits(found.batch, batch)
    left = _gathered(f"{op.name}{LEFT}", found.left, (batch, row, summed), (found.rows, found.sums), outer)
    right = _gathered(f"{op.name}{RIGHT}", found.right, (batch, summed, column), (found.sums, found.columns), outer)
    total = Axis("k", summed.extent, AxisKind.REDUCE)
    one, other = (_read(node, {summed: total}, op.body.dtype) for node in (left, right))
    # The product reads gathered copies, for which the inputs' layout does not matter.
    attrs = {key: value for key, value in op.attrs.items() if key != "layout_free_placeholders"}
    product = ComputeOp(
        f"{op.name}{PRODUCT}", (batch, row, column), Reduce("sum", one * other, (total,)), {**attrs, KIND: kind}
    )
    made = Node.of(product)
    place = tuple(joined_index(axes) for axes in (found.batch, found.rows, found.columns))
    result = ComputeOp(op.name, op.axes, made.tensor[place], attrs)
    nodes = (left, right, made, Node(dag.nodes[op_id].tensors, result))
    return dag.with_nodes((*dag.nodes[:op_id], *nodes, *dag.nodes[op_id + 1 :]))


def depth_is_inner(op: ComputeOp) -> bool:
    """Whether the neighbors in a gathered matrix lie along the axis that is summed over."""
    return op.axes[-1].name == "k"


def row_padding(dtype: str, *, inner: bool) -> tuple[int, int]:
    """(factor, offset): rows of a shared matrix are `offset` more than a multiple of `factor` elements apart, so that a
    warp reads a fragment of it without two lanes in one bank; `inner`: its rows lie along the sum.
    """
    # Odd multiples of 16 bytes apart: the eight rows of 16 bytes that one ldmatrix reads fill all 32 banks.
    if dtype in HALVES:
        return 16, 8
    # A warp reads eight rows of four words (`inner`), or four rows of eight: odd multiples of four or eight words apart
    # they fill all 32 banks.
    return (8, 4) if inner else (16, 8)


def _factor(expr: Expr) -> TensorRead | None:
    """The read that a factor is, of floats that no smaller type could hold."""
    if isinstance(expr, Cast) and expr.dtype == "float32" and item_bytes(expr.value.dtype) == 2:
        expr = expr.value
    return expr if isinstance(expr, TensorRead) and expr.dtype in ("float32", *HALVES) else None


def _axes_of(read: TensorRead) -> frozenset[Expr]:
    return frozenset(node for index in read.indices for node in walk(index) if isinstance(node, Axis))


def _size(axes: Sequence[Axis]) -> int:
    return prod(axis.extent for axis in axes)


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _digits(axes: Sequence[Axis], joined: Axis) -> dict[Expr, Expr]:
    """The axes as quotients and remainders of the one that they became."""
    values: dict[Expr, Expr] = {}
    stride = 1
    for place, axis in reversed(tuple(enumerate(axes))):
        quotient: Expr = joined // stride
        values[axis] = quotient if place == 0 else quotient % axis.extent
        stride *= axis.extent
    return values


def _gathered(
    name: str,
    read: TensorRead,
    axes: tuple[Axis, Axis, Axis],
    groups: tuple[Sequence[Axis], Sequence[Axis]],
    outer: dict[Expr, Expr],
) -> Node:
    """A factor as a batch of matrices, whose neighbors are those of the tensor that it is read from."""
    batch, first, second = axes
    values = {**outer, **_digits(groups[0], first), **_digits(groups[1], second)}
    value: Expr = substitute(read, values)
    sizes = zip((first, second), map(_size, groups), strict=True)
    inside = [axis < size for axis, size in sizes if axis.extent > size]
    for condition in inside:
        value = select(condition, value, const(0, read.dtype))
    # Neighbors in memory stay neighbors in the gathered matrix, so that vectors can be copied.
    near = _axes_of(TensorRead(read.tensor, (read.indices[-1],)))
    swapped = bool(near & set(groups[0])) and not near & set(groups[1])
    order = (batch, second, first) if swapped else (batch, first, second)
    return Node.of(ComputeOp(name, order, value, {}))


def _read(node: Node, renamed: dict[Axis, Axis], dtype: str) -> Expr:
    op = node.op
    assert isinstance(op, ComputeOp)
    return cast(dtype, node.tensor[tuple(renamed.get(axis, axis) for axis in op.axes)])
