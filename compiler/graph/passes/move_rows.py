"""Moves copies of whole rows, such as into windows, before the normalization of these rows.

The normalization's kernel then reads the moved rows directly, and no kernel copies them.
"""

from collections.abc import Mapping, Sequence

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.views import reshape

_MOVES = ("reshape", "slice", "transpose", "concat")
_SCALES = ("mul", "add")
_MOST_MOVES = 32
"""Windows and rolls have fewer moves."""


def move_rows(graph: Graph) -> Graph:
    """Normalize rows after they are moved, if nothing else reads the unmoved rows.

    before: y = transpose(reshape(normalize(x) * scale + shift))
    after:  y = normalize(transpose(reshape(x))) * scale + shift
    """
    consumers = graph.consumers()
    moved = {_last_move(graph, consumers, node) for node in graph.nodes if node.op == "normalize"}

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        return _normalized_later(builder, node) if node.output in moved else None

    return rewrite(graph, convert)


def _last_move(graph: Graph, consumers: Mapping[str, Sequence[Node]], norm: Node) -> str | None:
    """The only read value among the moved rows of a normalization, if they are moved and have no other reader."""
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
        if name in graph.outputs or any(reader.output not in inside for reader in consumers.get(name, ()))
    ]
    is_moved = any(move.op in ("transpose", "concat") for move in moves)
    if not is_moved or len(read) != 1 or read[0] == rows:
        return None
    # Duplicated rows would be normalized twice.
    return read[0] if graph.values[read[0]].size <= graph.values[rows].size else None


def _scale_of(graph: Graph, readers: Sequence[Node]) -> str | None:
    """The result of the only reader, if it combines all rows with the same constant."""
    if len(readers) != 1 or readers[0].op not in _SCALES:
        return None
    (rows, name), shape = readers[0].inputs, graph.values[readers[0].output].shape
    if name not in graph.constants or graph.values[rows].shape != shape:
        return None
    size, width = graph.values[name].size, graph.values[name].shape[-1:]
    return readers[0].output if size == 1 or (size == shape[-1] and width == shape[-1:]) else None


def _keeps_rows(graph: Graph, node: Node) -> bool:
    """Whether the rows of a node's result, along the last axis, are rows of its operands."""
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
    """The result of `last`, the last move: the moved rows, normalized."""
    rows = last.inputs[0]
    while (move := builder.producer(rows)) is not None and move.op in _MOVES:
        rows = move.inputs[0]
    norm, *scales = _scales(builder, rows)
    moved_values = {rows: norm.inputs[0]}

    def move_before(name: str) -> str:
        """The value with the moves before the normalization."""
        node = builder.producer(name)
        if name not in moved_values and node is not None:
            moved_values[name] = builder.emit(
                node.op, [move_before(operand) for operand in node.inputs], node.attrs, name=node.name
            )
        return moved_values[name]

    result = builder.emit(last.op, [move_before(operand) for operand in last.inputs], last.attrs, name=last.name)
    rank, width = len(builder.value(result).shape), builder.value(result).shape[-1]
    result = builder.emit("normalize", [result], {**norm.attrs, "axes": (rank - 1,)}, name=norm.name)
    for node in scales:
        factor = builder.value(node.inputs[1])
        flat = reshape(builder, factor.name, (width,) if factor.size == width else ())
        result = builder.emit(node.op, [result, flat], node.attrs, name=node.name)
    return result


def _scales(builder: GraphBuilder, rows: str) -> list[Node]:
    """A normalization and the nodes that combine its rows with constants, up to the value `rows`."""
    chain: list[Node] = []
    while not chain or chain[0].op != "normalize":
        node = builder.producer(chain[0].inputs[0] if chain else rows)
        assert node is not None, "moves end at a normalization"
        chain.insert(0, node)
    return chain
