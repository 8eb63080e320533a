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
from retune.compiler.ir.dims import Dim, estimate
from retune.compiler.ops import OPS, POINTWISE

_TILES = range(4, 9)
"""Rows of a register tile that keep the multipliers busy: fewer load more than they compute, more do not fit beside
strips of several vectors.
"""
_ONE_TILE = 14
"""The most rows that form a single tile."""
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


def pad_rows(graph: Graph) -> Graph:
    """Pad the rows of products, and of row-wise operators after them, to an extent that register tiles divide.

    before: y = dense(x[197, K], w)        after: y = slice(dense(pad(x)[200, K], w), 0:197)

    No pad is needed if x itself is computed padded, and the slice is a view of the same buffer.
    """
    consumers = graph.consumers()
    to_pad = {node.output: axes for node in graph.nodes if (axes := _rows_to_pad(graph, consumers, node))}
    if not to_pad:
        return graph
    rewriter = _Rewriter(graph, GraphBuilder(graph.name, graph.inputs), to_pad)
    for name, array in graph.constants.items():
        rewriter.exact[name] = rewriter.builder.constant(array, name)
    for node in graph.nodes:
        rewriter.add(node)
    return rewriter.builder.finish({name: rewriter.exact_value(name) for name in graph.outputs})


def padded_extent(extent: int) -> int:
    """The rows to compute in place of `extent`, which stays if a tile divides it.

    Else the next multiple of `_LANES`, or if that is too far the next number that a tile divides.
    """
    # Ends: 4 divides one of any four successive numbers.
    divided = next(longer for longer in range(extent, 2 * extent) if any(longer % tile == 0 for tile in _TILES))
    vectors = -(-extent // _LANES) * _LANES
    return vectors if divided > extent and _SPARE * (vectors - extent) <= extent else divided


def _rows_to_pad(graph: Graph, consumers: Mapping[str, Sequence[Node]], node: Node) -> dict[int, int]:
    """The axes that a product profits from padding, by the index of its operand."""
    letters = _axis_letters(node)
    if letters is not None and node.op == "dense":
        operands, least = [0], _WORTHWHILE
    # If the second operand of scores is read across its rows, no tile profits from more of them.
    elif letters is not None and letters[1][-1:] == letters[2][-1:] != "" and _are_scores(graph, consumers, node):
        operands, least = [0, 1], _WORTHWHILE_SCORES  # columns are rows of the second operand
    else:
        return {}
    return {
        operand: axis
        for operand in operands
        if (axis := _axis_to_pad(graph, node, letters, operand, least)) is not None
    }


def _axis_to_pad(graph: Graph, node: Node, letters: Sequence[str], operand: int, least: int) -> int | None:
    """The axis of an operand's rows, if padding it pays: the other operand has `least` elements or more."""
    own, other_own = letters[operand], letters[1 - operand]
    value, other = (graph.values[node.inputs[index]] for index in (operand, 1 - operand))
    # The products of a batch have their own rows each: a batch axis is in both operands and in the result.
    batch = {*own} & {*letters[2]}
    size = prod(extent for letter, extent in zip(other_own, other.shape, strict=True) if letter not in batch)
    own_axes = [axis for axis, letter in enumerate(own) if letter not in other_own]
    if len(own_axes) != 1 or estimate(size) < least or value.dtype not in _FLOATS or value.name in graph.constants:
        return None
    rows = value.shape[own_axes[0]]
    if isinstance(rows, Dim):  # a symbolic kernel has smaller blocks for the rows that tiles leave over
        return None
    return own_axes[0] if rows > _ONE_TILE and padded_extent(rows) != rows else None


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


def _axis_letters(node: Node) -> tuple[str, str, str] | None:
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
class _Padded:
    """A padded value of the new graph: its extents by padded axis; the axes `zero` are padded with zeros."""

    name: str
    extents: Extents
    zero: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Rewriter:
    """Builds the new graph; the exact and the padded form of each old value are built on first use."""

    graph: Graph
    builder: GraphBuilder
    to_pad: Mapping[str, Mapping[int, int]]
    exact: dict[str, str] = field(default_factory=dict)
    _padded: dict[str, _Padded] = field(default_factory=dict)
    _nodes: Mapping[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = self.graph.producers()
        self.exact.update({value.name: value.name for value in self.graph.inputs})

    def add(self, node: Node) -> None:
        """Compute the node on padded operands if it works row by row, else on exact operands."""
        padded = self._pad_node(node)
        if padded is not None:
            self._padded[node.output] = padded
        else:
            self.exact_value(node.output)

    def exact_value(self, name: str) -> str:
        """The new value equal to the old value `name`. A node that only moves elements moves the exact elements."""
        if name not in self.exact:
            padded, node = self._padded.get(name), self._nodes[name]
            if padded is not None and node.op not in ("reshape", "transpose"):
                self.exact[name] = self._cut(padded, self.graph.values[name].shape, f"{name}_exact")
            else:
                operands = [self.exact_value(operand) for operand in node.inputs]
                self.exact[name] = self.builder.emit(node.op, operands, node.attrs, name=node.name, output=name)
        return self.exact[name]

    def _cut(self, padded: _Padded, stops: tuple[int, ...], wish: str) -> str:
        attrs = {"starts": (0,) * len(stops), "stops": stops, "steps": (1,) * len(stops)}
        return self.builder.emit("slice", [padded.name], attrs, output=wish)

    def _padded_to(self, name: str, extents: Extents, zero: frozenset[int] = frozenset()) -> str:
        """The value `name` padded to `extents`, by axis, with zeros past the end of the axes `zero`."""
        if not extents:
            return self.exact_value(name)
        known = self._padded.get(name)
        shape = self.graph.values[name].shape
        if known is not None and zero <= known.zero and extents.items() <= known.extents.items():
            stops = tuple(extents.get(axis, extent) for axis, extent in enumerate(shape))
            return known.name if extents == known.extents else self._cut(known, stops, f"{name}_part")
        after = tuple(extents.get(axis, extent) - extent for axis, extent in enumerate(shape))
        attrs: dict[str, Attribute] = {"pads_before": (0,) * len(shape), "pads_after": after, "value": 0.0}
        padded = self.builder.emit("pad", [self.exact_value(name)], attrs, output=f"{name}_long")
        if known is None:
            self._padded[name] = _Padded(padded, extents, frozenset(extents))
        return padded

    def _pad_node(self, node: Node) -> _Padded | None:
        """The node's padded result; None if no operand is padded, or the node does not work row by row."""
        if any(self.graph.values[name].dtype not in _FLOATS for name in (*node.inputs, node.output)):
            return None
        for index, axis in self.to_pad.get(node.output, {}).items():
            name = node.inputs[index]
            if name not in self._padded:
                self._padded_to(name, {axis: padded_extent(self.graph.values[name].shape[axis])})
        extents: dict[int, int] = {}
        zero: set[int] = set()
        for index, operand in enumerate(node.inputs):
            for axis, extent in self._extents(operand).items():
                result_axis = self._result_axis(node, index, axis)
                if result_axis is not None:
                    extents[result_axis] = extent
                    if node.op in ("reshape", "transpose") and axis in self._padded[operand].zero:
                        zero.add(result_axis)
        along = node.integer("axis") if node.op == "softmax" else -1
        if along in self._extents(node.inputs[0]):
            return self._softmax(node, {**extents, along: self._extents(node.inputs[0])[along]})
        if not extents:
            return None
        return self._emit(node, extents, frozenset(zero))

    def _extents(self, name: str) -> Extents:
        return self._padded[name].extents if name in self._padded else {}

    def _softmax(self, node: Node, extents: Extents) -> _Padded:
        """A softmax along a longer axis: padding has no share."""
        axis = node.integer("axis")
        operand = self._padded_to(node.inputs[0], extents)
        shape = self.graph.values[node.output].shape
        # exp(-inf) is exact_value 0, so padding elements contribute nothing to the sum and come out as zeros.
        counts = np.arange(extents[axis]) < shape[axis]
        counts = counts.reshape(tuple(-1 if number == axis else 1 for number in range(len(shape))))
        dtype = self.graph.values[node.output].dtype
        never = self.builder.scalar(-np.inf, dtype)
        masked = self.builder.emit("where", [self.builder.constant(counts, "counts"), operand, never])
        name = self.builder.emit("softmax", [masked], node.attrs, name=node.name, output=node.output)
        return _Padded(name, extents, frozenset((axis,)))

    def _emit(self, node: Node, extents: Extents, zero: frozenset[int]) -> _Padded:
        """Emit the node with a result padded to `extents`, and operands padded along the axes that correspond."""
        summed = self._extensible_axes(node)
        operands = []
        for index, operand in enumerate(node.inputs):
            axes = {axis: self._result_axis(node, index, axis) for axis in range(len(self.graph.values[operand].shape))}
            wanted = {axis: extents[kept] for axis, kept in axes.items() if kept is not None and kept in extents}
            empty = {axis: extent for axis, extent in summed[index].items() if axis not in wanted}
            operands.append(self._padded_to(operand, {**wanted, **empty}, frozenset(empty)))
        attrs = dict(node.attrs)
        if node.op == "reshape":
            attrs["shape"] = tuple(extents.get(axis, extent) for axis, extent in enumerate(node.ints("shape")))
        return _Padded(self.builder.emit(node.op, operands, attrs, name=node.name, output=node.output), extents, zero)

    def _extensible_axes(self, node: Node) -> tuple[dict[int, int], ...]:
        """For each operand, extents to which a product may pad axes that it sums over: one factor is 0 there."""
        axes: tuple[dict[int, int], ...] = tuple({} for _ in node.inputs)
        letters = _axis_letters(node)
        if letters is None or node.op == "dense":  # whose weights would lose their packing
            return axes
        for index, operand in enumerate(node.inputs):
            padded = self._padded.get(operand)
            # A longer reduction is correct if one factor is zero in the padding and the other finite: the added
            # products are 0.
            for axis in () if padded is None else padded.zero:
                letter = letters[index][axis]
                if padded is not None and letter in letters[1 - index] and letter not in letters[2]:
                    for other in (0, 1):
                        axes[other][letters[other].index(letter)] = padded.extents[axis]
        return axes

    def _result_axis(self, node: Node, index: int, axis: int) -> int | None:
        """The axis of the result that corresponds, element by element, to an operand's `axis`, if any."""
        shape, result = self.graph.values[node.inputs[index]].shape, self.graph.values[node.output].shape
        letters = _axis_letters(node)
        if letters is not None:
            letter = letters[index][axis]
            return letters[2].index(letter) if letter not in letters[1 - index] else None
        match node.op:
            case "softmax" | "log_softmax":
                return None if axis == node.integer("axis") else axis
            case "normalize":
                return None if axis in node.ints("axes") else axis
            case "transpose":
                return node.ints("perm").index(axis)
            case "reshape":
                return _reshaped_axis(shape, result, axis)
            case _ if OPS[node.op].kind in POINTWISE:
                aligned = axis + len(result) - len(shape)
                return aligned if shape[axis] == result[aligned] != 1 else None
            case _:
                return None


def _reshaped_axis(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    """The axis that a reshape keeps: with the same extent, and as many elements before it."""
    axes = [candidate for candidate, extent in enumerate(after) if extent == before[axis] != 1]
    return next((candidate for candidate in axes if prod(after[:candidate]) == prod(before[:axis])), None)
