"""In: input and output tensors. Out: a `ComputeDAG`, the ordered operations with their accesses, FLOP count and
workload key.

Always: immutable, deterministic, picklable.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.errors import DefinitionError
from compiler.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Not, Select, Var, is_float
from compiler.ir.visit import transform, walk
from compiler.te.tensor import Axis, Combiner, ComputeOp, Operation, PlaceholderOp, Reduce, Tensor, TensorRead


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and the handle by which others read its result."""

    tensor: Tensor
    op: Operation


class ComputeDAG:
    """The operations of a sub-graph, producers before consumers, and what an analysis needs to know about them.

    Operations are numbered in stage order: depth first from the outputs, inputs in the order in which they are read;
    inputs that nothing reads come first.
    Raises: DefinitionError when no output is given, or an output is a placeholder.
    """

    def __init__(self, io_tensors: Sequence[Tensor]) -> None:
        _check_tensors(io_tensors)
        computes = [tensor for tensor in io_tensors if isinstance(tensor.op, ComputeOp)]
        read = {id(read.tensor) for tensor in _post_order(computes) for read in _reads(tensor.op)}
        outputs = [tensor for tensor in computes if id(tensor) not in read]
        if not outputs:
            raise DefinitionError("a compute graph needs at least one computed output")
        order = _post_order(outputs)
        reached = {id(tensor) for tensor in order}
        listed = [tensor for tensor in io_tensors if isinstance(tensor.op, PlaceholderOp)]
        unread = [tensor for tensor in listed if id(tensor) not in reached]
        known = {id(tensor) for tensor in listed}
        unlisted = [tensor for tensor in order if isinstance(tensor.op, PlaceholderOp) and id(tensor) not in known]
        nodes = tuple(Node(tensor, tensor.op) for tensor in (*unread, *order))
        self._setup(nodes, (*listed, *unlisted), tuple(outputs))

    def _setup(self, nodes: tuple[Node, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self._ids = {id(node.tensor): index for index, node in enumerate(nodes)}

    @classmethod
    def _from_parts(
        cls, nodes: tuple[Node, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> "ComputeDAG":
        dag = cls.__new__(cls)
        dag._setup(nodes, inputs, outputs)
        return dag

    def __reduce__(self) -> tuple[Any, ...]:
        return ComputeDAG._from_parts, (self.nodes, self.inputs, self.outputs)

    @cached_property
    def ops(self) -> tuple[Operation, ...]:
        """The operations, in stage order."""
        return tuple(node.op for node in self.nodes)

    def id_of(self, tensor: Tensor) -> int:
        """Stage number of the operation that makes `tensor`."""
        try:
            return self._ids[id(tensor)]
        except KeyError:
            raise DefinitionError(f"{tensor.name} is not part of this compute graph") from None

    @cached_property
    def reads(self) -> tuple[tuple[tuple[int, tuple[Expr, ...]], ...], ...]:
        """For every operation, the (producer, indices) of each textual read, in order."""
        return tuple(tuple((self.id_of(read.tensor), read.indices) for read in _reads(op)) for op in self.ops)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For every operation, the operations that read it, ascending."""
        readers: list[list[int]] = [[] for _ in self.ops]
        for op_id, reads in enumerate(self.reads):
            for producer in sorted({producer for producer, _ in reads}):
                readers[producer].append(op_id)
        return tuple(tuple(ids) for ids in readers)

    @cached_property
    def output_ids(self) -> frozenset[int]:
        """Numbers of the operations whose results leave the graph."""
        return frozenset(self.id_of(tensor) for tensor in self.outputs)

    @cached_property
    def flop_count(self) -> float:
        """Floating-point operations of one evaluation, counted as the reference does; `FLOP` overrides."""
        total = 0.0
        for op in self.ops:
            if isinstance(op, ComputeOp):
                total += float(op.attrs["FLOP"]) if "FLOP" in op.attrs else _flops_of(op)
        return total

    @cached_property
    def workload_key(self) -> str:
        """JSON text `[hash, shape of each input and output …]`; equal computations have equal keys."""
        order = ",".join(str(self.id_of(tensor)) for tensor in (*self.inputs, *self.outputs))
        digest = hashlib.md5(f"{self}\n{order}".encode(), usedforsecurity=False).hexdigest()
        return json.dumps([digest, *(list(tensor.shape) for tensor in (*self.inputs, *self.outputs))])

    def hash_key(self) -> str:
        """The hash in the workload key."""
        return str(json.loads(self.workload_key)[0])

    def with_nodes(
        self,
        nodes: Sequence[Node],
        inputs: tuple[Tensor, ...] | None = None,
        outputs: tuple[Tensor, ...] | None = None,
    ) -> "ComputeDAG":
        """A graph of other operations, producers before consumers; inputs and outputs are the same unless given."""
        ends = self.inputs if inputs is None else inputs, self.outputs if outputs is None else outputs
        return ComputeDAG._from_parts(tuple(nodes), *ends)

    @cached_property
    def layout_free(self) -> frozenset[int]:
        """Numbers of the inputs whose layout the schedule may choose."""
        listed = (tensor for op in self.ops for tensor in op.attrs.get("layout_free_placeholders", ()))
        return frozenset(self.id_of(tensor) for tensor in listed)

    def __str__(self) -> str:
        names = _unique_names(self.ops)
        lines = []
        for op_id, op in enumerate(self.ops):
            if isinstance(op, PlaceholderOp):
                free = " layout_free" if op_id in self.layout_free else ""
                lines.append(f"{names[op_id]} = PLACEHOLDER {list(op.shape)} {op.dtype}{free}")
                continue
            axes = ", ".join(f"{axis}:{axis.extent}" for axis in (*op.axes, *op.reduce_axes))
            body = self._printable(op.body, names)
            source = self._printable(op.body.source, names) if isinstance(op.body, Reduce) else body
            sign = f"{op.body.combiner}=" if isinstance(op.body, Reduce) else "="
            lines.append(f"{names[op_id]}({axes}) {sign} {source}")
        return "\n".join(lines)

    def _printable(self, body: Expr, names: Sequence[str]) -> Expr:
        def rename(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            tensor = node.tensor
            return Load(Buffer(names[self.id_of(tensor)], tensor.shape, tensor.dtype), node.indices)

        return transform(body, rename)


def _check_tensors(tensors: Sequence[Tensor]) -> None:
    if not isinstance(tensors, Sequence) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise DefinitionError(f"a compute graph is made of a list of tensors, not of {tensors!r}")
    if len({id(tensor) for tensor in tensors}) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise DefinitionError(f"a tensor is listed twice among {names}")


def _reads(op: Operation) -> Iterator[TensorRead]:
    if isinstance(op, ComputeOp):
        for node in walk(op.body):
            if isinstance(node, TensorRead):
                yield node


def _post_order(tensors: Sequence[Tensor]) -> list[Tensor]:
    order: list[Tensor] = []
    seen: set[int] = set()
    stack: list[tuple[Tensor, bool]] = [(tensor, False) for tensor in reversed(tensors)]
    while stack:
        tensor, expanded = stack.pop()
        if expanded:
            order.append(tensor)
        elif id(tensor) not in seen:
            seen.add(id(tensor))
            stack.append((tensor, True))
            stack.extend(
                (read.tensor, False) for read in reversed(list(_reads(tensor.op))) if id(read.tensor) not in seen
            )
    return order


def _unique_names(ops: Sequence[Operation]) -> list[str]:
    names: list[str] = []
    for op in ops:
        name, suffix = op.name, 0
        while name in names:
            suffix += 1
            name = f"{op.name}_{suffix}"
        names.append(name)
    return names


def _flops_of(op: ComputeOp) -> float:
    points = 1.0
    for axis in op.axes:
        points *= axis.extent
    if isinstance(op.body, Reduce):
        for axis in op.body.axes:
            points *= axis.extent
        combiner = op.body.combiner
        joining = _cost(combiner.result, is_float(op.dtype)) if isinstance(combiner, Combiner) else 1.0
        return points * (joining + _cost(op.body.source, is_float(op.dtype)))
    return points * _cost(op.body, is_float(op.dtype))


def _cost(expr: Expr, floating: bool) -> float:
    match expr:
        case Const() | Axis() | Var() | TensorRead():
            return 0.0
        case Cast():
            return _cost(expr.value, floating)
        case Select():
            return _cost(expr.condition, floating) + max(_cost(expr.then, floating), _cost(expr.otherwise, floating))
        case Call():
            return sum(_cost(arg, floating) for arg in expr.args)
        case Not():
            return (0.0 if floating else 1.0) + _cost(expr.value, floating)
        case Binary():
            counts = is_float(expr.lhs.dtype) == floating or is_float(expr.rhs.dtype) == floating
            return (1.0 if counts else 0.0) + _cost(expr.lhs, floating) + _cost(expr.rhs, floating)
    raise DefinitionError(f"cannot count the operations of {expr}")
