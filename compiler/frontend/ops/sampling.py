"""Converters of ONNX operators that sample an image at fractional coordinates.

The image is read as rows of channels, so a point costs one row per neighbor. Neighbors outside the image are read at
its border and, for zero padding, multiplied by zero.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import product
from math import prod

import numpy as np

from retune.compiler.core.dtype import promoted_type, sum_type
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, cast_to, formula_of, in_float32
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.nn import as_channels
from retune.compiler.graph.builder import GraphBuilder


class _Image:
    """A value of shape (N, C, *extents) that is sampled at computed coordinates; all results are channels-last."""

    def __init__(self, builder: GraphBuilder, node: OnnxNode, x: str) -> None:
        n, channels, *extents = builder.value(x).shape
        self.extents = tuple(extents)
        self.count = n
        self._builder = builder
        self.write = Formula(builder, node, builder.value(x).dtype)
        self._whole = Formula(builder, node, "int64")
        rank = len(extents)
        last = self.write("transpose", x, perm=(0, *range(2, rank + 2), 1))
        self._rows = self.write("reshape", last, shape=(n * prod(extents), channels))

    def batches(self, rank: int) -> str:
        """The number of each image, in the shape for coordinates of (N, ...) in `rank` dimensions."""
        return self._builder.constant(np.arange(self.count).reshape(-1, *(1 for _ in range(rank - 1))), "batch")

    def at(self, batch: str, coordinates: Sequence[str]) -> str:
        """The elements at integer coordinates inside the image, a float value for each axis."""
        number = batch
        for coordinate, extent in zip(coordinates, self.extents, strict=True):
            index = self._whole("cast", coordinate, dtype="int64")
            number = self._whole("add", self._whole("mul", number, extent), index)
        return self.write("gather", self._rows, number, axis=0)

    def wide(self, value: str) -> str:
        """A value per point, in the shape for combining with channels."""
        return self.write("reshape", value, shape=(*self._builder.value(value).shape, 1))

    def inside(self, coordinates: Sequence[str]) -> str:
        """Whether all of a point's coordinates are within the image."""
        tests = [
            # Coordinates are integers here, so these comparisons mean 0 <= coordinate < extent.
            self.write("bit_and", self.write("less", -1.0, coordinate), self.write("less", coordinate, float(extent)))
            for coordinate, extent in zip(coordinates, self.extents, strict=True)
        ]
        return reduce(lambda left, right: self.write("bit_and", left, right), tests)

    def clamp(self, coordinates: Sequence[str]) -> list[str]:
        """The coordinates, clamped to the border."""
        pairs = zip(coordinates, self.extents, strict=True)
        return [self.write("clip", coordinate, low=0.0, high=extent - 1.0) for coordinate, extent in pairs]

    def neighbors(
        self, coordinates: Sequence[str], weights_of: Callable[[str], Sequence[str]], first: int = 0
    ) -> list[tuple[list[str], str]]:
        """The neighbors of points and their weights. Along an axis they begin `first` after the floor of a coordinate,
        and `weights_of` the fraction are their weights.
        """
        write = self.write
        low = [write("floor", coordinate) for coordinate in coordinates]
        columns = [weights_of(write("sub", *pair)) for pair in zip(coordinates, low, strict=True)]
        neighbors = []
        for steps in product(range(len(columns[0])), repeat=len(coordinates)):
            offsets = [first + step for step in steps]
            neighbor = [write("add", floor, float(by)) if by else floor for floor, by in zip(low, offsets, strict=True)]
            factors = [column[step] for column, step in zip(columns, steps, strict=True)]
            neighbors.append((neighbor, reduce(lambda left, right: write("mul", left, right), factors)))
        return neighbors

    def corners(self, coordinates: Sequence[str]) -> list[tuple[list[str], str]]:
        """The neighbors of points with their weights in linear interpolation."""
        return self.neighbors(coordinates, lambda fraction: [self.write("sub", 1.0, fraction), fraction])

    def total(self, terms: Sequence[str]) -> str:
        return reduce(lambda left, right: self.write("add", left, right), terms)

    def linear_or_zero(self, batch: str, coordinates: Sequence[str]) -> str:
        """Linear interpolation; elements outside of the image are zeros."""
        terms = []
        for neighbor, weight in self.corners(coordinates):
            value = self.write("mul", self.at(batch, self.clamp(neighbor)), self.wide(weight))
            terms.append(self.write("where", self.wide(self.inside(neighbor)), value, 0.0))
        return self.total(terms)


def _reflect(write: Formula, coordinate: str, low: float, high: float) -> str:
    """A coordinate mirrored at both borders until it is between them."""
    span = high - low
    if span <= 0:
        return write("mul", coordinate, 0.0)
    # A reflection has the period 2 * span: |.| folds it twice.
    far = write("fmod", write("abs", write("sub", coordinate, low)), 2 * span)
    return write("add", write("sub", span, write("abs", write("sub", far, span))), low)


