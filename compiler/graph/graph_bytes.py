"""Graphs as data: an archive of `graph.json` and the constants. Dimensions may be symbolic."""

from collections.abc import Mapping, Sequence
from typing import Any

from retune.compiler.core.errors import ArtifactError, RetuneError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.graph.ir import Array, Attribute, Graph, Node, Value
from retune.compiler.graph.verify import verify
from retune.compiler.ir.dims import dim_from_json, dim_to_json
from retune.compiler.runtime.archive import DAMAGE, Archive, archive_bytes, damage_text

_KIND, _VERSION = "graph", 1


def graph_to_bytes(graph: Graph) -> bytes:
    head, constants = graph_to_parts(graph)
    arrays = {f"constants/{index}.npy": array for index, array in enumerate(constants)}
    return archive_bytes(_KIND, _VERSION, {"graph.json": head, **arrays})


def graph_from_bytes(data: bytes) -> Graph:
    """The graph of `graph_to_bytes`. Raises: ArtifactError when the bytes are not a graph."""
    try:
        archive = Archive(data, _KIND, _VERSION)
        head = archive.json("graph.json")
        arrays = [archive.array(f"constants/{index}.npy") for index in range(len(head["constants"]))]
        graph = graph_from_parts(head, arrays)
        verify(graph)
    except RetuneError as error:
        raise ArtifactError(f"these bytes are not a graph: {error}") from None
    except DAMAGE as error:
        raise ArtifactError(f"these bytes are not a graph: {damage_text(error)}") from None
    return graph


def graph_to_parts(graph: Graph) -> tuple[Mapping[str, object], Sequence[Array]]:
    """The graph as JSON, and its constants in order."""
    head = {
        "name": graph.name,
        "inputs": [value.name for value in graph.inputs],
        "outputs": graph.outputs,
        "nodes": [
            [
                node.op,
                node.inputs,
                node.outputs,
                {key: _attr_to_json(attr) for key, attr in node.attrs.items()},
                node.name,
            ]
            for node in graph.nodes
        ],
        "constants": list(graph.constants),
        "values": {name: [value.dtype, *map(dim_to_json, value.shape)] for name, value in graph.values.items()},
    }
    return head, list(graph.constants.values())


def graph_from_parts(head: JsonObject, constants: Sequence[Array]) -> Graph:
    """The graph of `graph_to_parts`; its nodes are not checked against their operators.

    Raises: DefinitionError when the parts are inconsistent; an error of `archive.DAMAGE` for other JSON.
    """
    values = {name: _value(name, *row) for name, row in head["values"].items()}
    graph = Graph(
        name=str(head["name"]),
        inputs=tuple(values[name] for name in head["inputs"]),
        outputs=tuple(head["outputs"]),
        nodes=tuple(_node(*row) for row in head["nodes"]),
        constants=dict(zip(head["constants"], constants, strict=True)),
        values=values,
    )
    # Structure first: `verify` of the operators indexes values by names that must exist.
    graph.verify()
    return graph


def _value(name: str, dtype: str, *shape: object) -> Value:
    return Value(name, tuple(map(dim_from_json, shape)), dtype)


def _attr_to_json(attr: Attribute) -> object:
    if isinstance(attr, tuple):
        return list(map(dim_to_json, attr))
    return attr if isinstance(attr, float | bool | str) else dim_to_json(attr)


def _node(op: str, inputs: list[str], outputs: list[str], attrs: JsonObject, name: str) -> Node:
    return Node(op, tuple(inputs), tuple(outputs), {key: _attr_from_json(attr) for key, attr in attrs.items()}, name)


def _attr_from_json(attr: Any) -> Attribute:
    if isinstance(attr, list):
        return tuple(map(dim_from_json, attr))
    read: Attribute = dim_from_json(attr) if isinstance(attr, dict) else attr
    return read
