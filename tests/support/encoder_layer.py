"""A layer of a transformer's encoder as exporters write it: everything expanded, heads moved by transposes."""

from math import sqrt

import numpy as np

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from tests.support.expanded_operators import Writer, gelu, normalize, softmax


def encoder_layer(
    rows: int = 8,
    width: int = 12,
    heads: int = 3,
    *,
    joint: bool = False,
    masked: bool = True,
    norm_first: bool = False,
) -> Graph:
    """One layer: attention and a feed-forward part, each with a residual sum and a layer norm.

    `joint`: one projection for queries, keys and values, cut afterwards. `norm_first`: the norms stand before the
    parts, as in vision transformers, else behind the sums, as in BERT.
    """
    rng = np.random.default_rng(0)
    builder = GraphBuilder("layer", [Value("x", (1, rows, width))])
    if masked:
        builder.input(Value("mask", (1, 1, 1, rows)))
    write = Writer(builder, lambda: True)

    def weight(*shape: int) -> str:
        return builder.constant((rng.standard_normal(shape) / sqrt(shape[0])).astype(np.float32), "w")

    def linear(x: str, made: int) -> str:
        *outer, taken = builder.value(x).shape
        flat = write("reshape", x, shape=(rows, taken))
        product = write("reshape", write("dense", flat, weight(taken, made)), shape=(*outer, made))
        return write("add", weight(made), product)

    def split(x: str, perm: tuple[int, ...]) -> str:
        shaped = write("reshape", x, shape=(1, rows, heads, width // heads))
        turned = write("transpose", shaped, perm=perm)
        return write("reshape", turned, shape=builder.value(turned).shape[1:])

    def projections(x: str) -> list[str]:
        if not joint:
            return [linear(x, width) for _ in range(3)]
        whole = linear(x, 3 * width)
        bounds = [((0, 0, part * width), (1, rows, (part + 1) * width)) for part in range(3)]
        return [write("slice", whole, starts=starts, stops=stops, steps=(1, 1, 1)) for starts, stops in bounds]

    def attention(x: str) -> str:
        q, k, v = projections(x)
        queries, keys, values = split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)), split(v, (0, 2, 1, 3))
        scores = write("reshape", write("batch_matmul", queries, keys), shape=(1, heads, rows, rows))
        scores = write("div", scores, sqrt(width / heads))
        scores = write("add", scores, "mask") if masked else scores
        shares = write("reshape", softmax(write, scores, (3,)), shape=(heads, rows, rows))
        mixed = write("reshape", write("batch_matmul", shares, values), shape=(1, heads, rows, width // heads))
        joined = write("reshape", write("transpose", mixed, perm=(0, 2, 1, 3)), shape=(1, rows, width))
        return linear(joined, width)

    def feed_forward(x: str) -> str:
        return linear(gelu(write, linear(x, 4 * width)), width)

    x = "x"
    for part in (attention, feed_forward):
        x = write("add", x, part(normalize(write, x))) if norm_first else normalize(write, write("add", part(x), x))
    return builder.finish({"y": x})
