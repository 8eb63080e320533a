"""In: a compute graph. Out: one that computes the same with one operation more.

Always: every tensor that others hold keeps its identity; the new operation stands right before or behind the old one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from compiler.errors import DefinitionError
from compiler.ir.expr import BinaryOp, Expr, binary, const, select
from compiler.ir.visit import substitute, transform
from compiler.schedule.dag import ComputeDAG, Node
from compiler.te.tensor import Axis, AxisKind, ComputeOp, Operation, Reduce, Tensor, TensorRead


def cache_write(dag: ComputeDAG, op_id: int, scope: str) -> ComputeDAG:
    """A graph in which operation `op_id` is computed into a new tensor (which takes its number) and then copied
    (number + 1).

    Raises: DefinitionError for a placeholder.
    """
    node = dag.nodes[op_id]
    op = node.op
    if not isinstance(op, ComputeOp):
        raise DefinitionError(f"{op.name} is an input; only a computed tensor can have a write cache")
    renamed = {axis: Axis(f"{axis.name}_c", axis.extent, axis.kind) for axis in (*op.axes, *op.reduce_axes)}
    body = substitute(op.body, {axis: renamed[axis] for axis in renamed})
    if isinstance(op.body, Reduce) and isinstance(body, Reduce):
        body = Reduce(body.combiner, body.source, tuple(renamed[axis] for axis in op.reduce_axes))
    cache = Tensor(ComputeOp(f"{op.name}.{scope}", tuple(renamed[axis] for axis in op.axes), body, op.attrs))
    copy = ComputeOp(op.name, op.axes, cache[op.axes], _attrs_of_result(op))
    return _spliced(dag, op_id, 1, (Node(cache, cache.op), Node(node.tensor, copy)))


def cache_read(dag: ComputeDAG, op_id: int, scope: str, readers: Sequence[int]) -> ComputeDAG:
    """A graph in which the operations `readers` read a copy (number `op_id` + 1) of tensor `op_id`."""
    source = dag.nodes[op_id].tensor
    names = {op.name for op in dag.ops}
    prefix = dag.ops[op_id].name
    while f"{prefix}.{scope}" in names:
        prefix += ".d"
    axes = tuple(Axis(f"ax{dim}", extent, AxisKind.SPATIAL) for dim, extent in enumerate(source.shape))
    copy = Tensor(ComputeOp(f"{prefix}.{scope}", axes, source[axes], {}))

    def redirected(node: Expr) -> Expr | None:
        return copy[node.indices] if isinstance(node, TensorRead) and node.tensor is source else None

    nodes = list(dag.nodes)
    for reader in readers:
        op = nodes[reader].op
        if isinstance(op, ComputeOp):
            changed: Operation = ComputeOp(op.name, op.axes, transform(op.body, redirected), op.attrs)
            nodes[reader] = Node(nodes[reader].tensor, changed)
    nodes.insert(op_id + 1, Node(copy, copy.op))
    return dag.with_nodes(nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Factoring:
    """How a reduction is factored: `axis` becomes axis number `position` of the first result, which reduces over
    `rest`.

    `values` are the old reduce axes over `axis` and `rest`; points where a condition in `inside` fails do not exist.
    """

    axis: Axis
    position: int
    rest: tuple[Axis, ...]
    values: Mapping[Expr, Expr]
    inside: tuple[Expr, ...]


def rfactor(dag: ComputeDAG, op_id: int, how: Factoring) -> ComputeDAG:
    """A graph in which reduction `op_id` is done over `how.rest` first (number `op_id`), then over `how.axis` (the next
    number).

    Raises: DefinitionError when the operation is no reduction.
    """
    node = dag.nodes[op_id]
    op = node.op
    if not isinstance(op, ComputeOp) or not isinstance(op.body, Reduce):
        raise DefinitionError(f"{op.name} is no reduction")
    source = substitute(op.body.source, how.values)
    if how.inside:
        condition = how.inside[0]
        for other in how.inside[1:]:
            condition = binary(BinaryOp.AND, condition, other)
        source = select(condition, source, const(op.body.identity, op.dtype))
    body = Reduce(op.body.combiner, source, how.rest) if how.rest else source
    axes = (*op.axes[: how.position], how.axis, *op.axes[how.position :])
    partial = Tensor(ComputeOp(f"{op.name}.rf", axes, body, op.attrs))
    outer = tuple(Axis(f"ax{dim}", axis.extent, AxisKind.SPATIAL) for dim, axis in enumerate(op.axes))
    last = Axis(f"{how.axis.name}_v", how.axis.extent, AxisKind.REDUCE)
    total = Reduce(op.body.combiner, partial[(*outer[: how.position], last, *outer[how.position :])], (last,))
    final = ComputeOp(f"{op.name}.repl", outer, total, _attrs_of_result(op))
    return _spliced(dag, op_id, 1, (Node(partial, partial.op), Node(node.tensor, final)))


@lru_cache(maxsize=64)
def without_free_layouts(dag: ComputeDAG) -> ComputeDAG:
    """A graph in which every input has the layout that it comes with."""
    nodes = []
    for node in dag.nodes:
        op = node.op
        if isinstance(op, ComputeOp) and "layout_free_placeholders" in op.attrs:
            node = replace(node, op=replace(op, attrs=_attrs_of_result(op)))
        nodes.append(node)
    return dag.with_nodes(nodes)


def _attrs_of_result(op: ComputeOp) -> dict[str, Any]:
    """The attributes that stay with the result when the work is done by another operation."""
    return {key: value for key, value in op.attrs.items() if key != "layout_free_placeholders"}


def _spliced(dag: ComputeDAG, start: int, count: int, new: Sequence[Node]) -> ComputeDAG:
    return dag.with_nodes((*dag.nodes[:start], *new, *dag.nodes[start + count :]))
