"""Recognizes (batched) matrix products, and rewrites an operation as such a product.

The axes of the result and of the sum form four groups: those that index both factors (batch), a single factor (rows,
columns), or that are summed over. Each group becomes one axis. How a factor is read does not matter, so a convolution
is such a product of gathered patches, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.compiler.core.dtype import HALVES, item_bytes
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Expr, cast, const, select
from retune.compiler.ir.tensor_core import COLUMNS, INSTRUCTIONS, ROWS
from retune.compiler.ir.visit import substitute, walk
from retune.compiler.schedule.dag import ComputeDAG, Node, cached_on_dag
from retune.compiler.schedule.graph_edits import attrs_of_result
from retune.compiler.schedule.relations import joined_index
from retune.compiler.te.reduction import Axis, AxisKind, Reduce
from retune.compiler.te.tensor import ComputeOp, TensorRead

KIND = "tensor_core"
"""The attribute of an operation on tensor cores: the kind of their instruction."""
LEFT, RIGHT, PRODUCT = ".left.shared", ".right.shared", ".mma"
"""Suffixes of the names of the new operations."""

_TILE = 256
"""Gathered matrices are padded to whole tiles of a block of the largest size."""


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
    """An operation as a product of matrices; None when it is none."""
    op = dag.ops[op_id]
    if not isinstance(op, ComputeOp) or not isinstance(op.body, Reduce) or op.body.combiner != "sum":
        return None
    source = op.body.source
    if not isinstance(source, Binary) or source.op is not BinaryOp.MUL:
        return None
    first, second = _factor(source.lhs), _factor(source.rhs)
    if first is None or second is None or first.dtype != second.dtype:
        return None
    first_axes, second_axes = _axes_of(first), _axes_of(second)
    # A term that varies with one factor alone is no product of matrices.
    if any(axis.extent > 1 and not (axis in first_axes and axis in second_axes) for axis in op.reduce_axes):
        return None
    if any(axis.extent > 1 and axis not in first_axes and axis not in second_axes for axis in op.axes):
        return None
    last = next(
        (axis for axis in reversed(op.axes) if axis.extent > 1 and not (axis in first_axes and axis in second_axes)),
        None,
    )
    if last is not None and last in first_axes:  # the result's neighbors are columns
        first, second, first_axes, second_axes = second, first, second_axes, first_axes
    batch = tuple(axis for axis in op.axes if axis in first_axes and axis in second_axes)
    columns = tuple(axis for axis in op.axes if axis in second_axes and axis not in first_axes)
    # An axis of one element may be in neither factor: it counts as a row.
    rows = tuple(axis for axis in op.axes if axis not in second_axes)
    if not rows or not columns:
        return None
    return Contraction(batch, rows, columns, op.reduce_axes, first, second)


def instruction_for(dag: ComputeDAG, op_id: int, tf32: bool) -> str | None:
    """The kind of the instruction that multiplies the matrices of an operation, if they are large enough; float32 is
    rounded to tf32 only where that is allowed.
    """
    product = contraction_of(dag, op_id)
    if product is None:
        return None
    for kind, instruction in INSTRUCTIONS.items():
        if instruction.dtype != product.dtype or (kind == "tf32" and not tf32):
            continue
        sizes = (_size(product.rows), ROWS), (_size(product.columns), COLUMNS), (_size(product.sums), instruction.depth)
        # A product smaller than one instruction would mostly multiply padding.
        if all(size >= least for size, least in sizes):
            return kind
    return None


def has_tf32_products(dag: ComputeDAG) -> bool:
    """Whether a graph has products of float32 that tensor cores would round to tf32."""
    return any(instruction_for(dag, number, tf32=True) == "tf32" for number in range(len(dag.ops)))


def as_matmul(dag: ComputeDAG, op_id: int, kind: str) -> ComputeDAG:
    """A graph with four operations in place of `op_id`: its factors gathered as matrices (numbers `op_id` and the next,
    zeros beyond their ends), their product (`op_id` + 2), and the result picked from it (`op_id` + 3).

    Raises: DefinitionError when `op_id` is no such product, or too small or of another type for that kind of
    instruction.
    """
    op, product = dag.ops[op_id], contraction_of(dag, op_id)
    if not isinstance(op, ComputeOp) or not isinstance(op.body, Reduce) or product is None:
        raise DefinitionError(f"{op.name} is no product of matrices")
    if kind not in INSTRUCTIONS or kind != instruction_for(dag, op_id, tf32=True):
        raise DefinitionError(
            f"{op.name}: tensor cores cannot multiply {_size(product.rows)} x {_size(product.sums)} by "
            f"{_size(product.sums)} x {_size(product.columns)} elements of {product.dtype} as {kind}"
        )
    depth = INSTRUCTIONS[kind].depth
    batch = Axis("b", _size(product.batch), AxisKind.SPATIAL)
    row, column = (
        Axis(name, _whole(_size(axes), _TILE), AxisKind.SPATIAL)
        for name, axes in (("m", product.rows), ("n", product.columns))
    )
    summed = Axis("k", _whole(_size(product.sums), depth), AxisKind.SPATIAL)
    outer = _digits(product.batch, batch)
    left = _gather(f"{op.name}{LEFT}", product.left, (batch, row, summed), (product.rows, product.sums), outer)
    right = _gather(f"{op.name}{RIGHT}", product.right, (batch, summed, column), (product.sums, product.columns), outer)
    total = Axis("k", summed.extent, AxisKind.REDUCE)
    left_value, right_value = (_read(node, {summed: total}, op.body.source.dtype) for node in (left, right))
    # The product reads gathered copies, for which the inputs' layout does not matter.
    attrs = attrs_of_result(op.attrs)
    body = replace(op.body, source=left_value * right_value, axes=(total,))
    multiply = ComputeOp(f"{op.name}{PRODUCT}", (batch, row, column), body, {**attrs, KIND: kind})
    multiplied = Node.of(multiply)
    point = tuple(joined_index(axes) for axes in (product.batch, product.rows, product.columns))
    result = ComputeOp(op.name, op.axes, multiplied.tensor[point], attrs)
    nodes = (left, right, multiplied, Node(dag.nodes[op_id].tensors, result))
    return dag.with_nodes((*dag.nodes[:op_id], *nodes, *dag.nodes[op_id + 1 :]))


def depth_is_inner(op: ComputeOp) -> bool:
    """Whether neighbors in a gathered matrix follow the axis that is summed over."""
    return op.axes[-1].name == "k"


def row_padding(dtype: str, *, inner: bool) -> tuple[int, int]:
    """(factor, offset): rows of a shared matrix are `offset` more than a multiple of `factor` elements apart, so that a
    warp reads a fragment of it without two lanes in one bank; `inner`: its rows follow the sum.
    """
    # Odd multiples of 16 bytes: the eight rows of 16 bytes of an ldmatrix fill all 32 banks.
    if dtype in HALVES:
        return 16, 8
    # A warp reads eight rows of four words (`inner`), or four rows of eight: at odd multiples of four or eight words
    # they fill all 32 banks.
    return (8, 4) if inner else (16, 8)


def _factor(expr: Expr) -> TensorRead | None:
    """The read of a factor, of floats that no smaller type could hold; None for other expressions."""
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
    """The axes as quotients and remainders of the axis `joined`."""
    values: dict[Expr, Expr] = {}
    stride = 1
    for number, axis in reversed(tuple(enumerate(axes))):
        quotient: Expr = joined // stride
        values[axis] = quotient if number == 0 else quotient % axis.extent
        stride *= axis.extent
    return values


def _gather(
    name: str,
    read: TensorRead,
    axes: tuple[Axis, Axis, Axis],
    groups: tuple[Sequence[Axis], Sequence[Axis]],
    outer: dict[Expr, Expr],
) -> Node:
    """A factor as a batch of matrices, whose neighbors are neighbors of the tensor it is read from."""
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
