"""Imports graphs of function calls, in the JSON form of TVM's graph executor, as plans.

    nodes          {"op": "null", name, inputs}: an input or a parameter
                   {"op": "tvm_op", name, inputs: [[node, index, version]], attrs: {func_name, num_inputs, ...}}
    arg_nodes      numbers of the inputs and parameters, in order
    heads          [[node, index, version]] of the outputs
    node_row_ptr   number of a node's first entry; an entry is one output of one node
    attrs          shape, dltype, storage_id, device_index (the kind of device) of every entry, each as
                   ["list_...", values]

Entries with one storage id are in the same memory, one after another. The function `__nop` views its operand in another
shape, in the same memory; `__copy` copies it.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from retune.compiler.core.dtype import number_type
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject, string
from retune.compiler.runtime.archive import DAMAGE, damage_text
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.runtime.executor.placement import FIRST_GPU, HOST
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan

DEVICE = "device"
"""The attribute of a node with its device of the plan, if that is not the CPU."""

NOP = "__nop"
COPY = "__copy"

CPU, GPU = 1, 2
"""Kinds of devices, as DLPack numbers them."""
_GLOBAL = "global"
_OWN_ATTRS = ("num_outputs", "num_inputs", "flatten_data", "func_name")
_ROW = 2, 3
"""Lengths of [node, index, version]; the version may be missing."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node: `function` is empty for inputs and parameters, `inputs` are (node, output), `attrs` a call's others."""

    name: str
    function: str = ""
    inputs: tuple[tuple[int, int], ...] = ()
    num_outputs: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A graph: its nodes, and its plan, whose buffer numbers are the graph's entry numbers. Inputs and parameters are
    inputs of the plan; calls are labeled with the names of their nodes.
    """

    nodes: tuple[GraphNode, ...]
    plan: Plan

    @property
    def first_entries(self) -> tuple[int, ...]:
        """The number of every node's first entry, and of all entries at the end."""
        return _first_entries(self.nodes)

    def without_sharing(self) -> "ImportedGraph":
        """The same graph with own memory for every value except views."""
        buffers, end = [], 0
        for number, spec in enumerate(self.plan.buffers):
            owns = spec.kind is BufferKind.INTERMEDIATE and spec.storage == number
            buffers.append(replace(spec, offset=end if owns else 0))
            end += _align(spec.nbytes) if owns else 0
        return replace(self, plan=replace(self.plan, buffers=tuple(buffers), arena_bytes=end))


def import_graph(text: str, on_gpu: Collection[str] = (), name: str = "graph") -> ImportedGraph:
    """Read a graph. Functions `on_gpu` run on device 1 unless their nodes name another.

    Raises: ArtifactError that says what is malformed, or which node reads an overwritten value.
    """
    try:
        data = json.loads(text)
        nodes = tuple(_node(row, number) for number, row in enumerate(data["nodes"]))
        entries = _entries(data)
        arg_nodes = [_integer(number) for number in data["arg_nodes"]]
        heads = _sources(data["heads"])
        if "node_row_ptr" in data and tuple(data["node_row_ptr"]) != _first_entries(nodes):
            raise ValueError(f"node_row_ptr is {data['node_row_ptr']}, the nodes make {list(_first_entries(nodes))}")
    except DAMAGE as error:
        raise ArtifactError(f"the graph JSON cannot be read: {damage_text(error)}") from error
    importer = _Importer(nodes, entries, arg_nodes, on_gpu)
    return ImportedGraph(nodes, importer.plan(name, heads))


