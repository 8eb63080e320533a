"""Pads the rows of products that no register tile divides, such as the 197 tokens of a vision transformer.

It begins at products with weights, and at the scores of attention: rotary embeddings cut tokens off and join them again
in between. Row-wise operators that follow work on the padded rows too. Only padding elements are computed from padding
elements, and graph outputs are not padded. A softmax along a padded axis sees minus infinity in the padding and writes
zeros, which a product may sum over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Node
from retune.compiler.ops import OPS, POINTWISE

_TILES = range(4, 9)
"""Rows of a register tile that keep the multipliers busy: fewer load more than they compute, more do not fit beside
strips of several vectors.
"""
_FEW = 14
"""Fewer rows form a single tile."""
# At most 1 / 32 more work: less than an uneven tile loses. 197 rows become 200.
_LANES, _SPARE = 8, 32
"""Rows become a multiple of `_LANES`, which are whole vectors too, if that adds at most 1 in `_SPARE`."""
# A row takes part in as many multiply-adds as the other operand has elements, here 64 x 64, for one copy of the row.
_WORTHWHILE = 2**12
"""Elements of the other operand from which on a product repays a copy of its rows."""
_WORTHWHILE_SCORES = 2**14
"""The same for attention: its smaller end tiles cost less than copies of up to 200 tokens of 64 numbers."""
_FLOATS = ("float16", "float32", "float64", "bfloat16")

Extents = Mapping[int, int]
"""Number of elements along some axes."""


@dataclass(frozen=True, slots=True)
class PadRows:
    """Pad the rows of products, and of row-wise operators after them, to an extent that register tiles divide.

    before: y = dense(x[197, K], w)        after: y = slice(dense(pad(x)[200, K], w), 0:197)

    No pad is needed if x itself is computed padded, and the slice is a view of the same buffer.
    """

    name: str = "pad_rows"

    def apply(self, graph: Graph) -> Graph:
        consumers = graph.consumers()
        odd = {node.output: axes for node in graph.nodes if (axes := _odd_rows(graph, consumers, node))}
        if not odd:
            return graph
        rewriter = _Rewriter(graph, GraphBuilder(graph.name, graph.inputs), odd)
        for name, array in graph.constants.items():
            rewriter.exact[name] = rewriter.builder.constant(array, name)
        for node in graph.nodes:
            rewriter.add(node)
        return rewriter.builder.finish({name: rewriter.exactly(name) for name in graph.outputs})


def even(extent: int) -> int:
    """`extent` if a tile divides it, else the next multiple of `_LANES`, or if too far the next tileable number."""
    # Ends: 4 divides one of any four successive numbers.
    divided = next(longer for longer in range(extent, 2 * extent) if any(longer % tile == 0 for tile in _TILES))
    vectors = -(-extent // _LANES) * _LANES
    return vectors if divided > extent and _SPARE * (vectors - extent) <= extent else divided


def _odd_rows(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node) -> dict[int, int]:
    """The axis of an operand's rows, by the operand's index, if a product repays a longer copy of them."""
    words = _words(node)
    if words is not None and node.op == "dense":
        operands, least = [0], _WORTHWHILE
    # If the second operand of scores is read across its rows, no tile profits from more of them.
    elif words is not None and words[1][-1:] == words[2][-1:] != "" and _are_scores(graph, consumers, node):
        operands, least = [0, 1], _WORTHWHILE_SCORES  # columns are rows of the second operand
    else:
        return {}
    return {
        operand: axis for operand in operands if (axis := _odd_axis(graph, node, words, operand, least)) is not None
    }


def _odd_axis(graph: Graph, node: Node, words: Sequence[str], operand: int, least: int) -> int | None:
    """The axis of an operand worth a longer copy, if any, when the other operand has `least` elements or more."""
    letters, other_letters = words[operand], words[1 - operand]
    value, other = (graph.values[node.inputs[index]] for index in (operand, 1 - operand))
    # Letters of all three words number products that are computed apart.
    apart = {*letters} & {*words[2]}
    size = prod(extent for letter, extent in zip(other_letters, other.shape, strict=True) if letter not in apart)
    own_axes = [axis for axis, letter in enumerate(letters) if letter not in other_letters]
    if len(own_axes) != 1 or size < least or value.dtype not in _FLOATS or value.name in graph.constants:
        return None
    rows = value.shape[own_axes[0]]
    return own_axes[0] if rows > _FEW and even(rows) != rows else None


def _are_scores(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node) -> bool:
    """Whether a product has only the use as argument of a softmax along its columns."""
    rank = len(graph.values[node.output].shape)
    while len(readers := consumers.get(node.output, ())) == 1 and node.output not in graph.outputs:
        node = readers[0]
        if node.op == "softmax":
            return node.integer("axis") == rank - 1
        # A mask of truth values is not padded, and the scores would be cut to its size again.
        if OPS[node.op].kind not in POINTWISE or any(graph.values[name].dtype not in _FLOATS for name in node.inputs):
            return False
    return False


def _words(node: Node) -> tuple[str, str, str] | None:
    """The letters of the axes of a product's operands and result: letters only in operands are summed over."""
    match node.op:
        case "contract":
            return node.text("left"), node.text("right"), node.text("result")
        case "batch_matmul":
            return "bmk", "bkn", "bmn"
        case "dense":
            return "mk", "kn", "mn"
    return None


