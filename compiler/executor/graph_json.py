"""In: the JSON text of a graph of function calls, as TVM's graph executor reads and writes it. Out: a `GraphJson`.

Always: frozen; nodes stand after what they read; what `verify` accepts never reads a value that was written over.

    nodes          {"op": "null", name, inputs}: an input or a parameter
                   {"op": "tvm_op", name, inputs: [[node, index, version]], attrs: {func_name, num_inputs, ...}}
    arg_nodes      numbers of the inputs and parameters, in order
    heads          [[node, index, version]] of the outputs
    node_row_ptr   number of a node's first entry; an entry is one output of one node
    attrs          shape, dltype, storage_id, device_index (the kind of device) of every entry, each as
                   ["list_...", values]

Entries with one storage id lie in the same memory, one after the other. The function `__nop` shows its operand in
another shape, in the same memory; `__copy` copies it.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from retune.compiler.dtype import item_bytes, number_type
from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.archive import DAMAGE

DEVICE = "device"
"""The attribute of a node that says on which device of the plan it runs, where that is not the processor."""

NOP = "__nop"
COPY = "__copy"

_GLOBAL = "global"
_CPU, _GPU = 1, 2
"""Kinds of devices, as DLPack numbers them."""


@dataclass(frozen=True, slots=True)
class Source:
    """One output of one node."""

    node: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `function` is empty for inputs and parameters; `attrs` are further attributes of a call, as texts."""

    name: str
    function: str = ""
    inputs: tuple[Source, ...] = ()
    num_outputs: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_input(self) -> bool:
        """Whether it is an input or a parameter."""
        return not self.function


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """One entry: what it holds, and the number of the memory in which it lies."""

    shape: tuple[int, ...]
    dtype: str
    storage_id: int

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array."""
        return math.prod(self.shape) * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class GraphJson:
    """A graph of function calls with its memory plan."""

    nodes: tuple[Node, ...]
    arg_nodes: tuple[int, ...]
    heads: tuple[Source, ...]
    entries: tuple[EntrySpec, ...]

    @property
    def row_ptr(self) -> tuple[int, ...]:
        """Number of every node's first entry, and of all entries at the end."""
        return tuple(accumulate((node.num_outputs for node in self.nodes), initial=0))

    def entry(self, source: Source) -> int:
        """The number of an entry."""
        return self.row_ptr[source.node] + source.index

    @property
    def _makers(self) -> tuple[Node, ...]:
        """The node of every entry."""
        return tuple(node for node in self.nodes for _ in range(node.num_outputs))

    def storage_bytes(self) -> dict[int, int]:
        """How large the memory of every storage id must be."""
        sizes: dict[int, int] = {}
        for entry in self.entries:
            sizes[entry.storage_id] = max(entry.nbytes, sizes.get(entry.storage_id, 0))
        return sizes

    def dumps(self) -> str:
        """The JSON text."""
        data = {
            "nodes": [_node_row(node) for node in self.nodes],
            "arg_nodes": list(self.arg_nodes),
            "heads": [[head.node, head.index, 0] for head in self.heads],
            "attrs": {
                "dltype": ["list_str", [entry.dtype for entry in self.entries]],
                "device_index": ["list_int", [_GPU if DEVICE in node.attrs else _CPU for node in self._makers]],
                "storage_id": ["list_int", [entry.storage_id for entry in self.entries]],
                "shape": ["list_shape", [list(entry.shape) for entry in self.entries]],
            },
            "node_row_ptr": list(self.row_ptr),
        }
        return json.dumps(data, indent=1)

    @classmethod
    def loads(cls, text: str) -> "GraphJson":
        """Read a JSON text and verify it.

        Raises: ArtifactError that says what is wrong with it.
        """
        try:
            graph = _graph_of(json.loads(text))
        except DAMAGE as error:
            raise ArtifactError(f"the graph JSON cannot be read: {type(error).__name__}: {error}") from error
        graph.verify()
        return graph

    def verify(self) -> None:
        """Check that all numbers fit together and that no value is written over before its last reader.

        Raises: ArtifactError that names the node at fault.
        """
        if self.row_ptr[-1] != len(self.entries):
            raise ArtifactError(f"graph: {len(self.entries)} entries described, the nodes have {self.row_ptr[-1]}")
        named = [self.nodes[number].name for number in self.arg_nodes if 0 <= number < len(self.nodes)]
        inputs = [number for number, node in enumerate(self.nodes) if node.is_input]
        if sorted(self.arg_nodes) != inputs or len(set(named)) != len(inputs):
            raise ArtifactError("graph: arg_nodes must list every null node once, and their names must differ")
        for number, node in enumerate(self.nodes):
            for source in node.inputs:
                self._check_source(source, number, f"node {number} ({node.name})")
        for head in self.heads:
            self._check_source(head, len(self.nodes), "heads")
        _Memory(self).check()

    def _check_source(self, source: Source, before: int, where: str) -> None:
        if not 0 <= source.node < before or not 0 <= source.index < self.nodes[source.node].num_outputs:
            raise ArtifactError(f"graph, {where}: there is no output {source.index} of a node {source.node} before it")


