"""Rewrite rules of transposes and reshapes: each moves a layout change toward the outputs, merges it or removes it.

A rule returns the value that replaces the node's result, or None. The network computes the same.

Layout changes sink: an operator that works in any axis order is computed before the transpose that feeds it. So
transposes meet the next layout change and cancel there, or reach an output.
"""

from collections import deque
from collections.abc import Sequence
from math import prod

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute, Node, Value
from retune.compiler.graph.passes.rules.shapes import common_factors, reshaped_broadcast, rows_first, transposed_reshape
from retune.compiler.graph.passes.rules.slice_rules import (
    join_slices,
    remove_slice,
    sink_reshape_of_slice,
    slice_before_concat,
)
from retune.compiler.graph.passes.rules.views import reshape
from retune.compiler.ir.dims import Dim, estimate
from retune.compiler.ops import OPS, FusionKind
from retune.compiler.ops.op import broadcast_shapes

_REDUCTIONS = ("reduce_prod", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min")

_ALONG_AXIS = ("softmax", "log_softmax")

_NORMALIZATIONS = ("normalize", "group_normalize")

_BY_TABLES = ("gather", "resample", "lookup")
"""Operators whose operands after the first are tables, independent of the axis order."""

_LEAST_ROW = 16
"""Least elements of a row that is worth moving as a unit."""
_FARTHEST = 128
"""Most values visited in the search for a product."""
_MOST_REPEATED = 1 << 18
"""Most elements of a constant repeated so that its reader joins a product; a kernel would move as many."""


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    # The argsort of a permutation is its inverse.
    return tuple(int(i) for i in np.argsort(perm))


def _transpose(builder: GraphBuilder, x: str, perm: tuple[int, ...], wish: str) -> str:
    if perm == tuple(range(len(perm))):
        return x
    return builder.emit("transpose", [x], {"perm": perm}, output=wish)


def _moves_units_only(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Whether a transpose keeps the row-major order of the elements."""
    moved = [axis for axis in perm if shape[axis] != 1]
    # Axes of extent 1 contribute nothing to an element's address.
    return moved == sorted(moved)


def merge_transposes(builder: GraphBuilder, node: Node) -> str | None:
    """transpose(transpose(x)) -> one transpose or none; a transpose that moves nothing -> x."""
    if node.op != "transpose":
        return None
    x, perm = node.inputs[0], node.ints("perm")
    if perm == tuple(range(len(perm))):
        return x
    source = builder.producer(x)
    if source is not None and source.op == "transpose":
        inner = source.ints("perm")
        # transpose(transpose(x, p), q) = transpose(x, p∘q); the identity is dropped by `_transpose`.
        return _transpose(builder, source.inputs[0], tuple(inner[axis] for axis in perm), node.output)
    return None


def transpose_to_reshape(builder: GraphBuilder, node: Node) -> str | None:
    """A transpose that moves only axes of extent 1 -> reshape. Not among the rules that sink transposes."""
    if node.op != "transpose":
        return None
    shape, perm = builder.value(node.inputs[0]).shape, node.ints("perm")
    if not _moves_units_only(shape, perm):
        return None
    return builder.emit("reshape", node.inputs, {"shape": tuple(shape[axis] for axis in perm)}, output=node.output)


def merge_reshapes(builder: GraphBuilder, node: Node) -> str | None:
    """reshape(reshape(x)) -> reshape(x); a reshape to the same shape -> x."""
    if node.op != "reshape":
        return None
    x = node.inputs[0]
    if builder.value(x).shape == node.ints("shape"):
        return x
    source = builder.producer(x)
    if source is not None and source.op == "reshape":
        return builder.emit("reshape", source.inputs, node.attrs, name=node.name, output=node.output)
    return None


def sink_reshape(builder: GraphBuilder, node: Node) -> str | None:
    """f(reshape(x)) -> reshape(f(x)) for element-wise f.

    With more operands: all reshaped alike, or the others constant; or any others, if x is a product, which f can then
    join. The other operands get the shape that they need for that.
    """
    if OPS[node.op].kind not in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST):
        return None
    for index, name in enumerate(node.inputs):
        source = builder.producer(name)
        if source is None or source.op != "reshape":
            continue
        x, shape = builder.value(source.inputs[0]), source.ints("shape")
        if node.op in _BY_TABLES:
            result = builder.emit(node.op, [x.name, *node.inputs[1:]], node.attrs, name=node.name, output=node.output)
            return builder.emit("reshape", [result], {"shape": shape}, output=node.output)
        others = [*node.inputs[:index], *node.inputs[index + 1 :]]
        free = _is_product(builder, x.name) and not any(
            _is_product(builder, other) and _takes_first(builder, other, x.name, is_before=number < index)
            for number, other in enumerate(others)
        )
        if index and not free:
            continue
        before = [_before_reshape(builder, other, x, shape, free=free) for other in others]
        operands = [operand for operand in (*before[:index], x.name, *before[index:]) if operand is not None]
        if len(operands) < len(node.inputs):
            continue
        result = builder.emit(node.op, operands, node.attrs, name=node.name, output=node.output)
        return builder.emit("reshape", [result], {"shape": shape}, output=node.output)
    return None


def sink_reshape_of_rows(builder: GraphBuilder, node: Node) -> str | None:
    """softmax(reshape(x)) -> reshape(softmax(x)) along the last axis, if the reshape keeps that axis."""
    source = builder.producer(node.inputs[0]) if node.op in _ALONG_AXIS else None
    if source is None or source.op != "reshape":
        return None
    before, shape = builder.value(source.inputs[0]).shape, source.ints("shape")
    if node.integer("axis") != len(shape) - 1 or not before or before[-1] != shape[-1]:
        return None
    attrs: dict[str, Attribute] = {"axis": len(before) - 1}
    result = builder.emit(node.op, [source.inputs[0]], attrs, name=node.name, output=node.output)
    return builder.emit("reshape", [result], {"shape": shape}, output=node.output)


def _is_product(builder: GraphBuilder, name: str) -> bool:
    """Whether a value is a convolution or product, or made from one by a few element-wise operators and reshapes."""
    seen, stack = {name}, [name]
    # Bounded depth-first search: the rule is tried at every node, so an unbounded search would be quadratic in the
    # length of a chain.
    while stack and len(seen) <= _FARTHEST:
        node = builder.producer(stack.pop())
        if node is None:
            continue
        kind = OPS[node.op].kind
        if kind is FusionKind.COMPLEX:
            return True
        if kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST) or node.op == "reshape":
            fresh = [operand for operand in node.inputs if operand not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def _takes_first(builder: GraphBuilder, other: str, name: str, *, is_before: bool) -> bool:
    """Whether an operator of two products joins `other` rather than `name`: the product computed from the other (as
    beside the shortcut of a residual block) since the operator waits for it; else the first operand.
    """
    source, other_source = (_skip_reshapes(builder, value) for value in (other, name))
    return not _computes(builder, source, other_source) if is_before else _computes(builder, other_source, source)


def _skip_reshapes(builder: GraphBuilder, name: str) -> str:
    """The value before all reshapes."""
    node = builder.producer(name)
    while node is not None and node.op == "reshape":
        name = node.inputs[0]
        node = builder.producer(name)
    return name


def _computes(builder: GraphBuilder, name: str, later: str) -> bool:
    """Whether a value is computed from `name`, within `_FARTHEST` values."""
    seen, queue = {later}, deque([later])
    while queue and name not in seen and len(seen) <= _FARTHEST:
        node = builder.producer(queue.popleft())
        fresh = [] if node is None else [operand for operand in node.inputs if operand not in seen]
        seen.update(fresh)
        queue += fresh
    return name in seen


def _before_reshape(builder: GraphBuilder, name: str, x: Value, shape: tuple[int, ...], *, free: bool) -> str | None:
    """The operand for `x` such that combining, then reshaping to `shape`, equals reshaping, then combining with `name`.

    Unless `free`, only constants are reshaped, and values that were reshaped from that very shape. A constant that no
    shape broadcasts as needed is repeated, up to a limit.
    """
    source = builder.producer(name)
    if source is not None and source.op == "reshape" and source.ints("shape") == shape:
        before = builder.value(source.inputs[0]).shape
        if before == x.shape:
            return source.inputs[0]
    array = builder.array(name)
    if array is None and not free:
        return None
    if not builder.value(name).shape:
        return name
    wanted = reshaped_broadcast(builder.value(name).shape, shape, x.shape)
    is_static = not isinstance(x.size, Dim)
    channels = x.shape[-1:]  # none of a scalar
    is_known = not any(isinstance(extent, Dim) for extent in channels)
    if wanted is None and array is not None and is_known and _scales(array, shape):
        # A scale that is repeated for each channel of another axis.
        return builder.constant(np.full(channels, array.flat[0], array.dtype), name)
    if wanted is None and array is not None and free and is_static and x.size <= _MOST_REPEATED:
        if np.broadcast_shapes(array.shape, shape) != shape:
            return None
        return builder.constant(np.broadcast_to(array, shape).reshape(x.shape), name)
    if wanted is not None and array is None:
        wanted = (*(1 for _ in range(len(x.shape) - len(wanted))), *wanted)
    return None if wanted is None else reshape(builder, name, wanted)


def _scales(array: Array, shape: tuple[int, ...]) -> bool:
    """Whether an array has one number for all elements of a value of `shape`."""
    is_uniform = bool(array.size) and bool((array == array.flat[0]).all())
    return is_uniform and broadcast_shapes(array.shape, shape) == shape


def sink_transpose_of_reshape(builder: GraphBuilder, node: Node) -> str | None:
    """reshape(transpose(x)) -> transpose(reshape(x)), if merged or split axes are adjacent in x."""
    source = builder.producer(node.inputs[0]) if node.op == "reshape" else None
    if source is None or source.op != "transpose":
        return None
    x = builder.value(source.inputs[0])
    swapped = transposed_reshape(x.shape, source.ints("perm"), node.ints("shape"))
    if swapped is None:
        return None
    shape, perm = swapped
    result = builder.emit("reshape", [x.name], {"shape": shape}, name=node.name, output=node.output)
    return _transpose(builder, result, perm, node.output)


def move_rows_before_reshape(builder: GraphBuilder, node: Node) -> str | None:
    """reshape(transpose(x)) -> transpose(reshape(transpose(x))): the inner transpose moves rows of x, the outer one
    their axis, which can then sink.
    """
    source = builder.producer(node.inputs[0]) if node.op == "reshape" else None
    if source is None or source.op != "transpose":
        return None
    x = builder.value(source.inputs[0])
    is_long = estimate(x.shape[-1]) >= _LEAST_ROW
    moves = rows_first(x.shape, source.ints("perm"), node.ints("shape")) if is_long else None
    if moves is None:
        return None
    first, shape, perm = moves
    moved = _transpose(builder, x.name, first, source.output)
    result = builder.emit("reshape", [moved], {"shape": shape}, name=node.name, output=node.output)
    return _transpose(builder, result, perm, node.output)


def normalize_before_reshape(builder: GraphBuilder, node: Node) -> str | None:
    """normalize(reshape(transpose(x))) -> reshape(group_normalize(transpose(x))), if the reshape splits channels into
    groups; a plain normalize if it only merges axes. The transpose can then sink.
    """
    source = builder.producer(node.inputs[0]) if node.op == "normalize" else None
    moved = None if source is None or source.op != "reshape" else builder.producer(source.inputs[0])
    if source is None or moved is None or moved.op != "transpose":
        return None
    shape, after = builder.value(moved.output).shape, builder.value(source.output).shape
    normalized = _normalized_axes(shape, after, node.ints("axes"))
    if normalized is None:
        return None
    axes, groups = normalized
    if not axes or len(groups) > 1 or (groups and not node.flag("centred")):
        return None
    # Rows in the same order before and after the transpose, as those of windows, gain nothing: other readers would need
    # a transpose of their own.
    if not groups and all(moved.ints("perm")[axis] == axis for axis in axes):
        return None
    op, attrs = "normalize", {**node.attrs, "axes": axes}
    for axis, number in groups.items():
        op, attrs = "group_normalize", {"axes": axes, "axis": axis, "groups": number, "epsilon": node.number("epsilon")}
    return reshape(builder, builder.emit(op, [moved.output], attrs, name=node.name, output=node.output), after)


def _normalized_axes(
    before: tuple[int, ...], after: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], dict[int, int]] | None:
    """The axes of `before` that `axes` of `after` cover, and the number of groups for axes whose inner part they cover;
    None if they cover another part of an axis.
    """
    common = common_factors(before, after)
    if common is None:
        return None
    factors, of_before, of_after = common
    inside = {index for axis in axes for index in of_after[axis]}
    whole: list[int] = []
    groups: dict[int, int] = {}
    for axis, indices in enumerate(of_before):
        outer = [index for index in indices if index not in inside]
        if outer != list(indices[: len(outer)]):
            return None
        if indices and not outer:
            whole.append(axis)
        elif len(outer) < len(indices):
            groups[axis] = prod(factors[index] for index in outer)
    return tuple(whole), groups


def sink_transpose(builder: GraphBuilder, node: Node) -> str | None:
    """f(transpose(x), ...) -> transpose(f(x, ...)) for every f that can work on the untransposed operands."""
    kind = OPS[node.op].kind
    any_order = kind in (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
    if not (
        any_order or node.op in (*_REDUCTIONS, *_ALONG_AXIS, *_NORMALIZATIONS, *_BY_TABLES, "concat", "pad", "slice")
    ):
        return None
    moved = node.inputs[:1] if node.op in _BY_TABLES else node.inputs
    if node.op == "gather" and len(builder.value(node.inputs[1]).shape) != 1:
        return None
    for name in moved:
        source = builder.producer(name)
        if source is None or source.op != "transpose":
            continue
        perm = source.ints("perm")
        operands = [*(_undo_transpose(builder, operand, perm) for operand in moved), *node.inputs[len(moved) :]]
        if any(operand is None for operand in operands):
            continue
        attrs, result_perm = _moved_attributes(node, perm)
        known = [operand for operand in operands if operand is not None]
        if node.op == "resample":
            known = [known[0], *_by_axis(node, perm, known[1:])]
        result = builder.emit(node.op, known, attrs, name=node.name, output=node.output)
        return _transpose(builder, result, result_perm, node.output)
    return None


def _undo_transpose(builder: GraphBuilder, name: str, perm: tuple[int, ...]) -> str | None:
    """A free-to-compute value whose transpose by `perm` is `name`, or None."""
    source, value = builder.producer(name), builder.value(name)
    if source is not None and source.op == "transpose" and source.ints("perm") == perm:
        return source.inputs[0]
    if value.size == 1 and len(value.shape) <= len(perm):
        return name if len(value.shape) < len(perm) else reshape(builder, name, (1,) * len(perm))
    if len(value.shape) > len(perm):
        return None
    shape = (*(1 for _ in range(len(perm) - len(value.shape))), *value.shape)
    inverse = _inverse(perm)
    if builder.array(name) is not None:
        return builder.emit("transpose", [reshape(builder, name, shape)], {"perm": inverse}, output=name)
    if _moves_units_only(shape, inverse):
        return reshape(builder, name, tuple(shape[axis] for axis in inverse))
    return None


def _moved_attributes(node: Node, perm: tuple[int, ...]) -> tuple[dict[str, Attribute], tuple[int, ...]]:
    """The node's attributes for untransposed operands, and the transpose that its result then needs."""
    attrs: dict[str, Attribute] = dict(node.attrs)
    if node.op in _REDUCTIONS:
        axes = node.ints("axes")
        attrs["axes"] = tuple(sorted(perm[axis] for axis in axes))
        if not node.flag("keepdims"):
            kept = [axis for i, axis in enumerate(perm) if i not in axes]
            return attrs, tuple(sorted(kept).index(axis) for axis in kept)
    elif node.op in (*_NORMALIZATIONS, "resample"):
        attrs["axes"] = tuple(sorted(perm[axis] for axis in node.ints("axes")))
        if node.op == "group_normalize":
            attrs["axis"] = perm[node.integer("axis")]
    elif node.op in (*_ALONG_AXIS, "concat", "gather"):
        attrs["axis"] = perm[node.integer("axis")]
    elif node.op in ("pad", "slice"):
        inverse = _inverse(perm)
        for key in ("pads_before", "pads_after", "starts", "stops", "steps"):
            if key in attrs:
                attrs[key] = tuple(node.ints(key)[axis] for axis in inverse)
    return attrs, perm


def _by_axis(node: Node, perm: tuple[int, ...], tables: Sequence[str]) -> list[str]:
    """The tables of a resampling, a pair per axis, in the order of the untransposed operand's axes."""
    pairs = sorted(zip((perm[axis] for axis in node.ints("axes")), tables[::2], tables[1::2], strict=True))
    return [table for _, *pair in pairs for table in pair]


def transpose_into_weights(builder: GraphBuilder, node: Node) -> str | None:
    """dense(flatten(transpose(x)), w) -> dense(flatten(x), w') with the rows of the constant w in the order of x."""
    if node.op not in ("dense", "qdense"):
        return None
    weight, flat = builder.array(node.inputs[1]), builder.producer(node.inputs[0])
    if weight is None or flat is None or flat.op != "reshape":
        return None
    source = builder.producer(flat.inputs[0])
    if source is None or source.op != "transpose" or source.ints("perm")[0] != 0:
        return None
    moved, perm = builder.value(source.output).shape, source.ints("perm")
    if flat.ints("shape") != (moved[0], weight.shape[0]):
        return None
    # The argsort of a permutation is its inverse.
    order = tuple(int(i) for i in np.argsort(perm[1:]))
    rows = weight.reshape(*moved[1:], weight.shape[1]).transpose(*order, len(order)).reshape(weight.shape)
    operand = builder.constant(rows, node.inputs[1])
    x = builder.emit("reshape", [source.inputs[0]], flat.attrs, name=flat.name, output=flat.output)
    return builder.emit(node.op, [x, operand], name=node.name, output=node.output)


# Order matters: merging and removing come first, so that nothing sinks past a change that would have cancelled it.
LAYOUT_RULES = (
    merge_transposes,
    merge_reshapes,
    remove_slice,
    join_slices,
    slice_before_concat,
    sink_transpose,
    sink_transpose_of_reshape,
    move_rows_before_reshape,
    normalize_before_reshape,
    sink_reshape,
    sink_reshape_of_slice,
    sink_reshape_of_rows,
    transpose_into_weights,
)