def _cubic_weights(write: Formula, fraction: str) -> list[str]:
    """Weights of the four neighbors of a point at `fraction` after the second."""
    # Keys' kernel with the parameter that ONNX and PyTorch fix for GridSample.
    a = -0.75

    def near(distance: str) -> str:
        line = write("sub", write("mul", distance, a + 2), a + 3)
        return write("add", write("mul", write("mul", line, distance), distance), 1.0)

    def far(distance: str) -> str:
        line = write("sub", write("mul", distance, a), 5 * a)
        square = write("add", write("mul", line, distance), 8 * a)
        return write("sub", write("mul", square, distance), 4 * a)

    other = write("sub", 1.0, fraction)
    return [far(write("add", fraction, 1.0)), near(fraction), near(other), far(write("add", other, 1.0))]


def _grid_sample(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, grid = node.operand(builder, 0), node.operand(builder, 1)
    # Integers are weighted as floats, too; places in halves would miss elements of a large image.
    wide = sum_type(promoted_type(x.dtype, grid.dtype))
    image = _Image(builder, node, cast_to(builder, x.name, wide))
    write, rank = image.write, len(image.extents)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name := node.text("mode", "linear"), name)
    padding, corners = node.text("padding_mode", "zeros"), bool(node.integer("align_corners", 0))
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise node.unsupported(f"mode {mode!r} with padding_mode {padding!r}")
    if grid.shape[0] != image.count or grid.shape[-1] != rank:
        raise node.unsupported(f"a grid of {list(grid.shape)} does not fit")
    outputs, points = grid.shape[1:-1], prod(grid.shape[1:-1])
    if x.size == 0 and 0 not in (*x.shape[:2], *outputs):
        if padding != "zeros":
            raise node.unsupported(f"an image of {list(x.shape)} has no {padding}")
        return [builder.filled(0, x.dtype, (*x.shape[:2], *outputs))]
    borders = [(0.0, extent - 1.0) if corners else (-0.5, extent - 0.5) for extent in image.extents]

    def pad(coordinates: Sequence[str]) -> list[str]:
        if padding == "reflection":
            pairs = zip(coordinates, borders, strict=True)
            coordinates = [_reflect(write, coordinate, *border) for coordinate, border in pairs]
        return image.clamp(coordinates) if padding == "border" else list(coordinates)

    coordinates = []
    for axis, extent in enumerate(image.extents):
        # A grid lists x first, and the axes of an image are rows first.
        part = take(builder, cast_to(builder, grid.name, wide), len(grid.shape) - 1, [rank - 1 - axis])
        moved = write("add", write("reshape", part, shape=(image.count, points)), 1.0)
        scaled = write("mul", moved, (extent - 1) / 2 if corners else extent / 2)
        coordinates.append(scaled if corners else write("sub", scaled, 0.5))
    if mode != "cubic":
        # ONNX Runtime rounds half to even, as `round` does.
        coordinates = pad(
            [write("round", coordinate) for coordinate in coordinates] if mode == "nearest" else coordinates
        )
    neighbors: list[tuple[list[str], str]] = [(coordinates, "")]
    if mode != "nearest":
        cubic = partial(_cubic_weights, image.write)
        neighbors = image.corners(coordinates) if mode == "linear" else image.neighbors(coordinates, cubic, -1)
    terms = []
    for neighbor, weight in neighbors:
        value = image.at(image.batches(2), image.clamp(pad(neighbor)))
        value = write("mul", value, image.wide(weight)) if weight else value
        terms.append(write("where", image.wide(image.inside(neighbor)), value, 0.0) if padding == "zeros" else value)
    total = cast_to(builder, image.total(terms), x.dtype)
    return [_channels_first(builder, write, total, (image.count, *outputs))]


def _channels_first(builder: GraphBuilder, write: Formula, value: str, shape: tuple[int, ...]) -> str:
    channels = builder.value(value).shape[-1]
    full = write("reshape", value, shape=(*shape, channels))
    return write("transpose", full, perm=(0, len(shape), *range(1, len(shape))))


