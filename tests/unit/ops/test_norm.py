"""Normalizations against NumPy, and means of halves."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate as evaluate_graph
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.ops.norm import layer_norm
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.te.evaluate import evaluate


@pytest.mark.parametrize(("shape", "axis"), [((4, 9), 1), ((2, 3, 8), -1), ((2, 3, 8), 1)])
def test_layer_norm_is_exact_far_from_zero(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(3)
    inner = shape[axis:]
    data = (100 + rng.standard_normal(shape)).astype(np.float32)
    scale, bias = (rng.standard_normal(inner, dtype=np.float32) for _ in range(2))
    x, g, b = (te.placeholder(array.shape, name=name) for array, name in ((data, "x"), (scale, "g"), (bias, "b")))
    y = layer_norm(x, g, b, axis, 1e-5)
    (found,) = evaluate([y], {x: data, g: scale, b: bias})
    axes = tuple(range(len(shape) - len(inner), len(shape)))
    wide = data.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


LARGE: dict[str, tuple[tuple[int, ...], dict[str, Attribute]]] = {
    "normalize": ((4, 1000), {"axes": (1,), "epsilon": 1e-5, "centred": True}),
    "group_normalize": ((1, 40, 40, 8), {"axes": (1, 2), "axis": 3, "groups": 2, "epsilon": 1e-5}),
    "reduce_mean": ((4, 1000), {"axes": (1,), "keepdims": False}),
    "avg_pool2d": (
        (1, 40, 40, 8),
        {"kernel": (40, 40), "strides": (40, 40), "pads": (0, 0, 0, 0), "layout": "NHWC", "count_include_pad": False},
    ),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", LARGE)
def test_sums_of_halves_may_exceed_them(op: str, dtype: str) -> None:
    shape, attrs = LARGE[op]

    def graph_of(dtype: str) -> Graph:
        builder = GraphBuilder("net", [Value("x", shape, dtype)])
        return builder.finish({"y": builder.emit(op, ("x",), attrs)})

    graph = graph_of(dtype)
    feed = {"x": (400 + 300 * np.random.default_rng(3).standard_normal(shape)).astype(np.dtype(dtype))}
    (wanted,) = evaluate_graph(graph_of("float64"), {"x": feed["x"].astype(np.float64)})
    executor = executor_of(compile_graph(graph, Target.host()), 1)
    executor.set_input("x", feed["x"])
    executor.run()
    for found in (executor.get_output(0), evaluate_graph(graph, feed)[0]):
        np.testing.assert_allclose(np.asarray(found).astype(np.float64), wanted, rtol=2e-2, atol=2e-2)
