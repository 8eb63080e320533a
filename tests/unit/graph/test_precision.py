"""The pass that assigns precisions: results near float32, joined regions, and layers that stay exact."""

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Array, Attribute, Graph, Value
from retune.compiler.graph.pipeline import optimize, prepare
from retune.compiler.graph.precision.assign import assign_precisions
from retune.compiler.graph.precision.encoding import Bytes, quantized_weight
from retune.compiler.graph.precision.layers import (
    BFLOAT16,
    DYNAMIC,
    FORMS,
    INT8,
    Assignment,
    is_quantized,
    layers_of,
    values_read,
)

RNG = np.random.default_rng(0)
WINDOW: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "groups": 1, "layout": "NCHW"}


def weight(*shape: int) -> Array:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def block() -> Graph:
    """Two 3x3 convolutions with a residual, a max-pooling, a concatenation and a product."""
    builder = GraphBuilder("block", [Value("x", (1, 8, 6, 6), "float32")])
    window: dict[str, Attribute] = {**WINDOW, "pads": (1, 1, 1, 1)}

    def conv(x: str, channels: int, name: str) -> str:
        kernel = builder.constant(weight(channels, builder.value(x).shape[1], 3, 3), "w")
        return builder.emit("conv2d", [x, kernel], window, output=name)

    first = builder.emit("relu", [conv("x", 8, "first")])
    second = builder.emit("relu", [builder.emit("add", [conv(first, 8, "second"), first])])
    pool: dict[str, Attribute] = {
        "kernel": (2, 2),
        "strides": (2, 2),
        "pads": (0, 0, 0, 0),
        "dilations": (1, 1),
        "layout": "NCHW",
    }
    joined = builder.emit("concat", [builder.emit("max_pool2d", [each], pool) for each in (first, second)], {"axis": 1})
    third = builder.emit("relu", [conv(joined, 4, "third")])
    flat = builder.emit("reshape", [third], {"shape": (1, 36)})
    return prepare(builder.finish({"y": builder.emit("dense", [flat, builder.constant(weight(36, 5), "w")])}))


def attention() -> Graph:
    """Two batched products with a softmax between, behind products that share an operand."""
    builder = GraphBuilder("attention", [Value("x", (6, 16), "float32")])
    parts = [builder.emit("dense", ["x", builder.constant(weight(16, 16), "w")]) for _ in range(3)]
    query, key, value = (builder.emit("reshape", [part], {"shape": (6, 2, 8)}) for part in parts)
    query, value = (builder.emit("transpose", [each], {"perm": (1, 0, 2)}) for each in (query, value))
    scores = builder.emit("batch_matmul", [query, builder.emit("transpose", [key], {"perm": (1, 2, 0)})])
    shares = builder.emit("softmax", [scores], {"axis": 2})
    return prepare(builder.finish({"y": builder.emit("batch_matmul", [shares, value])}))


def ranges_of(graph: Graph, x: Array) -> dict[str, tuple[float, float]]:
    names = values_read(graph)
    computed = tuple(name for name in names if name != "x")
    probe = Graph(graph.name, graph.inputs, computed, graph.nodes, graph.constants, graph.values)
    values = {"x": x, **dict(zip(computed, evaluate(probe, {"x": x}), strict=True))}
    return {name: (float(values[name].min()), float(values[name].max())) for name in names}


def assigned(graph: Graph, x: Array, form: str, *, without: str = "") -> Graph:
    layers = {layer.name: form for layer in layers_of(graph) if form in layer.forms and layer.name != without}
    return assign_precisions(graph, Assignment(layers, ranges_of(graph, x)))


@pytest.mark.parametrize(("form", "bound"), [(BFLOAT16, 0.02), (INT8, 0.05), (DYNAMIC, 0.05)])
@pytest.mark.parametrize("make", [block, attention])
def test_a_form_computes_nearly_what_float32_does(make: object, form: str, bound: float) -> None:
    graph = make()  # type: ignore[operator]
    x = RNG.standard_normal(graph.inputs[0].shape).astype(np.float32)
    (exact,) = evaluate(graph, {"x": x})
    changed = assigned(graph, x, form)
    for result in (changed, optimize(changed)):
        (made,) = evaluate(result, {"x": x})
        error = np.abs(made - exact).max() / np.abs(exact).max()
        assert made.dtype == np.float32
        assert 0.0 < error < bound


def test_a_graph_without_other_precisions_is_returned_as_it_is() -> None:
    graph = block()
    assert assign_precisions(graph, Assignment()) is graph


def test_values_between_int8_layers_stay_bytes() -> None:
    graph = block()
    x = RNG.standard_normal((1, 8, 6, 6)).astype(np.float32)
    final = optimize(assigned(graph, x, INT8))
    by_name = final.producers()
    for node in final.nodes:
        if node.op in ("qconv2d", "qdense", "concat", "max_pool2d"):
            assert {final.values[name].dtype for name in node.inputs} <= {"int8", "uint8"}, str(node)
    # The residual is read as bytes, too: no relu is stored in float32 beside its bytes.
    stored = {name for node in final.nodes if node.op == "cast" for name in node.inputs}
    assert sum(final.values[name].dtype == "uint8" for name in stored) == 1
    assert not [node for node in by_name.values() if node.op in ("quantize", "dequantize")]


