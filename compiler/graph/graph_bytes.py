"""In: a graph, or bytes made of one. Out: the other. Always: data only; damage is refused.

Layout: the length of a JSON head (8 bytes, little endian), the head, then the constants one after another, row-major.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import ArtifactError, RetuneError
from retune.compiler.graph.ir import Array, Attribute, Graph, Node, Value
from retune.compiler.graph.verify import verify
from retune.compiler.runtime.archive import DAMAGE

_LENGTH = 8


def graph_to_bytes(graph: Graph) -> bytes:
    """The graph with its constants."""
    values = {name: [value.dtype, *value.shape] for name, value in graph.values.items()}
    nodes = [[node.op, node.inputs, node.outputs, dict(node.attrs), node.name] for node in graph.nodes]
    head = json.dumps(
        {
            "name": graph.name,
            "inputs": [value.name for value in graph.inputs],
            "outputs": graph.outputs,
            "nodes": nodes,
            "constants": list(graph.constants),
            "values": values,
        }
    ).encode()
    parts = [np.ascontiguousarray(array).tobytes() for array in graph.constants.values()]
    return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *parts])


def graph_from_bytes(data: bytes) -> Graph:
    """The graph that `graph_to_bytes` was given. Raises: ArtifactError when the bytes are not those of a graph."""
    try:
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        head = json.loads(data[_LENGTH:start])
        values = {name: Value(name, tuple(map(int, shape)), dtype) for name, (dtype, *shape) in head["values"].items()}
        graph = Graph(
            name=str(head["name"]),
            inputs=tuple(values[name] for name in head["inputs"]),
            outputs=tuple(head["outputs"]),
            nodes=tuple(_node(*row) for row in head["nodes"]),
            constants=_constants([values[name] for name in head["constants"]], data, start),
            values=values,
        )
        verify(graph)
    except RetuneError as error:
        raise ArtifactError(f"these bytes are not a graph: {error}") from None
    except DAMAGE as error:
        raise ArtifactError(f"these bytes are not a graph: {type(error).__name__}: {error}") from None
    return graph


def _constants(values: list[Value], data: bytes, start: int) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for value in values:
        stop = start + math.prod(value.shape) * item_bytes(value.dtype)
        if not start <= stop <= len(data):
            raise ValueError(f"the constant {value} is not all there")
        arrays[value.name] = np.frombuffer(data[start:stop], value.dtype).reshape(value.shape)
        start = stop
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes are left over")
    return arrays


def _node(op: str, inputs: list[str], outputs: list[str], attrs: Mapping[str, Any], name: str) -> Node:
    read: dict[str, Attribute] = {key: tuple(attr) if isinstance(attr, list) else attr for key, attr in attrs.items()}
    return Node(op, tuple(inputs), tuple(outputs), read, name)
