"""`ComputeDAG`: the operations of a computation in order, with their accesses, FLOP count and workload key.

It is immutable, deterministic and picklable.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, TypeVarTuple

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import dim_to_json
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.ffi.registry import find_function
from retune.compiler.schedule.dag_text import dag_text, fingerprint, shorten
from retune.compiler.schedule.flops import UNKNOWN, flops_of
from retune.compiler.schedule.op_order import outputs_in_order
from retune.compiler.te.checks import check_reads, is_earlier
from retune.compiler.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    post_order,
    reads_of,
    results_of,
    scans_of,
)

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

HASH_FUNCTION = "auto_scheduler.compute_dag.hash_func"
"""A function registered under this name, see `retune.compiler.runtime.ffi.registry`, makes hashes of strings."""


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
    """The operations of a sub-graph, producers before consumers, and their analyses.

    Operations are numbered in stage order: depth first from the outputs, inputs in the order of their reads (an input
    that is read inside an index before the indexed tensor); inputs that nothing reads come first. An operation with
    several results is one operation, whichever of them are listed. A computed tensor that is listed is an output, also
    when another tensor reads it. Stages that call a registered function (`te.extern`) are accepted; TVM refuses them.
    Raises: DefinitionError without an output, or if an output is a placeholder.
    """

    def __init__(self, io_tensors: Sequence[Tensor]) -> None:
        _check_tensors(io_tensors)
        computed = [tensor for tensor in io_tensors if not isinstance(tensor.op, PlaceholderOp)]
        reads = [tensor for op in post_order(computed) for tensor in _checked_reads(op)]
        if not computed:
            raise DefinitionError("a compute graph needs at least one computed output")
        order = post_order(outputs_in_order(io_tensors, computed))
        listed = [tensor for tensor in io_tensors if isinstance(tensor.op, PlaceholderOp)]
        unread = [tensor.op for tensor in listed if tensor.op not in order]
        ops = (*unread, *order)
        # Equal tensors may be different objects: the caller's handles win, and of these the first.
        handles = {tensor: tensor for tensor in (*reversed(reads), *reversed(io_tensors))}
        nodes = tuple(Node(tuple(handles.get(tensor, tensor) for tensor in results_of(op)), op) for op in ops)
        states = {state.op for op in ops if isinstance(op, ScanOp) for state in op.states}
        known = {*states, *(tensor.op for tensor in listed)}
        unlisted = [node.tensor for node in nodes if isinstance(node.op, PlaceholderOp) and node.op not in known]
        self._setup(nodes, (*listed, *unlisted), tuple(computed))
        _check_scans(self, (*listed, *computed))

    def _setup(self, nodes: tuple[Node, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        self.analyses: dict[tuple[object, ...], Any] = {}  # of `cached_on_dag`
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

    def __reduce__(self) -> tuple[object, ...]:
        # A hash is kept: the function that made it may not be registered in the other process.
        attributes = {"_hash": self._hash} if "_hash" in self.__dict__ else None
        return type(self)._from_parts, (self.nodes, self.inputs, self.outputs), attributes

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
    def scan_of(self) -> dict[int, int]:
        """The number of the scan of every operation that runs once in each of its steps."""
        return scans_of(self.ops, self.id_of)

    @cached_property
    def flop_count(self) -> float:
        """Operations of one evaluation, by the rules of `retune.compiler.schedule.flops`; -1 when no rule fits."""
        counts = [flops_of(op) for op in self.ops]
        return UNKNOWN if UNKNOWN in counts else sum(count * self.runs_of(i) for i, count in enumerate(counts))

    def runs_of(self, op_id: int) -> int:
        """How often an operation runs: once, or once in every step of a scan."""
        scan = self.ops[self.scan_of[op_id]] if op_id in self.scan_of else None
        return scan.steps if isinstance(scan, ScanOp) else 1

    @cached_property
    def _hash(self) -> str | int:
        # Graphs that differ only in the order of inputs or outputs have kernels with other parameters.
        order = ",".join(map(self._result_number, (*self.inputs, *self.outputs)))
        text = f"{fingerprint(self.ops, self.id_of, self.layout_free)}\n{order}"
        function = find_function(HASH_FUNCTION)
        if function is None:
            # MD5 as in TVM's workload keys.
            return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        key: str | int = function(text)
        return key

    def hash_key(self) -> str:
        """The hash of the computation: the MD5 sum of a string that describes it completely, or the result of the
        function registered as `HASH_FUNCTION` for that text.

        TVM hashes a shorter text: computations that differ only in their element types have the same key.
        """
        return str(self._hash)

    @cached_property
    def workload_key(self) -> str:
        """JSON text `[hash, shape of each input and output …]`; equal computations have equal keys."""
        return json.dumps(
            [self._hash, *(list(map(dim_to_json, tensor.shape)) for tensor in (*self.inputs, *self.outputs))]
        )

    def _result_number(self, tensor: Tensor) -> str:
        """Number of the operation that makes the tensor, and of the result."""
        op_id = self.id_of(tensor)
        return str(op_id) if len(self.nodes[op_id].tensors) == 1 else f"{op_id}.v{tensor.value_index}"

    def with_nodes(
        self, nodes: Sequence[Node], inputs: tuple[Tensor, ...] | None = None, outputs: tuple[Tensor, ...] | None = None
    ) -> "ComputeDAG":
        """A graph of other operations, producers before consumers; inputs and outputs are the same by default."""
        ends = self.inputs if inputs is None else inputs, self.outputs if outputs is None else outputs
        return ComputeDAG._from_parts(tuple(nodes), *ends)

    @cached_property
    def layout_free(self) -> frozenset[int]:
        """Numbers of the inputs whose layout the schedule may choose."""
        listed = (tensor for op in self.ops for tensor in op.attrs.get("layout_free_placeholders", ()))
        return frozenset(self.id_of(tensor) for tensor in listed)

    def text(self, simple: bool = False) -> str:
        """One line a result, see `dag_text`; no line is shortened."""
        return dag_text(self.ops, self.id_of, simple)

    def __str__(self) -> str:
        return shorten(self.text())


def _checked_reads(op: Operation) -> Iterator[Tensor]:
    """The tensors that an operation reads, each checked to have as many indices as dimensions."""
    for tensor, indices in reads_of(op):
        if isinstance(op, ComputeOp) and len(indices) != len(tensor.shape):
            raise DefinitionError(
                f"{op.name} reads {tensor.name}, which has {len(tensor.shape)} dimensions, with {len(indices)} indices"
                "; rewrite_compute_body puts reads of a weight in another layout right"
            )
        yield tensor


def _check_scans(dag: ComputeDAG, listed: Sequence[Tensor]) -> None:
    """Check that what runs in the steps of a scan stays there, and that only states are read at earlier elements."""
    states = {state.op: op.name for op in dag.ops if isinstance(op, ScanOp) for state in op.states}
    for tensor in listed:
        scan = dag.scan_of.get(dag.id_of(tensor))
        if scan is not None or tensor.op in states:
            owner = states[tensor.op] if scan is None else dag.ops[scan].name
            raise DefinitionError(f"{tensor.name} is a part of the steps of {owner}; list the scan's result")
    for op in dag.ops:
        reads = reads_of(op) if isinstance(op, ComputeOp) else ()
        earlier = (is_earlier(TensorRead(*read)) for read in reads if read[1] and read[0].op not in states)
        if isinstance(op, ComputeOp) and any(earlier):
            check_reads(op.name, op.body, complete=True)


def _check_tensors(tensors: Sequence[Tensor]) -> None:
    if not isinstance(tensors, Sequence) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise DefinitionError(f"a compute graph is made of a list of tensors, not of a {type(tensors).__name__}")
    if len(set(tensors)) != len(tensors):
        names = ", ".join(tensor.name for tensor in tensors)
        raise DefinitionError(f"a tensor is listed twice among {names}")


def cached_on_dag(
    analysis: Callable[[ComputeDAG, *_Arguments], _Result],
) -> Callable[[ComputeDAG, *_Arguments], _Result]:
    """Keep the results of `analysis(dag, *arguments)` on the graph, so that they are freed with it."""

    @wraps(analysis)
    def look_up(dag: ComputeDAG, *arguments: *_Arguments) -> _Result:
        key = (analysis, *arguments)
        if key not in dag.analyses:
            dag.analyses[key] = analysis(dag, *arguments)
        result: _Result = dag.analyses[key]
        return result

    return look_up
