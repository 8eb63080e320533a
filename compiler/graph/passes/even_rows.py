"""In: products whose rows no register tile divides, as the 197 tokens of a vision transformer. Out: the same with a few
rows more, and what follows them row by row too.

Always: rows past the end hold numbers that nothing reads which is not such a row itself; graph outputs have none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.graph.builder import GraphBuilder
from compiler.graph.ir import Attribute, Graph, Node
from compiler.graph.ops import OPS, FusionKind

_TILES = range(4, 15)
"""Rows of a register tile that keep the multipliers busy: fewer load more than they compute, more do not fit."""
_WORTHWHILE = 2**12
"""Elements of the other operand from which on a product repays a copy of its rows."""
_POINTWISE = (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
_FLOATS = ("float16", "float32", "float64", "bfloat16")


@dataclass(frozen=True, slots=True)
class EvenRows:
    """Lengthen the rows of products, and of everything that treats rows one by one, to an extent that tiles divide.

    before: y = dense(x[197, K], w)        after: y = slice(dense(pad(x)[198, K], w), 0:197)
    The pad is left out where x is itself longer, and the slice is another view of the same memory.
    """

    name: str = "even_rows"

    def apply(self, graph: Graph) -> Graph:
        """The graph with lengthened values between its inputs and outputs."""
        if not any(node.op == "dense" and _is_odd(graph, node) for node in graph.nodes):
            return graph
        rewriter = _Rewriter(graph, GraphBuilder(graph.name, graph.inputs))
        for name, array in graph.constants.items():
            rewriter.exact[name] = rewriter.builder.constant(array, name)
        for node in graph.nodes:
            rewriter.add(node)
        return rewriter.builder.finish({name: rewriter.exactly(name) for name in graph.outputs})


def even(extent: int) -> int:
    """The smallest number from `extent` on that a tile of `_TILES` rows divides."""
    return next(longer for longer in range(extent, 2 * extent + 1) if any(longer % tile == 0 for tile in _TILES))


def _is_odd(graph: Graph, node: Node) -> bool:
    rows, weight = graph.values[node.inputs[0]].shape[0], graph.values[node.inputs[1]]
    return rows > _TILES[-1] and even(rows) != rows and weight.size >= _WORTHWHILE and weight.dtype in _FLOATS


@dataclass(frozen=True, slots=True)
class _Long:
    """A value of the new graph that has `extent` elements along `axis`, of which the first ones count."""

    name: str
    axis: int
    extent: int


@dataclass(slots=True)
class _Rewriter:
    """Builds the new graph. Of each old value there is an exact form, a longer one, or both; none before it is wanted.
    """

    graph: Graph
    builder: GraphBuilder
    exact: dict[str, str] = field(default_factory=dict)
    _long: dict[str, _Long] = field(default_factory=dict)
    _nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = self.graph.producers()
        self.exact.update({value.name: value.name for value in self.graph.inputs})

    def add(self, node: Node) -> None:
        """Compute the node on longer operands where it treats rows one by one, else on exact ones."""
        found = self._lengthened(node)
        if found is not None:
            self._long[node.output] = found
        else:
            self.exactly(node.output)

    def exactly(self, name: str) -> str:
        """The new value that is the old one. What only moves elements moves the exact ones."""
        if name not in self.exact:
            long, node = self._long.get(name), self._nodes[name]
            if long is not None and node.op not in ("reshape", "transpose"):
                stops = self.graph.values[name].shape
                attrs = {"starts": (0,) * len(stops), "stops": stops, "steps": (1,) * len(stops)}
                self.exact[name] = self.builder.emit("slice", [long.name], attrs, output=f"{name}_exact")
            else:
                operands = [self.exactly(operand) for operand in node.inputs]
                self.exact[name] = self.builder.emit(node.op, operands, node.attrs, name=node.name, output=name)
        return self.exact[name]

    def _along(self, name: str, axis: int, extent: int) -> str:
        """The new value with `extent` elements along `axis`."""
        long = self._long.get(name)
        if long is not None and (long.axis, long.extent) == (axis, extent):
            return long.name
        shape = self.graph.values[name].shape
        after = tuple(extent - shape[axis] if place == axis else 0 for place in range(len(shape)))
        attrs: dict[str, Attribute] = {"pads_before": (0,) * len(shape), "pads_after": after, "value": 0.0}
        padded = self.builder.emit("pad", [self.exactly(name)], attrs, output=f"{name}_long")
        if long is None:
            self._long[name] = _Long(padded, axis, extent)
        return padded

    def _lengthened(self, node: Node) -> _Long | None:
        """The node's result with more rows; None where its operands have none, or it does not treat rows alone."""
        if any(self.graph.values[name].dtype not in _FLOATS for name in (*node.inputs, node.output)):
            return None
        if node.op == "dense" and node.inputs[0] not in self._long and _is_odd(self.graph, node):
            self._along(node.inputs[0], 0, even(self.graph.values[node.inputs[0]].shape[0]))
        for place, operand in enumerate(node.inputs):
            long = self._long.get(operand)
            axis = None if long is None else self._kept(node, place, long.axis)
            if long is not None and axis is not None:
                return self._emit(node, axis, long.extent)
        return None

    def _emit(self, node: Node, axis: int, extent: int) -> _Long:
        """The node with `extent` elements along `axis` of its result, and of what goes along with it."""
        operands = []
        for place, operand in enumerate(node.inputs):
            rank = len(self.graph.values[operand].shape)
            axes = [own for own in range(rank) if self._kept(node, place, own) == axis]
            operands.append(self._along(operand, axes[0], extent) if axes else self.exactly(operand))
        attrs = dict(node.attrs)
        if node.op == "reshape":
            shape = node.ints("shape")
            attrs["shape"] = (*shape[:axis], extent, *shape[axis + 1 :])
        name = self.builder.emit(node.op, operands, attrs, name=node.name, output=node.output)
        return _Long(name, axis, extent)

    def _kept(self, node: Node, place: int, axis: int) -> int | None:
        """The axis of the result along which it treats the elements along an operand's `axis` one by one."""
        shape, result = self.graph.values[node.inputs[place]].shape, self.graph.values[node.output].shape
        match node.op:
            case "dense":
                return (0, 1)[place] if axis == place else None
            case "batch_matmul":
                return axis if axis == place + 1 else None
            case "contract":
                words = node.text("left"), node.text("right")
                letter = words[place][axis]
                alone = letter not in words[1 - place]
                return node.text("result").index(letter) if alone else None
            case "softmax" | "log_softmax":
                return None if axis == node.integer("axis") else axis
            case "normalize":
                return None if axis in node.ints("axes") else axis
            case "transpose":
                return node.ints("perm").index(axis)
            case "reshape":
                return _unmoved(shape, result, axis)
            case _ if OPS[node.op].kind in _POINTWISE:
                aligned = axis + len(result) - len(shape)
                return aligned if shape[axis] == result[aligned] != 1 else None
            case _:
                return None


def _unmoved(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis that a reshape leaves as it is: as long, with as many elements in front of it."""
    places = [place for place, extent in enumerate(after) if extent == before[axis] != 1]
    return next((place for place in places if _size(after[:place]) == _size(before[:axis])), None)


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
