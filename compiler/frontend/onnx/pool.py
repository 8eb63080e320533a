"""In: an ONNX pool. Out: our operators. Always: padding never wins a maximum, and counts in a mean only when told.

A pool of three dimensions is one over rows and columns, and then one over planes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.frontend.onnx.attributes import OnnxNode
from compiler.frontend.onnx.elementwise import Converter, formula_of
from compiler.frontend.onnx.nn import pads_of, plain_convolution
from compiler.graph.builder import GraphBuilder
from compiler.graph.infer import window_extent
from compiler.graph.ir import Array, Attribute


@dataclass(frozen=True, slots=True)
class _Windows:
    """A pool's windows along some axes: `pads` in front, then behind; `grown` is what `ceil_mode` adds behind."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    grown: tuple[int, ...]

    def of(self, *axes: int) -> "_Windows":
        """The same along fewer axes, or with an axis of extent 1 for None."""
        rank = len(self.kernel)

        def pick(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
            return tuple(values[axis] if axis >= 0 else fill for axis in axes)

        pads = (*pick(self.pads[:rank], 0), *pick(self.pads[rank:], 0))
        return _Windows(pick(self.kernel, 1), pick(self.strides, 1), pick(self.dilations, 1), pads, pick(self.grown, 0))

    @property
    def all_pads(self) -> tuple[int, ...]:
        rank = len(self.kernel)
        return (*self.pads[:rank], *(pad + more for pad, more in zip(self.pads[rank:], self.grown, strict=True)))


def _windows_of(node: OnnxNode, extents: tuple[int, ...]) -> _Windows:
    rank = len(extents)
    if rank not in (1, 2, 3):
        raise node.unsupported(f"only 1-D, 2-D and 3-D is supported, not {rank}-D")
    kernel = node.ints("kernel_shape") or ()
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    pads = pads_of(node, extents, kernel, strides, dilations)
    grown = (0,) * rank
    if node.integer("ceil_mode", 0):
        after = _ceiled(extents, kernel, strides, dilations, pads)[rank:]
        grown = tuple(new - old for new, old in zip(after, pads[rank:], strict=True))
    return _Windows(kernel, strides, dilations, pads, grown)


def _pool(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    if any(node.outputs[1:]):
        raise node.unsupported("the indices output is not supported")
    _, x = formula_of(builder, node)
    return [
        _pooled(builder, node, x, maximum=node.op_type == "MaxPool", include=bool(node.integer("count_include_pad", 0)))
    ]


def _pooled(builder: GraphBuilder, node: OnnxNode, x: str, *, maximum: bool, include: bool) -> str:
    """The pool of `x`, in planes: rows and columns first, then what lies behind them."""
    n, channels, *extents = builder.value(x).shape
    windows = _windows_of(node, tuple(extents))

    def shaped(name: str, *shape: int) -> str:
        return builder.emit("reshape", [name], {"shape": shape})

    def plane(name: str, chosen: _Windows) -> str:
        return _plane(builder, node, name, chosen, maximum, include)

    if len(extents) == 2:
        return plane(x, windows)
    if len(extents) == 1:
        result = plane(shaped(x, n, channels, 1, extents[0]), windows.of(-1, 0))
        return shaped(result, n, channels, builder.value(result).shape[3])
    result = plane(shaped(x, n, channels * extents[0], *extents[1:]), windows.of(1, 2))
    rows, columns = builder.value(result).shape[2:]
    result = plane(shaped(result, n, channels, extents[0], rows * columns), windows.of(0, -1))
    return shaped(result, n, channels, builder.value(result).shape[2], rows, columns)


def _plane(builder: GraphBuilder, node: OnnxNode, x: str, windows: _Windows, maximum: bool, include: bool) -> str:
    attrs: dict[str, Attribute] = {
        "kernel": windows.kernel,
        "strides": windows.strides,
        "pads": windows.all_pads,
        "layout": "NCHW",
    }
    if maximum:
        return builder.emit("max_pool2d", [x], {**attrs, "dilations": windows.dilations}, name=node.name)
    if set(windows.dilations) == {1} and not (include and any(windows.grown)):
        counted = include and any(windows.pads)
        return builder.emit("avg_pool2d", [x], {**attrs, "count_include_pad": counted}, name=node.name)
    n, channels, *extents = builder.value(x).shape
    dtype = builder.value(x).dtype
    single = builder.emit("reshape", [x], {"shape": (n * channels, 1, *extents)})
    ones = builder.constant(np.ones((1, 1, *windows.kernel), dtype), "ones")
    total = plain_convolution(builder, single, ones, windows.strides, windows.all_pads, windows.dilations, 1, node.name)
    made = builder.value(total).shape[2:]
    counts = np.outer(*(_counts(windows, axis, extents[axis], made[axis], include) for axis in (0, 1)))
    mean = builder.emit("div", [total, builder.constant(counts.astype(dtype), "counts")])
    return builder.emit("reshape", [mean], {"shape": (n, channels, *made)})


def _counts(windows: _Windows, axis: int, extent: int, made: int, include: bool) -> Array:
    """How many elements each window's mean is over, along one axis."""
    before, after = windows.pads[axis], windows.pads[len(windows.kernel) + axis]
    steps = np.arange(windows.kernel[axis]) * windows.dilations[axis]
    places = np.arange(made)[:, None] * windows.strides[axis] - before + steps
    low, high = (-before, extent + after) if include else (0, extent)
    return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def _ceiled(
    extents: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[int, ...],
) -> tuple[int, ...]:
    """Pads that make room for the last, partial window; a window that would start in the padding is dropped."""
    rank = len(extents)
    after = list(pads[rank:])
    for i, extent in enumerate(extents):
        windows = window_extent(extent, kernel[i], strides[i], dilations[i], pads[i], pads[rank + i])
        reach = windows * strides[i] + dilations[i] * (kernel[i] - 1) + 1
        missing = reach - (extent + pads[i] + pads[rank + i])
        starts_inside = windows * strides[i] < extent + pads[i]
        if 0 < missing < strides[i] and starts_inside:
            after[i] += missing
    return (*pads[:rank], *after)


def _lp_pool(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """(sum of |x|^p)^(1/p): the mean over windows of which the padding counts as zeros, times their size."""
    write, x = formula_of(builder, node)
    p = node.number("p", 2)
    raised = write("mul", x, x) if p == 2 else write("pow", write("abs", x), p)
    size = float(np.prod(node.ints("kernel_shape") or ()))
    unpadded = replace(node, attributes={**node.attributes, "ceil_mode": 0})
    if node.integer("ceil_mode", 0):
        windows = _windows_of(node, builder.value(x).shape[2:])
        grown = {"pads": windows.all_pads, "auto_pad": b"NOTSET", "ceil_mode": 0}
        unpadded = replace(node, attributes={**node.attributes, **grown})
    total = write("mul", _pooled(builder, unpadded, raised, maximum=False, include=True), size)
    return [write("sqrt", total) if p == 2 else write("pow", total, 1 / p)]


def _lp_global(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    p = node.number("p", 2)
    axes = tuple(range(2, len(builder.value(x).shape)))
    total = write("reduce_sum", write("pow", write("abs", x), p), axes=axes, keepdims=True)
    return [write("pow", total, 1 / p)]


CONVERTERS: Mapping[str, Converter] = {
    "AveragePool": _pool,
    "GlobalLpPool": _lp_global,
    "LpPool": _lp_pool,
    "MaxPool": _pool,
}