class _Memory:
    """Walks through a graph and keeps in mind which entry every memory holds."""

    def __init__(self, graph: GraphJson) -> None:
        self.graph = graph
        self.rows = graph.row_ptr
        self.holds: dict[int, int] = {}
        self.roots = list(range(len(graph.entries)))

    def check(self) -> None:
        graph = self.graph
        kept = [graph.entries[self.rows[number]].storage_id for number in graph.arg_nodes]
        if len(set(kept)) != len(kept):
            raise ArtifactError("graph: two inputs have one storage id")
        for number in graph.arg_nodes:
            self.holds[graph.entries[self.rows[number]].storage_id] = self.rows[number]
        for number, node in enumerate(graph.nodes):
            if not node.is_input:
                self._call(number, node, frozenset(kept))
        for head in graph.heads:
            self._read(head, "heads")

    def _call(self, number: int, node: Node, kept: frozenset[int]) -> None:
        where = f"node {number} ({node.name})"
        read = [self._read(source, where) for source in node.inputs]
        written = range(self.rows[number], self.rows[number + 1])
        if node.function == NOP:
            self._show(read, written, where)
            return
        taken = {self.graph.entries[entry].storage_id for entry in read} | kept
        for entry in written:
            storage = self.graph.entries[entry].storage_id
            if storage in taken:
                raise ArtifactError(f"graph, {where}: it writes to storage {storage}, which it reads or an input has")
            taken.add(storage)
            self.holds[storage] = entry

    def _show(self, read: Sequence[int], written: range, where: str) -> None:
        if len(read) != 1 or len(written) != 1:
            raise ArtifactError(f"graph, {where}: {NOP} has one operand and one result")
        entries = self.graph.entries
        shown, view = entries[read[0]], entries[written[0]]
        one = (shown.storage_id, shown.dtype) == (view.storage_id, view.dtype) and shown.nbytes >= view.nbytes
        if not one:
            raise ArtifactError(
                f"graph, {where}: operand and result of {NOP} must have one storage and dtype, and the result no more "
                "bytes than the operand"
            )
        self.roots[written[0]] = self.roots[read[0]]

    def _read(self, source: Source, where: str) -> int:
        entry = self.rows[source.node] + source.index
        holds = self.holds.get(self.graph.entries[entry].storage_id)
        if holds != self.roots[entry]:
            name = self.graph.nodes[source.node].name
            raise ArtifactError(f"graph, {where}: it reads {name}, whose memory was written over before")
        return entry


def _node_row(node: Node) -> dict[str, Any]:
    row: dict[str, Any] = {"op": "null" if node.is_input else "tvm_op", "name": node.name}
    if not node.is_input:
        row["attrs"] = {
            "num_outputs": str(node.num_outputs),
            "num_inputs": str(len(node.inputs)),
            "flatten_data": "0",
            "func_name": node.function,
            **node.attrs,
        }
    row["inputs"] = [[source.node, source.index, 0] for source in node.inputs]
    return row


_OWN_ATTRS = ("num_outputs", "num_inputs", "flatten_data", "func_name")


def _node_of(row: Mapping[str, Any], number: int) -> Node:
    name, inputs = _text(row["name"]), tuple(_sources(row.get("inputs", ())))
    if row["op"] == "null":
        if inputs:
            raise ValueError(f"node {number} ({name}) is null and has inputs")
        return Node(name)
    if row["op"] != "tvm_op":
        raise ValueError(f"node {number} ({name}): op is {row['op']!r}; it must be null or tvm_op")
    attrs = {_text(key): _text(value) for key, value in row["attrs"].items()}
    outputs, count = int(attrs["num_outputs"]), int(attrs["num_inputs"])
    if count != len(inputs) or outputs < 1 or not attrs["func_name"]:
        raise ValueError(f"node {number} ({name}): num_inputs, num_outputs and func_name do not fit the node")
    others = {key: value for key, value in attrs.items() if key not in _OWN_ATTRS}
    return Node(name, attrs["func_name"], inputs, outputs, others)


def _graph_of(data: Mapping[str, Any]) -> GraphJson:
    nodes = tuple(_node_of(row, number) for number, row in enumerate(data["nodes"]))
    attrs = {name: value[1] for name, value in data["attrs"].items() if isinstance(value, list) and len(value) == 2}
    if set(attrs.get("device_index", ())) - {_CPU, _GPU} or set(attrs.get("storage_scope", ())) - {_GLOBAL, ""}:
        raise ValueError("graphs run on processors and CUDA's GPUs, in their global memory, not on other devices")
    columns = zip(attrs["shape"], attrs["dltype"], attrs["storage_id"], strict=True)
    entries = tuple(
        EntrySpec(tuple(_whole(extent) for extent in shape), number_type(dtype), _whole(storage))
        for shape, dtype, storage in columns
    )
    graph = GraphJson(
        nodes=nodes,
        arg_nodes=tuple(_whole(number) for number in data["arg_nodes"]),
        heads=tuple(_sources(data["heads"])),
        entries=entries,
    )
    if "node_row_ptr" in data and tuple(data["node_row_ptr"]) != graph.row_ptr:
        raise ValueError(f"node_row_ptr is {data['node_row_ptr']}, the nodes make {list(graph.row_ptr)}")
    return graph


def _sources(rows: Sequence[Sequence[Any]]) -> Iterator[Source]:
    for row in rows:
        if len(row) not in (2, 3):
            raise ValueError(f"{row!r} is not [node, index, version]")
        yield Source(_whole(row[0]), _whole(row[1]))


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