def test_values_between_bfloat16_layers_stay_halves() -> None:
    graph = block()
    x = RNG.standard_normal((1, 8, 6, 6)).astype(np.float32)
    changed = assigned(graph, x, BFLOAT16)
    for node in changed.nodes:
        if node.op in ("conv2d", "dense", "concat", "max_pool2d"):
            assert {changed.values[name].dtype for name in node.inputs} == {"bfloat16"}, str(node)


def test_one_layer_in_bfloat16_has_casts_around_it_alone() -> None:
    graph = block()
    first, *others = (layer.name for layer in layers_of(graph))
    changed = assign_precisions(graph, Assignment({first: BFLOAT16}))
    assert {layer.name for layer in layers_of(changed)} == {*others}
    assert sum(node.op == "cast" for node in changed.nodes) == 2  # the operand and the result; the weight is folded


def test_a_float32_layer_keeps_the_value_that_an_int8_layer_encodes() -> None:
    builder = GraphBuilder("two", [Value("x", (4, 8), "float32")])
    h = builder.emit("relu", [builder.emit("dense", ["x", builder.constant(weight(8, 8), "a")])])
    low = builder.emit("dense", [h, builder.constant(weight(8, 8), "b")])
    high = builder.emit("dense", [h, builder.constant(weight(8, 8), "c")])
    graph = prepare(builder.finish({"low": low, "high": high}))
    x = RNG.standard_normal((4, 8)).astype(np.float32)
    changed = assign_precisions(graph, Assignment({"low": INT8}, ranges_of(graph, x)))
    exact, made = evaluate(graph, {"x": x}), evaluate(changed, {"x": x})
    assert (made[1] == exact[1]).all()
    assert (made[0] != exact[0]).any()


def test_a_quantized_graph_has_no_layers_left() -> None:
    graph = block()
    x = RNG.standard_normal((1, 8, 6, 6)).astype(np.float32)
    changed = assigned(graph, x, INT8)
    assert is_quantized(changed)
    assert not is_quantized(graph)
    assert layers_of(changed) == ()


def test_forms_of_layers() -> None:
    forms = {layer.op: layer.forms for layer in (*layers_of(block()), *layers_of(attention()))}
    assert forms == {"conv2d": FORMS[:3], "dense": FORMS, "batch_matmul": (BFLOAT16, INT8)}


@pytest.mark.parametrize(
    ("low", "high", "symmetric", "expected"),
    [(0.0, 2.55, False, (0.01, 0, "uint8")), (-1.0, 1.55, False, (0.01, 100, "uint8")),
     (-1.27, 0.5, True, (0.01, 0, "int8")), (0.5, 2.55, True, (0.01, 0, "uint8"))],
)  # fmt: skip
def test_encodings_represent_zero(low: float, high: float, symmetric: bool, expected: tuple[float, int, str]) -> None:
    made = Bytes.of(low, high, is_symmetric=symmetric)
    assert (made.zero, made.dtype) == expected[1:]
    assert made.scale == pytest.approx(expected[0])


def test_weights_are_within_half_a_quantum() -> None:
    array = weight(5, 7)
    numbers, scale = quantized_weight(array, 1)
    assert np.abs(numbers).max(axis=0).tolist() == [127] * 7
    assert (np.abs(numbers * scale - array) <= scale / 2 * (1 + 1e-5)).all()


def test_a_weight_of_zeros_stays_zero() -> None:
    numbers, scale = quantized_weight(np.zeros((3, 2), np.float32), 1)
    assert not numbers.any()
    assert np.isfinite(1 / scale).all()


@pytest.mark.parametrize("form", [INT8, DYNAMIC])
def test_products_of_bytes_are_exact(form: str) -> None:
    builder = GraphBuilder("one", [Value("x", (5, 12), "float32")])
    array = weight(12, 7)
    graph = prepare(builder.finish({"y": builder.emit("dense", ["x", builder.constant(array, "w")])}))
    x = RNG.standard_normal((5, 12)).astype(np.float32)
    numbers, factors = quantized_weight(array, 1)
    if form == DYNAMIC:  # a scale for each row, and no zero point
        scale, zero = np.abs(x).max(axis=1, keepdims=True).astype(np.float64) / 127, 0
    else:
        encoding = Bytes.of(float(x.min()), float(x.max()))
        scale, zero = np.float64(encoding.scale), encoding.zero
    stored = np.round(x / scale) + zero
    wanted = (stored - zero) @ numbers.astype(np.int64) * scale * factors
    for result in (assigned(graph, x, form), optimize(assigned(graph, x, form))):
        np.testing.assert_allclose(evaluate(result, {"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
