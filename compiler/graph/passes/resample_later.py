"""Computes 1x1 convolutions before the resampling that enlarges their input: both are linear, along different axes."""

from functools import reduce

from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.passes.rules.views import cut
from retune.compiler.ir.dims import estimate
from retune.compiler.ops.conv import LAYOUTS

_LARGEST_SHARE = 0.8
"""Largest share of products after the pass; less gain is lost to the kernels of a concatenation's operands."""


def resample_later(graph: Graph) -> Graph:
    """Convolve the operands of a concatenation, or a single one, before resampling, and add the results.

    before: y = conv2d(concat(resample(a), resample(b), c), w)              all of 64x64 pixels
    after:  y = conv2d(c, w[2]) + resample(conv2d(a, w[0])) + resample(conv2d(b, w[1]))

    For channels-last convolutions of one tap and stride 1 with constant weights, if no other node reads the larger
    tensors.
    """
    chosen = {node.output for node in graph.nodes if _applies(graph, node)}
    return rewrite(graph, lambda builder, node: _move(builder, node) if node.output in chosen else None)


def _applies(graph: Graph, node: Node) -> bool:
    """Whether the convolution is linear in each pixel alone and becomes smaller."""
    if node.op != "conv2d" or node.text("layout") != LAYOUTS[2][1] or node.inputs[1] not in graph.constants:
        return False
    weight, result = graph.values[node.inputs[1]].shape, graph.values[node.output].shape
    unit_values = {*weight[:2], *node.ints("strides"), node.integer("groups")}
    if len(weight) != 4 or unit_values != {1} or any(node.ints("pads")):
        return False
    producers, consumers = graph.producers(), graph.consumers()
    name, before, after = node.inputs[0], 0, 0
    parts = _parts(producers.get(name), name)
    for part in parts:
        source = producers.get(part)
        resampled = source is not None and _is_spatial(source)
        before += graph.values[part].size
        after += graph.values[source.inputs[0]].size if source is not None and resampled else graph.values[part].size
        if resampled and (len(consumers[part]) > 1 or part in graph.outputs):
            return False
    shared = len(consumers[name]) > 1 or name in graph.outputs
    # The result must not have more channels than the input, or resampling it moves more data than before.
    return not shared and estimate(after) <= _LARGEST_SHARE * estimate(before) and result[3] <= weight[2]


def _parts(source: Node | None, name: str) -> tuple[str, ...]:
    """The operands of a concatenation of channels; else `name` itself."""
    joined = source is not None and source.op == "concat" and source.integer("axis") == 3
    return source.inputs if source is not None and joined else (name,)


def _is_spatial(node: Node) -> bool:
    """Whether a node resamples the rows or columns of channels-last images."""
    return node.op == "resample" and set(node.ints("axes")) <= {1, 2}


def _move(builder: GraphBuilder, node: Node) -> str:
    """The sum of the parts' convolutions. Parts without resampling stay one concatenation and come first: their
    convolution takes the sum into its kernel.
    """
    name, weight = node.inputs
    whole: list[tuple[str, str]] = []
    results: list[str] = []
    start = 0
    for part in _parts(builder.producer(name), name):
        stop = start + builder.value(part).shape[3]
        rows = cut(builder, weight, 2, start, stop)
        source = builder.producer(part)
        if source is not None and _is_spatial(source):
            result = builder.emit("conv2d", [source.inputs[0], rows], node.attrs, name=node.name)
            results.append(builder.emit("resample", [result, *source.inputs[1:]], source.attrs, name=source.name))
        else:
            whole.append((part, rows))
        start = stop
    if whole:
        x, rows = (
            names[0] if len(names) == 1 else builder.emit("concat", names, {"axis": axis})
            for names, axis in zip(zip(*whole, strict=True), (3, 2), strict=True)
        )
        results.insert(0, builder.emit("conv2d", [x, rows], node.attrs, name=node.name))
    # conv(concat(a, b), w) = conv(a, w_a) + conv(b, w_b): a product with a block row is the sum over its blocks.
    return reduce(lambda a, b: builder.emit("add", [a, b], output=node.output), results)
