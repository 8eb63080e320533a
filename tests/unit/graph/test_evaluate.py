"""The interpreter against numbers worked out by hand or written as plain loops."""

from itertools import product

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate, evaluate_node
from retune.compiler.graph.ir import Attribute, Node, Value


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution_is_its_definition(groups: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 4, 6, 5)), rng.standard_normal((8, 4 // groups, 3, 2))
    attrs: dict[str, Attribute] = {"strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 2)}
    attrs |= {"groups": groups, "layout": "NCHW"}
    result = evaluate_node(Node("conv2d", ("x", "w"), ("y",), attrs), [x, w])
    expected = np.zeros((1, 8, 3, 4))
    taken, made = 4 // groups, 8 // groups
    for o, i, j in product(range(8), range(3), range(4)):
        for c, p, q in product(range(taken), range(3), range(2)):
            row, column = 2 * i + p - 1, j + 2 * q
            if 0 <= row < 6 and column < 5:
                expected[0, o, i, j] += x[0, o // made * taken + c, row, column] * w[o, c, p, q]
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_average_pool_counts_padding_only_if_asked() -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    attrs: dict[str, Attribute] = {"kernel": (2, 2), "strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NCHW"}
    inside = evaluate_node(Node("avg_pool2d", ("x",), ("y",), {**attrs, "count_include_pad": False}), [x])
    window = evaluate_node(Node("avg_pool2d", ("x",), ("y",), {**attrs, "count_include_pad": True}), [x])
    assert inside.ravel().tolist() == [1, 1, 1, 1]
    assert window.ravel().tolist() == [0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_division_of_floats_does_not_truncate(dtype: str) -> None:
    x = np.array([-3, 1, 5]).astype(dtype)
    result = evaluate_node(Node("div", ("x", "y"), ("z",)), [x, np.array([2]).astype(dtype)])
    assert result.dtype.name == dtype
    assert result.astype("float64").tolist() == [-1.5, 0.5, 2.5]


def test_integer_division_truncates() -> None:
    a, b = np.asarray([7, -7, 7, -7]), np.asarray([2, 2, -2, -2])
    assert evaluate_node(Node("div", ("a", "b"), ("y",)), [a, b]).tolist() == [3, -3, -3, 3]


def test_inputs_are_checked() -> None:
    builder = GraphBuilder("g", [Value("x", (2,))])
    graph = builder.finish({"y": builder.emit("relu", ["x"])})
    with pytest.raises(DefinitionError, match=r"no array for input x: float32\[2\]"):
        evaluate(graph, {})
    with pytest.raises(DefinitionError, match=r"got float64\[2\]"):
        evaluate(graph, {"x": np.zeros(2)})
    (result,) = evaluate(graph, {"x": np.asarray([-1, 3], np.float32)})
    assert result.tolist() == [0, 3]
