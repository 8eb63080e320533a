"""Products of rows that no tile divides are computed with a few more, whatever those hold."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.passes.pad_rows import pad_rows, padded_extent
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.verify import verify
from retune.compiler.runtime.executor import GraphExecutor
from tests.support.encoder_layer import encoder_layer

TILES = range(4, 9)
WIDTH = 64


def lengthened(graph: Graph) -> Graph:
    """The graph after the pass, which still computes the same."""
    changed = pad_rows(graph)
    verify(changed)
    agree(changed, graph)
    return changed


def agree(ours: Graph, theirs: Graph) -> None:
    """Compare on random inputs, numbers that are not finite included."""
    rng = np.random.default_rng(3)
    feed = {value.name: rng.standard_normal(value.shape).astype(value.dtype) for value in theirs.inputs}
    with np.errstate(all="ignore"):
        for one, other in zip(evaluate(ours, feed), evaluate(theirs, feed), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def extents(graph: Graph) -> list[int]:
    """The rows of all products with weights."""
    return [graph.values[node.output].shape[0] for node in graph.nodes if node.op == "dense"]


def test_the_next_extent_is_near_and_divided_by_a_tile() -> None:
    for extent in (*range(15, 400), 1009, 10_007):
        padded = padded_extent(extent)
        assert any(padded % tile == 0 for tile in TILES), extent
        if any(extent % tile == 0 for tile in TILES):
            assert padded == extent
        elif extent >= 224:
            assert padded == next(longer for longer in range(extent, extent + 8) if longer % 8 == 0), extent
        else:
            assert extent < padded <= min(extent + 7, max(extent * 33 / 32, extent + 3)), extent


@pytest.mark.parametrize("rows", [17, 31, 34, 37])
@pytest.mark.parametrize("options", [{}, {"joint": True}, {"masked": False, "norm_first": True}])
def test_a_layer_of_a_transformer_is_lengthened_once(rows: int, options: dict[str, Any]) -> None:
    graph = encoder_layer(rows=rows, width=WIDTH, heads=2, **options)
    best = optimize(graph)
    agree(best, graph)
    assert set(extents(best)) == {padded_extent(rows)}
    assert [node.op for node in best.nodes].count("pad") <= 4  # the first product's, the residual sum's, values, mask
    groups = ["+".join(node.op for node in group.nodes) for group in fuse(best).groups]
    assert sum(group.startswith("slice") for group in groups) <= 1  # all but the output are views
    (scores,) = (group for group in groups if group.endswith("where"))
    assert scores.startswith("contract")


@pytest.mark.parametrize("rows", [1, 14, 16, 18, 196])
def test_rows_that_tiles_divide_stay(rows: int) -> None:
    graph = optimize(encoder_layer(rows=rows, width=WIDTH, heads=2), [])
    assert pad_rows(graph) is graph


def _turned_attention(rows: int) -> Graph:
    """Attention whose tokens but the first are turned, as by a rotary embedding: no longer rows of a product."""
    b = GraphBuilder("net", [Value("q", (2, rows, WIDTH)), Value("k", (2, WIDTH, rows)), Value("v", (2, rows, WIDTH))])
    ends: dict[str, Attribute] = {"starts": (0, 0, 0), "stops": (2, 1, WIDTH), "steps": (1, 1, 1)}
    rest: dict[str, Attribute] = {"starts": (0, 1, 0), "stops": (2, rows, WIDTH), "steps": (1, 1, 1)}
    one = b.emit("slice", ["q"], ends)
    turned = b.emit("concat", [one, b.emit("neg", [b.emit("slice", ["q"], rest)])], {"axis": 1})
    words: dict[str, Attribute] = {"left": "bqd", "right": "bdk", "result": "bqk"}
    scores = b.emit("mul", [b.emit("contract", [turned, "k"], words), b.scalar(0.125, "float32")])
    shares = b.emit("softmax", [scores], {"axis": 2})
    return b.finish({"y": b.emit("batch_matmul", [shares, "v"])})


@pytest.mark.parametrize(("rows", "longer"), [(67, 67), (197, 197), (257, 264), (1157, 1160), (264, 264)])
def test_attention_is_lengthened_where_its_tokens_are_of_no_product(rows: int, longer: int) -> None:
    graph = _turned_attention(rows)
    best = optimize(graph)
    agree(best, graph)
    scores = next(node for node in best.nodes if node.op == "softmax")
    assert best.values[scores.output].shape == (2, longer, longer)


@pytest.mark.parametrize("kind", ["read", "along rows", "masked", "constant", "turned"])
def test_scores_stay_where_their_product_alone_would_be_longer(kind: str) -> None:
    shapes = (2, 257, WIDTH), (2, WIDTH, 260), (2, 260, WIDTH)
    inputs = [*map(Value, ("q", "k", "turned"), shapes), Value("mask", (257, 260), "bool")]
    b = GraphBuilder("net", inputs)
    q = b.constant(np.ones((2, 257, WIDTH), np.float32), "asked") if kind == "constant" else "q"
    words: dict[str, Attribute] = {"left": "bqd", "right": "bkd", "result": "bqk"}
    scores = b.emit("contract", [q, "turned"], words) if kind == "turned" else b.emit("batch_matmul", [q, "k"])
    outputs = {"z": b.emit("exp", [scores])} if kind == "read" else {}
    if kind == "masked":
        scores = b.emit("where", ["mask", scores, b.scalar(-1e9, "float32")])
    graph = b.finish({"y": b.emit("softmax", [scores], {"axis": 1 if kind == "along rows" else 2}), **outputs})
    assert pad_rows(graph) is graph


@pytest.mark.parametrize(("left", "right", "result"), [("a", "", "a"), ("", "a", "a"), ("a", "a", ""), ("", "", "")])
def test_products_with_scalars_stay(left: str, right: str, result: str) -> None:
    shapes = {"": (), "a": (WIDTH,)}
    b = GraphBuilder("net", [Value("x", shapes[left]), Value("y", shapes[right])])
    words: dict[str, Attribute] = {"left": left, "right": right, "result": result}
    graph = b.finish({"z": b.emit("contract", ["x", "y"], words)})
    assert pad_rows(graph) is graph
    agree(optimize(graph), graph)


UNARY = ("log", "sqrt", "exp", "tanh", "neg")
MOVES: dict[str, dict[str, Attribute]] = {
    "transpose": {"perm": (1, 0)},
    "softmax": {"axis": 0},
    "normalize": {"axes": (1,), "epsilon": 0.0, "centred": True},
    "reduce_sum": {"axes": (0,), "keepdims": True},
    "reduce_max": {"axes": (1,), "keepdims": True},
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_the_rows_past_the_end_hold_never_shows(data: st.DataObject) -> None:
    """Divisions by the zeros there, logarithms of them, and sums along the rows themselves."""
    rows = data.draw(st.sampled_from([17, 23]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    b = GraphBuilder("net", [Value("x", (rows, WIDTH), "float64"), Value("column", (rows, 1), "float64")])
    weight = b.constant(rng.standard_normal((WIDTH, WIDTH)), "w")
    places = b.constant(rng.standard_normal((rows, WIDTH)), "p")
    values = ["x", "column", places, b.emit("dense", ["x", weight])]
    for _ in range(data.draw(st.integers(1, 7))):
        name = data.draw(st.sampled_from(values))
        shape = b.value(name).shape
        kind = data.draw(st.sampled_from(["unary", "binary", "move", "split", "dense", "cut", "attend"]))
        if kind == "unary":
            values.append(b.emit(data.draw(st.sampled_from(UNARY)), [name]))
        elif kind == "move":
            op = data.draw(st.sampled_from(sorted(MOVES)))
            values.append(b.emit(op, [name], MOVES[op]))
        elif kind == "binary":
            fitting = [other for other in values if b.value(other).shape == shape or b.value(other).shape == (rows, 1)]
            if fitting and shape[0] == rows:
                op = data.draw(st.sampled_from(["div", "mul", "add", "maximum"]))
                operands = [name, data.draw(st.sampled_from(fitting))]
                values.append(b.emit(op, operands if data.draw(st.booleans()) else operands[::-1]))
        elif kind == "split" and shape == (rows, WIDTH):
            turned = b.emit("transpose", [b.emit("reshape", [name], {"shape": (rows, 4, 16)})], {"perm": (1, 0, 2)})
            back = b.emit("transpose", [b.emit("tanh", [turned])], {"perm": (1, 0, 2)})
            values.append(b.emit("reshape", [back], {"shape": (rows, WIDTH)}))
        elif kind == "dense" and shape == (rows, WIDTH):
            values.append(b.emit("dense", [name, weight]))
        elif kind == "attend" and shape == (rows, WIDTH):
            scores = b.emit("contract", [name, name], {"left": "ac", "right": "bc", "result": "ab"})
            shares = b.emit("softmax", [scores], {"axis": data.draw(st.integers(0, 1))})
            values.append(b.emit("contract", [shares, name], {"left": "ab", "right": "bc", "result": "ac"}))
        elif kind == "cut" and shape[0] > 1:
            attrs: dict[str, Attribute] = {"starts": (1, 0), "stops": shape, "steps": (1, 1)}
            values.append(b.emit("slice", [name], attrs))
    outputs = data.draw(st.lists(st.sampled_from(values[3:]), min_size=1, unique=True))
    lengthened(b.finish({f"y{number}": name for number, name in enumerate(outputs)}))


@pytest.mark.parametrize("rows", [17, 23])
def test_kernels_read_the_beginnings_of_longer_buffers(rows: int) -> None:
    graph = encoder_layer(rows=rows, width=WIDTH, heads=2, norm_first=True)
    executor = GraphExecutor(compile_graph(optimize(graph), Target.host()), 1)
    rng = np.random.default_rng(5)
    feed = {value.name: rng.standard_normal(value.shape).astype(value.dtype) for value in graph.inputs}
    (wanted,) = evaluate(graph, feed)
    for name, array in feed.items():
        executor.set_input(name, array)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0), wanted, rtol=1e-4, atol=1e-4)


def test_only_the_beginning_of_memory_is_a_view() -> None:
    def groups(shape: tuple[int, ...], starts: tuple[int, ...], stops: tuple[int, ...], output: bool = False) -> int:
        b = GraphBuilder("net", [Value("x", shape)])
        cut = b.emit("slice", [b.emit("relu", ["x"])], {"starts": starts, "stops": stops, "steps": (1,) * len(shape)})
        rank = len(shape)
        last = b.emit("reshape", [cut], {"shape": b.value(cut).shape[::-1]}) if output else cut
        made = last if output else b.emit("softmax", [last], {"axis": rank - 1})
        return len(fuse(b.finish({"y": made})).groups)

    assert groups((5, 4), (0, 0), (3, 4)) == 2
    assert groups((1, 5, 4), (0, 0, 0), (1, 3, 4)) == 2
    assert groups((5, 4), (1, 0), (4, 4)) == 3
    assert groups((5, 4), (0, 0), (5, 3)) == 3
    assert groups((2, 5, 4), (0, 0, 0), (2, 3, 4)) == 3
    assert groups((5, 4), (0, 0), (3, 3)) == 3
    assert groups((5, 4), (0, 0), (3, 4), output=True) == 2  # a copy: what people get is as long as it says
