"""In: input and output tensors. Out: a `ComputeDAG`, the ordered operations with their accesses, FLOP count and
workload key.

Always: immutable, deterministic, picklable.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from compiler.errors import DefinitionError
from compiler.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Not, Select, Var, is_float
from compiler.ir.visit import transform
from compiler.te.tensor import (
    Axis,
    Combiner,
    ComputeOp,
    ExternOp,
    Handle,
    Operation,
    PlaceholderOp,
    Reduce,
    Tensor,
    TensorRead,
    reads_of,
    results_of,
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and the handles by which others read its results, in order."""

    tensors: tuple[Tensor, ...]
    op: Operation

    @classmethod
    def of(cls, op: Operation) -> "Node":
        """An operation with its own results."""
        return cls(results_of(op), op)

    @property
    def tensor(self) -> Tensor:
        """The first result."""
        return self.tensors[0]


class ComputeDAG:
    """The operations of a sub-graph, producers before consumers, and what an analysis needs to know about them.

    Operations are numbered in stage order: depth first from the outputs, inputs in the order in which they are read;
    inputs that nothing reads come first. An operation with several results is one operation, whichever of them are
    listed. Stages that call a registered function (`te.extern`) are taken as they are; TVM refuses them.
    Raises: DefinitionError when no output is given, or an output is a placeholder.
    """

    def __init__(self, io_tensors: Sequence[Tensor]) -> None:
        _check_tensors(io_tensors)
        computed = [tensor for tensor in io_tensors if not isinstance(tensor.op, PlaceholderOp)]
        reads = [tensor for op in _post_order(computed) for tensor, _ in reads_of(op)]
        outputs = [tensor for tensor in computed if tensor not in set(reads)]
        if not outputs:
            raise DefinitionError("a compute graph needs at least one computed output")
        order = _post_order(outputs)
        listed = [tensor for tensor in io_tensors if isinstance(tensor.op, PlaceholderOp)]
        unread = [tensor.op for tensor in listed if tensor.op not in order]
        ops = (*unread, *order)
        known = {tensor: tensor for tensor in (*reversed(reads), *reversed(io_tensors))}
        nodes = tuple(Node(tuple(known.get(tensor, tensor) for tensor in results_of(op)), op) for op in ops)
        inputs = {tensor.op for tensor in listed}
        unlisted = [node.tensor for node in nodes if isinstance(node.op, PlaceholderOp) and node.op not in inputs]
        self._setup(nodes, (*listed, *unlisted), tuple(outputs))

    def _setup(self, nodes: tuple[Node, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self._ids = {tensor: index for index, node in enumerate(nodes) for tensor in node.tensors}

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
            return self._ids[tensor]
        except KeyError:
            raise DefinitionError(f"{tensor.name} is not part of this compute graph") from None

    @cached_property
    def reads(self) -> tuple[tuple[tuple[int, tuple[Expr, ...]], ...], ...]:
        """For every operation, the (producer, indices) of each textual read, in order; see `te.tensor.reads_of`."""
        return tuple(tuple((self.id_of(tensor), indices) for tensor, indices in reads_of(op)) for op in self.ops)

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
        """Numbers of the operations with a result that leaves the graph."""
        return frozenset(self.id_of(tensor) for tensor in self.outputs)

    @cached_property
    def flop_count(self) -> float:
        """Floating-point operations of one evaluation, counted as the reference does; `FLOP` overrides."""
        total = 0.0
        for op in self.ops:
            if "FLOP" in op.attrs:
                total += float(op.attrs["FLOP"])
            elif isinstance(op, ComputeOp):
                total += _flops_of(op)
        return total

    @cached_property
    def workload_key(self) -> str:
        """JSON text `[hash, shape of each input and output …]`; equal computations have equal keys."""
        order = ",".join(map(self._place, (*self.inputs, *self.outputs)))
        digest = hashlib.md5(f"{self}\n{order}".encode(), usedforsecurity=False).hexdigest()
        return json.dumps([digest, *(list(tensor.shape) for tensor in (*self.inputs, *self.outputs))])

    def hash_key(self) -> str:
        """The hash in the workload key."""
        return str(json.loads(self.workload_key)[0])

    def _place(self, tensor: Tensor) -> str:
        """Number of the operation that makes the tensor, and which of several results it is."""
        op_id = self.id_of(tensor)
        return str(op_id) if len(self.nodes[op_id].tensors) == 1 else f"{op_id}.v{tensor.value_index}"

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
            if isinstance(op, ExternOp):
                lines.append(self._extern_line(op, names[op_id], names))
                continue
            axes = ", ".join(f"{axis}:{axis.extent}" for axis in (*op.axes, *op.reduce_axes))
            for tensor, (sign, value) in zip(self.nodes[op_id].tensors, _bodies(op), strict=True):
                lines.append(f"{self._name(tensor, names)}({axes}) {sign} {self._printable(value, names)}")
        return "\n".join(lines)

    def _printable(self, body: Expr, names: Sequence[str]) -> Expr:
        def rename(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            tensor = node.tensor
            return Load(Buffer(self._name(tensor, names), tensor.shape, tensor.dtype), node.indices)

        return transform(body, rename)

    def _name(self, tensor: Tensor, names: Sequence[str]) -> str:
        op_id = self.id_of(tensor)
        several = len(self.nodes[op_id].tensors) > 1
        return f"{names[op_id]}.v{tensor.value_index}" if several else names[op_id]

    def _extern_line(self, op: ExternOp, name: str, names: Sequence[str]) -> str:
        """The call with inputs by name and results by number."""
        results = ", ".join(f"{list(shape)} {dtype}" for shape, dtype in zip(op.shapes, op.dtypes, strict=True))
        texts = []
        for argument in op.call.args:
            if not isinstance(argument, Handle):
                texts.append(repr(argument))
            elif argument.is_result:
                texts.append(f"v{argument.index}")
            else:
                texts.append(self._name(op.inputs[argument.index], names))
        return f"{name} = EXTERN {results} {op.call.function}({', '.join(texts)})"


def _check_tensors(tensors: Sequence[Tensor]) -> None:
    if not isinstance(tensors, Sequence) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise DefinitionError(f"a compute graph is made of a list of tensors, not of {tensors!r}")
    if len(set(tensors)) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise DefinitionError(f"a tensor is listed twice among {names}")


def _post_order(tensors: Sequence[Tensor]) -> dict[Operation, None]:
    """The operations that make the tensors, after all that they read, in a set that keeps its order."""
    order: dict[Operation, None] = {}
    seen: set[Operation] = set()
    stack: list[tuple[Operation, bool]] = [(tensor.op, False) for tensor in reversed(tensors)]
    while stack:
        op, expanded = stack.pop()
        if expanded:
            order[op] = None
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack.extend((tensor.op, False) for tensor, _ in reversed(reads_of(op)) if tensor.op not in seen)
    return order


def _bodies(op: ComputeOp) -> list[tuple[str, Expr]]:
    """How every result is assigned, and what: all results of a reduction are joined from all that it reduces."""
    if not isinstance(op.body, Reduce):
        return [("=", value) for value in op.values]
    combiner = op.body.combiner
    if isinstance(combiner, str):
        return [(f"{combiner}=", op.body.source)]
    pairs = zip(combiner.results, combiner.identities, strict=True)
    return [(f"reduce<{result}, {identity}>=", op.body.source) for result, identity in pairs]


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
    """Operations of the type class of each result, over all results."""
    points = 1.0
    for axis in (*op.axes, *op.reduce_axes):
        points *= axis.extent
    combiner = op.body.combiner if isinstance(op.body, Reduce) else None
    total = 0.0
    for index, value in enumerate(op.values):
        floating = is_float(value.dtype)
        total += points * _cost(value, floating)
        if isinstance(combiner, Combiner):
            total += points * _cost(combiner.results[index], floating)
        elif combiner is not None:
            total += points
    return total


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