def _roi_align(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    image = _Image(builder, node, node.operand(builder, 0).name)
    write, rois = image.write, node.operand(builder, 1)
    regions, size = rois.shape[0], (node.integer("output_height", 1), node.integer("output_width", 1))
    steps = node.integer("sampling_ratio", 0)
    if steps <= 0:
        raise node.unsupported("a sampling_ratio of 0 takes as many points as the data says; choose a number")
    aligned = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    shift = 0.5 if aligned == "half_pixel" else 0.0
    scale = node.number("spatial_scale", 1.0)

    def edge(column: int) -> str:
        return write("sub", write("mul", take(builder, rois.name, 1, [column]), scale), shift)

    coordinates, outside = [], []
    for axis, extent in enumerate(image.extents):
        start, end = edge(1 - axis), edge(3 - axis)
        length = write("sub", end, start)
        # The older, unaligned form: regions of no extent get extent 1.
        length = length if shift else write("maximum", length, 1.0)
        middles = (np.arange(size[axis] * steps) + 0.5) / (size[axis] * steps)
        parts = builder.constant(middles[None].astype(rois.dtype), "middles")
        line = write("add", start, write("mul", length, parts))
        full = (regions, *((size[0] * steps, 1) if axis == 0 else (1, size[1] * steps)))
        coordinate = write("reshape", line, shape=full)
        # As in Caffe2 and PyTorch: points up to one element outside are read at the border, farther ones are zeros.
        beyond = write("bit_or", write("less", coordinate, -1.0), write("less", float(extent), coordinate))
        outside.append(beyond)
        coordinates.append(write("broadcast_to", coordinate, shape=(regions, size[0] * steps, size[1] * steps)))
    batch = write("cast", node.operand(builder, 2).name, dtype="int64")
    batch = builder.emit("reshape", [batch], {"shape": (regions, 1, 1)})
    largest = node.text("mode", "avg") == "max"
    terms = [
        write("mul", image.at(batch, image.clamp(neighbor)), image.wide(weight))
        for neighbor, weight in image.corners(image.clamp(coordinates))
    ]
    # ONNX's "max" is over weighted neighbors, as in ONNX Runtime, not over interpolated points.
    value = reduce(lambda left, right: write("maximum", left, right), terms) if largest else image.total(terms)
    value = write("where", image.wide(write("bit_or", *outside)), 0.0, value)
    channels = builder.value(value).shape[-1]
    cells = write("reshape", value, shape=(regions, size[0], steps, size[1], steps, channels))
    joined = write("reduce_max" if largest else "reduce_mean", cells, axes=(2, 4), keepdims=False)
    return [write("transpose", joined, perm=(0, 3, 1, 2))]


def _deform_conv(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, weight, offset = (node.operand(builder, i) for i in range(3))
    if len(x.shape) != 4:
        raise node.unsupported("only images of two dimensions")
    out_channels, per_group, *kernel = weight.shape
    n, _, *output = offset.shape
    window, points = prod(kernel), prod(output)
    groups, regions = node.integer("group", 1), node.integer("offset_group", 1)
    write, _ = formula_of(builder, node)
    strides, dilations = node.ints("strides") or (1, 1), node.ints("dilations") or (1, 1)
    pads = node.ints("pads") or (0,) * 4
    moves = write("reshape", offset.name, shape=(n, regions, window, 2, points))
    mask = write("reshape", node.inputs[4], shape=(n, regions, window, points, 1)) if node.has_input(4) else ""
    taps, cells = np.indices(kernel).reshape(2, -1, 1), np.indices(output).reshape(2, 1, -1)
    parts = []
    for region in range(regions):
        share = x.shape[1] // regions
        image = _Image(builder, node, take(builder, x.name, 1, range(region * share, (region + 1) * share)))
        own = take(builder, moves, 1, [region])
        coordinates = []
        for axis in (0, 1):
            regular = cells[axis] * strides[axis] - pads[axis] + taps[axis] * dilations[axis]
            move = write("reshape", take(builder, own, 3, [axis]), shape=(n, window, points))
            coordinates.append(write("add", move, builder.constant(regular.astype(x.dtype), "regular")))
        value = image.linear_or_zero(image.batches(3), coordinates)
        if mask:
            shown = write("reshape", take(builder, mask, 1, [region]), shape=(n, window, points, 1))
            value = write("mul", value, shown)
        parts.append(value)
    columns = parts[0] if regions == 1 else write("concat", *parts, axis=3)
    columns = write("transpose", columns, perm=(0, 2, 1, 3))
    results = []
    for group in range(groups):
        rows = take(builder, columns, 3, range(group * per_group, (group + 1) * per_group))
        rows = write("reshape", rows, shape=(n * points, window * per_group))
        own = take(builder, weight.name, 0, range(group * out_channels // groups, (group + 1) * out_channels // groups))
        own = write(
            "transpose", write("reshape", own, shape=(out_channels // groups, per_group, window)), perm=(2, 1, 0)
        )
        results.append(write("dense", rows, write("reshape", own, shape=(window * per_group, out_channels // groups))))
    joined = results[0] if groups == 1 else write("concat", *results, axis=1)
    result = _channels_first(builder, write, joined, (n, *output))
    return [write("add", result, as_channels(builder, node.inputs[3], 4)) if node.has_input(3) else result]


CONVERTERS: Mapping[str, Converter] = {
    "DeformConv": in_float32(_deform_conv),
    "GridSample": _grid_sample,
    "RoiAlign": in_float32(_roi_align),
}
