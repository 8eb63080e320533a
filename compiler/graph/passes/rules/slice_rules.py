"""Rewrite rules of slices: each moves a slice toward the inputs, joins it with others or removes it.

A rule returns the value that replaces the node's result, or None. The network computes the same.
"""

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Node
from retune.compiler.graph.passes.rules.shapes import sliced_before
from retune.compiler.graph.passes.rules.views import cut, reshape
from retune.compiler.ir.dims import same

_MOST_CONCATS = 6
"""Most concatenations and reshapes that a slice is moved before: the heads of a detector have three."""


def remove_slice(builder: GraphBuilder, node: Node) -> str | None:
    return node.inputs[0] if node.op == "slice" and _keeps_shape(builder, node) else None


def _keeps_shape(builder: GraphBuilder, node: Node) -> bool:
    shape = builder.value(node.inputs[0]).shape
    return not any(node.ints("starts")) and node.ints("stops") == shape and set(node.ints("steps")) <= {1}


def sink_reshape_of_slice(builder: GraphBuilder, node: Node) -> str | None:
    """slice(reshape(x)) -> reshape(slice(x)), if the slice is one block of x along one axis."""
    source = builder.producer(node.inputs[0]) if node.op == "slice" else None
    part = None if source is None or source.op != "reshape" else sliced_axis(builder, node)
    if source is None or part is None:
        return None
    axis, start, stop = part
    before, after = (builder.value(name).shape for name in (source.inputs[0], source.output))
    block = sliced_before(before, after, axis, start, stop)
    if block is None:
        return None
    shape = (*after[:axis], stop - start, *after[axis + 1 :])
    return builder.emit("reshape", [cut(builder, source.inputs[0], *block)], {"shape": shape}, output=node.output)


def join_slices(builder: GraphBuilder, node: Node) -> str | None:
    """concat(x[a:b], x[b:c], empty, ...) -> concat(x[a:c], ...), sliced along the concatenation axis."""
    if node.op != "concat":
        return None
    axis = node.integer("axis")
    parts: list[tuple[str, int, int]] = []
    filled = [name for name in node.inputs if not same(builder.value(name).shape[axis], 0)]
    for name in filled or node.inputs[:1]:
        source = builder.producer(name)
        block = None if source is None or source.op != "slice" else sliced_axis(builder, source)
        # Any other operand is the full slice of itself.
        whole, start, stop = name, 0, builder.value(name).shape[axis]
        if source is not None and block is not None and block[0] == axis:
            whole, start, stop = source.inputs[0], *block[1:]
        if parts and parts[-1][0] == whole and parts[-1][2] == start:
            parts[-1] = whole, parts[-1][1], stop
        else:
            parts.append((whole, start, stop))
    if len(parts) == len(node.inputs):
        return None
    joined = [cut(builder, whole, axis, start, stop) for whole, start, stop in parts]
    return joined[0] if len(joined) == 1 else builder.emit("concat", joined, node.attrs, output=node.output)


def slice_before_concat(builder: GraphBuilder, node: Node) -> str | None:
    """slice(concat(concat(a, b), concat(c, d))) -> concat(a, c), if the slice takes whole operands; reshapes between
    them may split and merge axes.
    """
    part = sliced_axis(builder, node) if node.op == "slice" else None
    return None if part is None else _whole_operands(builder, node.inputs[0], *part, _MOST_CONCATS)


def _whole_operands(builder: GraphBuilder, name: str, axis: int, start: int, stop: int, most: int) -> str | None:
    """The range start to stop of a value along `axis` as an existing value, or a concatenation of existing values; None
    if there is none, or after more than `most` concatenations and reshapes.
    """
    source, shape = builder.producer(name), builder.value(name).shape
    if (start, stop) == (0, shape[axis]):
        return name
    if source is None or source.op not in ("concat", "reshape") or not most:
        return None
    if source.op == "reshape":
        x = source.inputs[0]
        block = sliced_before(builder.value(x).shape, shape, axis, start, stop)
        part = None if block is None else _whole_operands(builder, x, *block, most - 1)
        return None if part is None else reshape(builder, part, (*shape[:axis], stop - start, *shape[axis + 1 :]))
    if axis != source.integer("axis"):
        # Once for each operand, however often it is concatenated.
        parts = {
            operand: _whole_operands(builder, operand, axis, start, stop, most - 1)
            for operand in dict.fromkeys(source.inputs)
        }
        known = [part for operand in source.inputs if (part := parts[operand]) is not None]
        full = len(known) == len(source.inputs)
        return builder.emit("concat", known, source.attrs, output=f"{name}_part") if full else None
    first = 0
    for operand in source.inputs:
        extent = builder.value(operand).shape[axis]
        if first <= start and stop <= first + extent:
            return _whole_operands(builder, operand, axis, start - first, stop - first, most - 1)
        first += extent
    return None


def sliced_axis(builder: GraphBuilder, node: Node) -> tuple[int, int, int] | None:
    """The only axis that a slice cuts, without gaps, with its start and stop."""
    shape = builder.value(node.inputs[0]).shape
    bounds = zip(shape, node.ints("starts"), node.ints("stops"), strict=True)
    parts = [(axis, start, stop) for axis, (extent, start, stop) in enumerate(bounds) if stop - start != extent]
    return parts[0] if len(parts) == 1 and set(node.ints("steps")) == {1} else None
