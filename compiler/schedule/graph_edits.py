"""Inserts an operation into a compute graph without changing what it computes.

Existing tensors keep their identity; the new operation comes right before or after the old operation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import BinaryOp, Expr, binary, const, select
from retune.compiler.ir.visit import substitute, transform
from retune.compiler.schedule.dag import ComputeDAG, Node, cached_on_dag
from retune.compiler.te.reduction import Axis, AxisKind, Reduce, as_body
from retune.compiler.te.tensor import PARTIAL_SUMS, RANKS, ComputeOp, TensorRead, reads_of


def cache_write(dag: ComputeDAG, op_id: int, scope: str) -> ComputeDAG:
    """A graph in which operation `op_id` is computed into new tensors, one a result (the new operation takes its
    number), and then copied (number + 1).

    Raises: DefinitionError for an input or a function's result.
    """
    node = dag.nodes[op_id]
    op = node.op
    if not isinstance(op, ComputeOp):
        raise DefinitionError(f"{op.name} is an input; only a computed tensor can have a write cache")
    # TVM's names: `_c` for the spatial loops of a write cache.
    renamed = {axis: Axis(f"{axis.name}_c", axis.extent, axis.kind) for axis in op.axes}
    body = substitute(op.body, {axis: renamed[axis] for axis in op.axes})
    cache = Node.of(ComputeOp(f"{op.name}.{scope}", tuple(renamed[axis] for axis in op.axes), body, op.attrs))
    copy = ComputeOp(op.name, op.axes, _read_at(cache, op.axes), attrs_of_result(op.attrs))
    return _splice(dag, op_id, 1, (cache, Node(node.tensors, copy)))


def cache_read(dag: ComputeDAG, op_id: int, scope: str, readers: Sequence[int]) -> ComputeDAG:
    """A graph in which the operations `readers` read a copy (number `op_id` + 1) of the results of `op_id` that they
    read.

    Raises: DefinitionError when these results differ in shape.
    """
    read = {tensor for reader in readers for tensor, _ in reads_of(dag.ops[reader])}
    sources = [tensor for tensor in dag.nodes[op_id].tensors if tensor in read]
    shape = sources[0].shape
    if any(source.shape != shape for source in sources):
        raise DefinitionError(
            f"{dag.ops[op_id].name}: {', '.join(source.name for source in sources)} have different shapes; cache them "
            "for one reader each"
        )
    names = {op.name for op in dag.ops}
    prefix = dag.ops[op_id].name
    # TVM's name of a second cache of a tensor in one scope.
    while f"{prefix}.{scope}" in names:
        prefix += ".d"
    axes = tuple(Axis(f"ax{dim}", extent, AxisKind.SPATIAL) for dim, extent in enumerate(shape))
    attrs = {key: value for key, value in dag.ops[op_id].attrs.items() if key == PARTIAL_SUMS}
    copy = Node.of(ComputeOp(f"{prefix}.{scope}", axes, as_body([source[axes] for source in sources]), attrs))
    copies = dict(zip(sources, copy.tensors, strict=True))

    def redirect_read(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor not in copies:
            return None
        return copies[node.tensor][node.indices]

    nodes = list(dag.nodes)
    for reader in readers:
        op = nodes[reader].op
        if isinstance(op, ComputeOp):
            changed = ComputeOp(op.name, op.axes, transform(op.body, redirect_read), op.attrs)
            nodes[reader] = Node(nodes[reader].tensors, changed)
    nodes.insert(op_id + 1, copy)
    return dag.with_nodes(nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Factoring:
    """The factoring of a reduction."""

    axis: Axis
    """The part that becomes an axis of the first result."""
    position: int
    """The number of `axis` in the first result."""
    rest: tuple[Axis, ...]
    """The parts that the first result reduces over."""
    values: Mapping[Expr, Expr]
    """The old reduce axes over `axis` and `rest`."""
    inside: tuple[Expr, ...]
    """Conditions on points; where one fails the point does not exist, because a split runs past the end."""


def rfactor(dag: ComputeDAG, op_id: int, factoring: Factoring) -> ComputeDAG:
    """A graph in which reduction `op_id` runs over `how.rest` first (number `op_id`), then over `how.axis` (the next
    number).

    Raises: DefinitionError when the operation is no reduction.
    """
    node = dag.nodes[op_id]
    op = node.op
    if not isinstance(op, ComputeOp) or not isinstance(op.body, Reduce):
        raise DefinitionError(f"{op.name} is no reduction")
    sources = [substitute(value, factoring.values) for value in op.values]
    if factoring.inside:
        condition = factoring.inside[0]
        for next_condition in factoring.inside[1:]:
            condition = binary(BinaryOp.AND, condition, next_condition)
        # Missing points contribute the identity.
        starts = [const(start, term.dtype) for start, term in zip(op.body.identities, sources, strict=True)]
        sources = [select(condition, source, start) for source, start in zip(sources, starts, strict=True)]
    source = as_body(sources)
    # Where nothing is left to reduce, a term is its own partial result.
    body = Reduce(op.body.combiner, source, factoring.rest) if factoring.rest else source
    axes = (*op.axes[: factoring.position], factoring.axis, *op.axes[factoring.position :])
    # TVM's names: `.rf` holds partial results, `.repl` joins them along `_v`.
    # A part of the elements before an element has no total order.
    kept = {key: value for key, value in op.attrs.items() if key != RANKS}
    attrs = kept if op.body.combiner in ("max", "min") else {**kept, PARTIAL_SUMS: True}
    partial = Node.of(ComputeOp(f"{op.name}.rf", axes, body, attrs))
    outer = tuple(Axis(f"ax{dim}", axis.extent, AxisKind.SPATIAL) for dim, axis in enumerate(op.axes))
    last = Axis(f"{factoring.axis.name}_v", factoring.axis.extent, AxisKind.REDUCE)
    point = (*outer[: factoring.position], last, *outer[factoring.position :])
    total = replace(op.body, source=_read_at(partial, point), axes=(last,))
    final = ComputeOp(f"{op.name}.repl", outer, total, attrs_of_result(kept))
    return _splice(dag, op_id, 1, (partial, Node(node.tensors, final)))


def _read_at(node: Node, point: tuple[Expr, ...]) -> Expr:
    """One element of every result of an operation."""
    return as_body([tensor[point] for tensor in node.tensors])


@cached_on_dag
def without_free_layouts(dag: ComputeDAG) -> ComputeDAG:
    """A graph in which every input keeps its own layout."""
    nodes = []
    for node in dag.nodes:
        op = node.op
        if isinstance(op, ComputeOp) and "layout_free_placeholders" in op.attrs:
            node = replace(node, op=replace(op, attrs=attrs_of_result(op.attrs)))
        nodes.append(node)
    return dag.with_nodes(nodes)


def attrs_of_result(attrs: Mapping[str, object]) -> dict[str, object]:
    """The attributes that stay with the result when another operation does the work."""
    return {key: value for key, value in attrs.items() if key != "layout_free_placeholders"}


def _splice(dag: ComputeDAG, start: int, count: int, new: Sequence[Node]) -> ComputeDAG:
    return dag.with_nodes((*dag.nodes[:start], *new, *dag.nodes[start + count :]))