@dataclass(frozen=True, slots=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: str
    storage_id: int


class _Importer:
    """Walks through a graph, node by node, and tracks the entry in every storage."""

    def __init__(
        self, nodes: Sequence[GraphNode], entries: Sequence[_Entry], arg_nodes: Sequence[int], on_gpu: Collection[str]
    ) -> None:
        self._nodes, self._entries, self._args, self._on_gpu = nodes, entries, arg_nodes, on_gpu
        self._first = _first_entries(nodes)
        self._buffers: list[BufferSpec] = []
        self._calls: list[Call] = []

    def plan(self, name: str, heads: Sequence[tuple[int, int]]) -> Plan:
        self._check_inputs()
        inputs = tuple(self._first[number] for number in self._args)
        stored = [self._entries[entry].storage_id for entry in inputs]
        if len(set(stored)) != len(stored):
            raise ArtifactError("graph: two inputs have one storage id")
        self._holds = dict(zip(stored, inputs, strict=True))
        self._kept = frozenset(stored)
        offsets, end = self._offsets()
        for number, node in enumerate(self._nodes):
            self._add(number, node, offsets)
        outputs = tuple(self._read(head, len(self._nodes), "heads") for head in heads)
        return Plan(name, tuple(self._buffers), tuple(self._calls), inputs, outputs, end)

    def _check_inputs(self) -> None:
        if self._first[-1] != len(self._entries):
            raise ArtifactError(f"graph: {len(self._entries)} entries described, the nodes have {self._first[-1]}")
        names = {self._nodes[number].name for number in self._args if number < len(self._nodes)}
        inputs = [number for number, node in enumerate(self._nodes) if not node.function]
        if sorted(self._args) != inputs or len(names) != len(inputs):
            raise ArtifactError("graph: arg_nodes must list every null node once, and their names must differ")

    def _offsets(self) -> tuple[dict[int, int], int]:
        """The arena offset of each storage without an input, and the arena's size."""
        sizes: dict[int, int] = {}
        for entry in self._entries:
            nbytes = BufferSpec("", entry.shape, entry.dtype, BufferKind.INTERMEDIATE, 0).nbytes
            # TVM sizes a storage by its largest entry.
            sizes[entry.storage_id] = max(nbytes, sizes.get(entry.storage_id, 0))
        own = [storage for storage in sizes if storage not in self._kept]
        ends = list(accumulate((_align(sizes[storage]) for storage in own), initial=0))
        return dict(zip(own, ends, strict=False)), ends[-1]

    def _add(self, number: int, node: GraphNode, offsets: Mapping[int, int]) -> None:
        where = f"node {number} ({node.name})"
        read = [self._read(source, number, where) for source in node.inputs]
        written = range(self._first[number], self._first[number + 1])
        for entry in written:
            spec, label = self._entries[entry], node.name
            label += f":{entry - written[0]}" if node.num_outputs > 1 else ""
            kind = BufferKind.INTERMEDIATE if node.function else BufferKind.INPUT
            offset = offsets[spec.storage_id] if node.function and spec.storage_id in offsets else 0
            self._buffers.append(BufferSpec(label, spec.shape, spec.dtype, kind, entry, offset))
        if node.function == NOP:
            self._show(read, written, where)
        elif node.function:
            self._write(read, written, where)
            device = _device_of(node, FIRST_GPU if node.function in self._on_gpu else HOST)
            self._calls.append(Call(node.function, (*read, *written), node.name, device))

    def _read(self, source: tuple[int, int], before: int, where: str) -> int:
        """The number of an entry whose value is still there."""
        node, index = source
        if node >= before or index >= self._nodes[node].num_outputs:
            raise ArtifactError(f"graph, {where}: there is no output {index} of a node {node} before it")
        entry = self._first[node] + index
        # Reaching definitions, one per storage: a value lasts until the next entry of its storage is written.
        if self._holds.get(self._entries[entry].storage_id) != self._buffers[entry].storage:
            name = self._nodes[node].name
            raise ArtifactError(f"graph, {where}: it reads {name}, whose memory was written over before")
        return entry

    def _show(self, read: Sequence[int], written: range, where: str) -> None:
        """Make the result of `__nop` a view of its operand."""
        if len(read) != 1 or len(written) != 1:
            raise ArtifactError(f"graph, {where}: {NOP} has one operand and one result")
        shown, view = self._buffers[read[0]], self._buffers[written[0]]
        same = self._entries[read[0]].storage_id == self._entries[written[0]].storage_id and shown.dtype == view.dtype
        if not same or shown.nbytes < view.nbytes:
            raise ArtifactError(
                f"graph, {where}: operand and result of {NOP} must have one storage and dtype, and the result no more "
                "bytes than the operand"
            )
        root = self._buffers[shown.storage]
        self._buffers[written[0]] = replace(view, kind=root.kind, storage=shown.storage, offset=root.offset)

    def _write(self, read: Sequence[int], written: range, where: str) -> None:
        # A kernel's output is noalias, so a node must not read and write one storage.
        busy = {self._entries[entry].storage_id for entry in read} | self._kept
        for entry in written:
            storage = self._entries[entry].storage_id
            if storage in busy:
                raise ArtifactError(f"graph, {where}: it writes to storage {storage}, which it reads or an input has")
            busy.add(storage)
            self._holds[storage] = entry


def _node(row: JsonObject, number: int) -> GraphNode:
    name, inputs = string(row["name"]), _sources(row.get("inputs", ()))
    if row["op"] == "null":
        if inputs:
            raise ValueError(f"node {number} ({name}) is null and has inputs")
        return GraphNode(name)
    if row["op"] != "tvm_op":
        raise ValueError(f"node {number} ({name}): op is {row['op']!r}; it must be null or tvm_op")
    attrs = {string(key): string(value) for key, value in row["attrs"].items()}
    outputs, count = int(attrs["num_outputs"]), int(attrs["num_inputs"])
    if count != len(inputs) or outputs < 1 or not attrs["func_name"]:
        raise ValueError(f"node {number} ({name}): num_inputs, num_outputs and func_name do not fit the node")
    others = {key: value for key, value in attrs.items() if key not in _OWN_ATTRS}
    return GraphNode(name, attrs["func_name"], inputs, outputs, others)


def _entries(data: JsonObject) -> list[_Entry]:
    attrs = {name: value[1] for name, value in data["attrs"].items() if isinstance(value, list) and len(value) == 2}
    if set(attrs.get("device_index", ())) - {CPU, GPU} or set(attrs.get("storage_scope", ())) - {_GLOBAL, ""}:
        raise ValueError("graphs run on CPUs and CUDA's GPUs, in their global memory, not on other devices")
    columns = zip(attrs["shape"], attrs["dltype"], attrs["storage_id"], strict=True)
    return [
        _Entry(tuple(_integer(extent) for extent in shape), number_type(dtype), _integer(storage))
        for shape, dtype, storage in columns
    ]


def _first_entries(nodes: Sequence[GraphNode]) -> tuple[int, ...]:
    return tuple(accumulate((node.num_outputs for node in nodes), initial=0))


def _device_of(node: GraphNode, usual: int) -> int:
    text = node.attrs.get(DEVICE, str(usual))
    # `int` would also take signs, spaces, and digits of any script and number.
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise ArtifactError(f"graph, node {node.name}: its device is {text!r:.40}, and must be a number such as 1")
    return int(text)


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _sources(rows: Sequence[Sequence[object]]) -> tuple[tuple[int, int], ...]:
    for row in rows:
        if len(row) not in _ROW:
            raise ValueError(f"{row!r} is not [node, index, version]")
    return tuple((_integer(row[0]), _integer(row[1])) for row in rows)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not an integer from 0 on")
    return value
