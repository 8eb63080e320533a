"""Graphs of function calls, written by hand: `GraphJson(...).dumps()` is their JSON text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True)
class Source:
    """One output of one node."""

    node: int
    index: int = 0


@dataclass(frozen=True)
class Node:
    """One node; `function` is empty for inputs and parameters."""

    name: str
    function: str = ""
    inputs: tuple[Source, ...] = ()
    num_outputs: int = 1
    attrs: Mapping[str, str] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """The node in JSON."""
        row: dict[str, object] = {"op": "tvm_op" if self.function else "null", "name": self.name}
        if self.function:
            counts = {"num_outputs": str(self.num_outputs), "num_inputs": str(len(self.inputs)), "flatten_data": "0"}
            row["attrs"] = {**counts, "func_name": self.function, **self.attrs}
        return {**row, "inputs": [[source.node, source.index, 0] for source in self.inputs]}


@dataclass(frozen=True)
class EntrySpec:
    """One output of one node: what it is, and the number of its memory."""

    shape: tuple[int, ...]
    dtype: str
    storage_id: int


@dataclass(frozen=True)
class GraphJson:
    """A graph."""

    nodes: tuple[Node, ...]
    arg_nodes: tuple[int, ...]
    heads: tuple[Source, ...]
    entries: tuple[EntrySpec, ...]

    def dumps(self) -> str:
        """The JSON text."""
        attrs = {
            "dltype": ["list_str", [entry.dtype for entry in self.entries]],
            "storage_id": ["list_int", [entry.storage_id for entry in self.entries]],
            "shape": ["list_shape", [list(entry.shape) for entry in self.entries]],
        }
        data = {
            "nodes": [node.row() for node in self.nodes],
            "arg_nodes": self.arg_nodes,
            "heads": [[head.node, head.index, 0] for head in self.heads],
            "attrs": attrs,
            "node_row_ptr": list(accumulate((node.num_outputs for node in self.nodes), initial=0)),
        }
        return json.dumps(data)
