"""Moves copies of whole rows, as those into windows, before the normalization of these rows.

The kernel of the normalization then reads the rows where they lie, and no kernel copies them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.views import reshaped

_MOVES = ("reshape", "slice", "transpose", "concat")
_SCALES = ("mul", "add")
_MOST_MOVES = 32
"""More than that is no window or roll."""


@dataclass(frozen=True, slots=True)
class MoveRows:
    """Normalize rows after they are moved, where nothing else reads them as they lay before.

    before: y = transpose(reshape(normalize(x) * scale + shift))
    after:  y = normalize(transpose(reshape(x))) * scale + shift
    """

    name: str = "move_rows"

    def apply(self, graph: Graph) -> Graph:
        """The graph with normalizations after moves."""
        consumers = graph.consumers()
        moved = {_last_move(graph, consumers, node) for node in graph.nodes if node.op == "normalize"}

        def convert(builder: GraphBuilder, node: Node) -> str | None:
            return _normalized_later(builder, node) if node.output in moved else None

        return rewrite(graph, convert)


def _last_move(graph: Graph, consumers: Mapping[str, Sequence[Node]], norm: Node) -> str | None:
    """The one value that is read of the moved rows of a normalization, if anything moves them and nothing else reads
    them.
    """
    shape = graph.values[norm.output].shape
    if norm.ints("axes") != (len(shape) - 1,):
        return None
    rows = norm.output
    while (scaled := _scale_of(graph, consumers.get(rows, ()))) is not None and rows not in graph.outputs:
        rows = scaled
    values, moves = {rows}, list[Node]()
    for node in graph.nodes:
        if values.issuperset(node.inputs) and node.inputs and _keeps_rows(graph, node):
            values.add(node.output)
            moves.append(node)
    if len(moves) > _MOST_MOVES:
        return None
    inside = [move.output for move in moves]
    read = [
        name
        for name in (rows, *inside)
        if name in graph.outputs or any(one.output not in inside for one in consumers.get(name, ()))
    ]
    is_moved = any(move.op in ("transpose", "concat") for move in moves)
    if not is_moved or len(read) != 1 or read[0] == rows:
        return None
    # Rows that are there twice would be normalized twice.
    return read[0] if graph.values[read[0]].size <= graph.values[rows].size else None


def _scale_of(graph: Graph, readers: Sequence[Node]) -> str | None:
    """The result of the only reader, where that combines all rows with the same constant."""
    if len(readers) != 1 or readers[0].op not in _SCALES:
        return None
    (rows, name), shape = readers[0].inputs, graph.values[readers[0].output].shape
    if name not in graph.constants or graph.values[rows].shape != shape:
        return None
    size, width = graph.values[name].size, graph.values[name].shape[-1:]
    return readers[0].output if size == 1 or (size == shape[-1] and width == shape[-1:]) else None


def _keeps_rows(graph: Graph, node: Node) -> bool:
    """Whether a node's rows, along the last axis, are rows of its operands."""
    shape, before = graph.values[node.output].shape, graph.values[node.inputs[0]].shape
    if not shape or not before or shape[-1] != before[-1]:
        return False
    match node.op:
        case "reshape" | "slice":
            return True
        case "transpose":
            return node.ints("perm")[-1] == len(shape) - 1
        case "concat":
            return node.integer("axis") != len(shape) - 1
    return False


def _normalized_later(builder: GraphBuilder, last: Node) -> str:
    """What `last`, the last move, gives: the moved rows, normalized."""
    rows = last.inputs[0]
    while (move := builder.producer(rows)) is not None and move.op in _MOVES:
        rows = move.inputs[0]
    norm, *scales = _scales(builder, rows)
    known = {rows: norm.inputs[0]}

    def moved(name: str) -> str:
        """The value as it is where the moves come first."""
        node = builder.producer(name)
        if name not in known and node is not None:
            known[name] = builder.emit(node.op, [moved(one) for one in node.inputs], node.attrs, name=node.name)
        return known[name]

    result = builder.emit(last.op, [moved(one) for one in last.inputs], last.attrs, name=last.name)
    rank, width = len(builder.value(result).shape), builder.value(result).shape[-1]
    result = builder.emit("normalize", [result], {**norm.attrs, "axes": (rank - 1,)}, name=norm.name)
    for node in scales:
        factor = builder.value(node.inputs[1])
        flat = reshaped(builder, factor.name, (width,) if factor.size == width else ())
        result = builder.emit(node.op, [result, flat], node.attrs, name=node.name)
    return result


def _scales(builder: GraphBuilder, rows: str) -> list[Node]:
    """A normalization and what combines its rows with constants, up to the value `rows`."""
    found: list[Node] = []
    while not found or found[0].op != "normalize":
        node = builder.producer(found[0].inputs[0] if found else rows)
        assert node is not None, "moves end at a normalization"
        found.insert(0, node)
    return found
