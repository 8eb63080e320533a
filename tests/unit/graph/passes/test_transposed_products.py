"""Transposes join the products beside them, in any spelling of attention and for random orders of axes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.passes.rules.shapes import reshaped_broadcast
from retune.compiler.graph.passes.rules.simplify import settle, simplify
from retune.compiler.graph.passes.transposed_products import fuse_transposes
from retune.compiler.graph.verify import verify
from tests.support.attributes import CONV


def settled(graph: Graph) -> Graph:
    """The graph after the pass, which still computes the same."""
    changed = fuse_transposes(simplify(graph))
    changed = settle(changed)
    verify(changed)
    rng = np.random.default_rng(3)
    feed = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    for ours, theirs in zip(evaluate(changed, feed), evaluate(graph, feed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return changed


def products(graph: Graph) -> list[str]:
    """The nodes that are no reshape, products with their letters."""
    words = {"contract": "{} {},{}->{}"}
    return [
        words.get(node.op, "{}").format(node.op, *(node.attrs.get(key) for key in ("left", "right", "result")))
        for node in graph.nodes
        if node.op != "reshape"
    ]


def heads(b: GraphBuilder, x: str, count: int, perm: tuple[int, ...], flat: bool) -> str:
    """(B, S, H * D) as B * H matrices, or (B, H) of them, with axes in the order of `perm`."""
    batch, rows, columns = b.value(x).shape
    split = b.emit("reshape", [x], {"shape": (batch, rows, count, columns // count)})
    turned = b.emit("transpose", [split], {"perm": perm})
    shape = b.value(turned).shape
    return b.emit("reshape", [turned], {"shape": (batch * count, *shape[2:])}) if flat else turned


@pytest.mark.parametrize("batch", [1, 2])
def test_the_heads_of_attention_need_one_transpose(batch: int) -> None:
    count, rows, width = 3, 5, 12
    b = GraphBuilder("attention", [Value(name, (batch, rows, width)) for name in "qkv"])
    q, v = (heads(b, name, count, (0, 2, 1, 3), flat=True) for name in "qv")
    k = heads(b, "k", count, (0, 2, 3, 1), flat=True)
    scores = b.emit("reshape", [b.emit("batch_matmul", [q, k])], {"shape": (batch, count, rows, rows)})
    shares = b.emit("softmax", [scores], {"axis": 3})
    shares = b.emit("reshape", [shares], {"shape": (batch * count, rows, rows)})
    mixed = b.emit("reshape", [b.emit("batch_matmul", [shares, v])], {"shape": (batch, count, rows, width // count)})
    back = b.emit("transpose", [mixed], {"perm": (0, 2, 1, 3)})
    changed = settled(b.finish({"y": b.emit("reshape", [back], {"shape": (batch, rows, width)})}))
    found = products(changed)
    assert found[0] == "transpose"
    assert [one.split()[0] for one in found] == ["transpose", "contract", "softmax", "contract"]
    first, second = found[1].split()[1], found[3].split()[1]
    if batch == 1:
        assert (first, second) == ("bad,adc->abc", "bad,dbc->abc")
    else:
        assert (first, second) == ("acbe,abed->abcd", "acbe,aecd->abcd")


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_any_transposes_around_a_product(data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    rows, inner, columns = (data.draw(st.integers(1, 4)) for _ in range(3))
    count = math.prod(batch)
    builder = GraphBuilder("g")

    def operand(name: str, tail: tuple[int, int]) -> str:
        shape = (*batch, *tail)
        perm = tuple(data.draw(st.permutations(range(len(shape)))))
        source = [0] * len(shape)
        for place, axis in enumerate(perm):
            source[axis] = shape[place]
        x = builder.input(Value(name, tuple(source)))
        turned = builder.emit("transpose", [x], {"perm": perm})
        return builder.emit("reshape", [turned], {"shape": (count, *tail)})

    product = builder.emit("batch_matmul", [operand("a", (rows, inner)), operand("b", (inner, columns))])
    whole = builder.emit("reshape", [product], {"shape": (*batch, rows, columns)})
    perm = tuple(data.draw(st.permutations(range(len(batch) + 2))))
    result = builder.emit("transpose", [whole], {"perm": perm})
    settled(builder.finish({"y": builder.emit("tanh", [result])}))


@pytest.mark.parametrize(
    ("operand", "after", "before", "wanted"),
    [
        ((8,), (1, 4, 8), (4, 8), (8,)),
        ((1, 1, 1, 5), (1, 3, 4, 5), (3, 4, 5), (5,)),
        ((1, 3, 1, 1), (1, 3, 4, 5), (3, 4, 5), (3, 1, 1)),
        ((3, 2), (4, 3, 2), (4, 6), (6,)),
        ((2,), (4, 3, 2), (4, 6), None),
        ((4, 3, 2), (4, 3, 2), (24,), (24,)),
        ((1, 1), (4, 6), (24,), ()),
        ((4, 1), (4, 1), (1, 4), (4,)),
    ],
)
def test_what_is_broadcast_behind_a_reshape(
    operand: tuple[int, ...], after: tuple[int, ...], before: tuple[int, ...], wanted: tuple[int, ...] | None
) -> None:
    assert reshaped_broadcast(operand, after, before) == wanted


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("first", "flat"), [("conv2d", (6, 8)), ("dense", (3, 16))])
def test_the_product_behind_a_shortcut_has_the_addition(first: str, flat: tuple[int, int], swapped: bool) -> None:
    """Though the shortcut is a product too, and in another shape: the other one is computed from it."""
    b = GraphBuilder("blocks", [Value("x", (1, 1, 6, 8) if first == "conv2d" else (6, 8))])
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((8, 8), np.float32)
    if first == "conv2d":
        value = b.emit("conv2d", ["x", b.constant(weight.reshape(1, 1, 8, 8), "w")], {**CONV, "pads": (0, 0, 0, 0)})
    else:
        value = b.emit("reshape", [b.emit("dense", ["x", b.constant(weight, "w")])], {"shape": (1, 1, 6, 8)})
    for _ in range(2):
        rows = b.emit("reshape", [b.emit("tanh", [value])], {"shape": flat})
        made = b.emit("dense", [rows, b.constant(rng.standard_normal((flat[1],) * 2, np.float32), "w")])
        made = b.emit("reshape", [made], {"shape": (1, 1, 6, 8)})
        value = b.emit("add", [made, value] if swapped else [value, made])
    groups = ["+".join(node.op for node in group.nodes) for group in fuse(settled(b.finish({"y": value}))).groups]
    assert groups == [first, "tanh", "dense+add", "tanh", "dense+add"]


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_reshapes_transposes_and_slices_in_any_order(data: st.DataObject) -> None:
    """Sinking moves keeps the meaning, and comes to an end."""
    builder = GraphBuilder("g", [Value("x", (2, 3, 1, 4))])
    x = "x"
    for _ in range(data.draw(st.integers(1, 6))):
        shape = builder.value(x).shape
        kind = data.draw(st.sampled_from(["transpose", "merge", "split", "unit", "slice", "add"]))
        if kind == "transpose":
            x = builder.emit("transpose", [x], {"perm": tuple(data.draw(st.permutations(range(len(shape)))))})
        elif kind == "merge" and len(shape) > 1:
            at = data.draw(st.integers(0, len(shape) - 2))
            merged = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
            x = builder.emit("reshape", [x], {"shape": merged})
        elif kind in ("split", "unit"):
            at = data.draw(st.integers(0, len(shape) - 1))
            part = 2 if kind == "split" and shape[at] % 2 == 0 else 1
            x = builder.emit("reshape", [x], {"shape": (*shape[:at], part, shape[at] // part, *shape[at + 1 :])})
        elif kind == "slice":
            at = data.draw(st.integers(0, len(shape) - 1))
            start = data.draw(st.integers(0, shape[at] - 1))
            stop = data.draw(st.integers(start + 1, shape[at]))
            bounds = [(start, stop) if axis == at else (0, extent) for axis, extent in enumerate(shape)]
            starts, stops = zip(*bounds, strict=True)
            x = builder.emit("slice", [x], {"starts": starts, "stops": stops, "steps": (1,) * len(shape)})
        elif kind == "add":
            x = builder.emit("add", [x, builder.constant(np.arange(shape[-1], dtype=np.float32))])
    graph = builder.finish({"y": builder.emit("tanh", [x])})
    simple = settled(graph)
    assert str(simplify(simplify(graph))) == str(simplify(graph))
    verify(simple)