@dataclass(frozen=True, slots=True)
class _Long:
    """A padded value of the new graph: its elements along `extents`, with zeros past the old end of axes `zero`."""

    name: str
    extents: Extents
    zero: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Rewriter:
    """Builds the new graph; the exact and the padded form of each old value are built on first use."""

    graph: Graph
    builder: GraphBuilder
    odd: Mapping[str, Mapping[int, int]]
    exact: dict[str, str] = field(default_factory=dict)
    _long: dict[str, _Long] = field(default_factory=dict)
    _nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = self.graph.producers()
        self.exact.update({value.name: value.name for value in self.graph.inputs})

    def add(self, node: Node) -> None:
        """Compute the node on longer operands if it works row by row, else on exact operands."""
        padded = self._lengthened(node)
        if padded is not None:
            self._long[node.output] = padded
        else:
            self.exactly(node.output)

    def exactly(self, name: str) -> str:
        """The new value equal to the old. A node that only moves elements moves the exact elements."""
        if name not in self.exact:
            long, node = self._long.get(name), self._nodes[name]
            if long is not None and node.op not in ("reshape", "transpose"):
                self.exact[name] = self._cut(long, self.graph.values[name].shape, f"{name}_exact")
            else:
                operands = [self.exactly(operand) for operand in node.inputs]
                self.exact[name] = self.builder.emit(node.op, operands, node.attrs, name=node.name, output=name)
        return self.exact[name]

    def _cut(self, long: _Long, stops: tuple[int, ...], wish: str) -> str:
        attrs = {"starts": (0,) * len(stops), "stops": stops, "steps": (1,) * len(stops)}
        return self.builder.emit("slice", [long.name], attrs, output=wish)

    def _with(self, name: str, extents: Extents, zero: frozenset[int] = frozenset()) -> str:
        """The new value with these extents besides the old ones, and zeros past the end of the axes `zero`."""
        if not extents:
            return self.exactly(name)
        long = self._long.get(name)
        shape = self.graph.values[name].shape
        if long is not None and zero <= long.zero and extents.items() <= long.extents.items():
            stops = tuple(extents.get(axis, extent) for axis, extent in enumerate(shape))
            return long.name if extents == long.extents else self._cut(long, stops, f"{name}_part")
        after = tuple(extents.get(axis, extent) - extent for axis, extent in enumerate(shape))
        attrs: dict[str, Attribute] = {"pads_before": (0,) * len(shape), "pads_after": after, "value": 0.0}
        padded = self.builder.emit("pad", [self.exactly(name)], attrs, output=f"{name}_long")
        if long is None:
            self._long[name] = _Long(padded, extents, frozenset(extents))
        return padded

    def _lengthened(self, node: Node) -> _Long | None:
        """The node's result with more rows; None if its operands are not longer, or it does not work row by row."""
        if any(self.graph.values[name].dtype not in _FLOATS for name in (*node.inputs, node.output)):
            return None
        for index, axis in self.odd.get(node.output, {}).items():
            name = node.inputs[index]
            if name not in self._long:
                self._with(name, {axis: even(self.graph.values[name].shape[axis])})
        extents: dict[int, int] = {}
        zero: set[int] = set()
        for index, operand in enumerate(node.inputs):
            for axis, extent in self._extents(operand).items():
                result_axis = self._kept(node, index, axis)
                if result_axis is not None:
                    extents[result_axis] = extent
                    if node.op in ("reshape", "transpose") and axis in self._long[operand].zero:
                        zero.add(result_axis)
        along = node.integer("axis") if node.op == "softmax" else -1
        if along in self._extents(node.inputs[0]):
            return self._softmax(node, {**extents, along: self._extents(node.inputs[0])[along]})
        if not extents:
            return None
        return self._emit(node, extents, frozenset(zero))

    def _extents(self, name: str) -> Extents:
        return self._long[name].extents if name in self._long else {}

    def _softmax(self, node: Node, extents: Extents) -> _Long:
        """A softmax along a longer axis: padding has no share."""
        axis = node.integer("axis")
        operand = self._with(node.inputs[0], extents)
        shape = self.graph.values[node.output].shape
        # exp(-inf) is exactly 0, so padding elements contribute nothing to the sum and come out as zeros.
        counts = np.arange(extents[axis]) < shape[axis]
        counts = counts.reshape(tuple(-1 if number == axis else 1 for number in range(len(shape))))
        dtype = self.graph.values[node.output].dtype
        never = self.builder.scalar(-np.inf, dtype)
        masked = self.builder.emit("where", [self.builder.constant(counts, "counts"), operand, never])
        name = self.builder.emit("softmax", [masked], node.attrs, name=node.name, output=node.output)
        return _Long(name, extents, frozenset((axis,)))

    def _emit(self, node: Node, extents: Extents, zero: frozenset[int]) -> _Long:
        """Emit the node with longer axes of its result, and of the operand axes that correspond."""
        summed = self._summed(node)
        operands = []
        for index, operand in enumerate(node.inputs):
            axes = {axis: self._kept(node, index, axis) for axis in range(len(self.graph.values[operand].shape))}
            wanted = {axis: extents[kept] for axis, kept in axes.items() if kept is not None and kept in extents}
            empty = {axis: extent for axis, extent in summed[index].items() if axis not in wanted}
            operands.append(self._with(operand, {**wanted, **empty}, frozenset(empty)))
        attrs = dict(node.attrs)
        if node.op == "reshape":
            attrs["shape"] = tuple(extents.get(axis, extent) for axis, extent in enumerate(node.ints("shape")))
        return _Long(self.builder.emit(node.op, operands, attrs, name=node.name, output=node.output), extents, zero)

    def _summed(self, node: Node) -> tuple[dict[int, int], ...]:
        """For each operand, the axes that a product may sum longer because the other operand has zeros there."""
        axes: tuple[dict[int, int], ...] = tuple({} for _ in node.inputs)
        words = _words(node)
        if words is None or node.op == "dense":  # whose weights would lose their packing
            return axes
        for index, operand in enumerate(node.inputs):
            long = self._long.get(operand)
            # A longer reduction is correct if one factor is zero in the padding and the other finite: the added
            # products are 0.
            for axis in () if long is None else long.zero:
                letter = words[index][axis]
                if long is not None and letter in words[1 - index] and letter not in words[2]:
                    for other in (0, 1):
                        axes[other][words[other].index(letter)] = long.extents[axis]
        return axes

    def _kept(self, node: Node, index: int, axis: int) -> int | None:
        """The axis of the result that corresponds, element by element, to an operand's `axis`, if any."""
        shape, result = self.graph.values[node.inputs[index]].shape, self.graph.values[node.output].shape
        words = _words(node)
        if words is not None:
            letter = words[index][axis]
            return words[2].index(letter) if letter not in words[1 - index] else None
        match node.op:
            case "softmax" | "log_softmax":
                return None if axis == node.integer("axis") else axis
            case "normalize":
                return None if axis in node.ints("axes") else axis
            case "transpose":
                return node.ints("perm").index(axis)
            case "reshape":
                return _unmoved(shape, result, axis)
            case _ if OPS[node.op].kind in POINTWISE:
                aligned = axis + len(result) - len(shape)
                return aligned if shape[axis] == result[aligned] != 1 else None
            case _:
                return None


def _unmoved(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis that a reshape keeps: with the same extent, and as many elements before it."""
    axes = [candidate for candidate, extent in enumerate(after) if extent == before[axis] != 1]
    return next((candidate for candidate in axes if prod(after[:candidate]) == prod(before[:axis])), None)
