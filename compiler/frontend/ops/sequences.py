"""Converters of ONNX operators on sequences of tensors, and on optional tensors, whose content is known at import.

A sequence is no value of the graph, but the names of its tensors: positions are constants, and so is its length.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from retune.compiler.frontend.ops.attributes import OnnxNode, TensorSequence
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ir.dims import whole


def _parts(node: OnnxNode) -> tuple[str, ...]:
    """The tensors of the first operand."""
    if not node.has_input(0) or not isinstance(node.inputs[0], TensorSequence):
        raise node.unsupported("operand 0 is no sequence of tensors")
    return node.inputs[0].parts


def _position(builder: GraphBuilder, node: OnnxNode, index: int, ends: tuple[int, int], default: int) -> int:
    """The position in a sequence that operand `index` says; `ends` are the last position and the length, which a
    negative position is counted from.
    """
    if not node.has_input(index):
        return default
    (last, length), position = ends, whole(node.array(builder, index, "the position").item())
    if not -length <= position <= last:
        raise node.unsupported(f"position {position} is outside a sequence of {length}")
    return position + length if position < 0 else position


def _insert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    parts, tensor = _parts(node), node.operand(builder, 1).name
    # A tensor may also go behind the last.
    position = _position(builder, node, 2, (len(parts), len(parts)), len(parts))
    return [TensorSequence((*parts[:position], tensor, *parts[position:]))]


def _erase(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    parts = _parts(node)
    position = _position(builder, node, 1, (len(parts) - 1, len(parts)), len(parts) - 1)
    return [TensorSequence((*parts[:position], *parts[position + 1 :]))]


def _at(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    parts = _parts(node)
    return [parts[_position(builder, node, 1, (len(parts) - 1, len(parts)), 0)]]


def _length(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return [builder.scalar(len(_parts(node)), "int64")]


def _concat(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    parts = _parts(node)
    if not parts:
        raise node.unsupported("nothing is concatenated")
    rank, is_new = len(builder.value(parts[0]).shape), bool(node.integer("new_axis", 0))
    axis = node.axis(node.integer("axis", 0), rank + is_new)
    if is_new:
        shapes = [builder.value(part).shape for part in parts]
        parts = tuple(
            builder.emit("reshape", [part], {"shape": (*shape[:axis], 1, *shape[axis:])})
            for part, shape in zip(parts, shapes, strict=True)
        )
    if len(parts) == 1:
        return parts
    return [builder.emit("concat", parts, {"axis": axis}, name=node.name, output=node.outputs[0])]


def _split(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    axis = node.axis(node.integer("axis", 0), len(x.shape))
    extent = x.shape[axis]
    sizes = [1] * extent
    if node.has_input(1):
        split = node.array(builder, 1, "the sizes")
        sizes = [whole(size) for size in split.flat]
        if split.ndim == 0 and sizes[0] > 0:
            sizes = [min(sizes[0], extent - start) for start in range(0, extent, sizes[0])]
    if sum(sizes) != extent:
        raise node.unsupported(f"sizes {sizes} do not add up to {extent}")
    parts = [
        take(builder, x.name, axis, range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]
    if not node.has_input(1) and not node.integer("keepdims", 1):
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        parts = [builder.emit("reshape", [part], {"shape": shape}) for part in parts]
    return [TensorSequence(parts)]


def _get_element(_: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    if not node.has_input(0):
        raise node.unsupported("the optional operand has no element")
    return [node.inputs[0]]


CONVERTERS: Mapping[str, Converter] = {
    "ConcatFromSequence": _concat,
    "Optional": lambda _, node: [node.inputs[0] if node.has_input(0) else ""],
    "OptionalGetElement": _get_element,
    "OptionalHasElement": lambda builder, node: [builder.scalar(node.has_input(0), "bool")],
    "SequenceAt": _at,
    "SequenceConstruct": lambda _, node: [TensorSequence(node.inputs)],
    "SequenceEmpty": lambda _, __: [TensorSequence(())],
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}

RESULTS = ("Optional", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence")
"""Operators whose result is a sequence or an optional value."""
