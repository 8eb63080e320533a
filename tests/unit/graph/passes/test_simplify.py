"""Each rule removes what it says, and the result computes the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.passes.simplify import SETTLING_RULES, Simplify
from retune.compiler.graph.verify import verify

Write = Callable[[GraphBuilder], str]

RNG = np.random.default_rng(0)


def weight(b: GraphBuilder, *shape: int) -> str:
    return b.constant(RNG.standard_normal(shape, dtype=np.float32), "w")


def transpose(b: GraphBuilder, x: str, *perm: int) -> str:
    return b.emit("transpose", [x], {"perm": perm})


def reshape(b: GraphBuilder, x: str, *shape: int) -> str:
    return b.emit("reshape", [x], {"shape": shape})


def dense(b: GraphBuilder, rows: int, columns: int) -> str:
    return b.emit("dense", [reshape(b, "x", 120 // rows, rows), weight(b, rows, columns)])


def conv(b: GraphBuilder, x: str) -> str:
    attrs: dict[str, Attribute] = {
        "strides": (1, 1),
        "pads": (0, 1, 0, 1),
        "dilations": (1, 1),
        "groups": 1,
        "layout": "NCHW",
    }
    return b.emit("conv2d", [x, weight(b, 2, 3, 3, 3)], attrs)


def pad(b: GraphBuilder, x: str, before: tuple[int, ...], after: tuple[int, ...], value: float = 0.0) -> str:
    return b.emit("pad", [x], {"pads_before": before, "pads_after": after, "value": value})


def reduce(b: GraphBuilder, x: str, axes: tuple[int, ...], *, keepdims: bool) -> str:
    return b.emit("reduce_mean", [x], {"axes": axes, "keepdims": keepdims})


BACK, FORTH = (0, 3, 1, 2), (0, 2, 3, 1)

# what is written on x: float32[2, 3, 4, 5], and the operators that are left of it
CASES: dict[str, tuple[Write, list[str]]] = {
    "identity": (lambda b: b.emit("relu", [b.emit("identity", ["x"])]), ["relu"]),
    "cast": (lambda b: b.emit("relu", [b.emit("cast", ["x"], {"dtype": "float32"})]), ["relu"]),
    "zero": (lambda b: b.emit("relu", [b.emit("add", ["x", b.scalar(0, "float32")])]), ["relu"]),
    "one": (lambda b: b.emit("relu", [b.emit("div", ["x", b.scalar(1, "float32")])]), ["relu"]),
    "sums": (lambda b: b.emit("sub", [b.emit("add", [weight(b, 5), "x"]), weight(b, 3, 1, 1)]), ["add"]),
    "products": (lambda b: b.emit("div", [b.emit("mul", ["x", weight(b, 5)]), b.scalar(4, "float32")]), ["mul"]),
    "broadcast": (
        lambda b: b.emit("add", ["x", b.emit("broadcast_to", [b.emit("relu", ["x"])], {"shape": (2, 3, 4, 5)})]),
        ["relu", "add"],
    ),
    "pad": (lambda b: conv(b, pad(b, "x", (0, 0, 1, 0), (0, 0, 2, 1))), ["conv2d"]),
    "pad of ones": (lambda b: conv(b, pad(b, "x", (0, 0, 1, 0), (0, 0, 2, 1), 1.0)), ["pad", "conv2d"]),
    "pad of the batch": (lambda b: conv(b, pad(b, "x", (1, 0, 0, 0), (0, 0, 0, 0))), ["pad", "conv2d"]),
    "reshapes": (lambda b: reshape(b, reshape(b, "x", 6, 20), 120), ["reshape"]),
    "reshape to itself": (lambda b: b.emit("relu", [reshape(b, "x", 2, 3, 4, 5)]), ["relu"]),
    "there and back": (lambda b: b.emit("relu", [transpose(b, transpose(b, "x", *BACK), *FORTH)]), ["relu"]),
    "two become one": (lambda b: transpose(b, transpose(b, "x", 1, 0, 2, 3), 0, 1, 3, 2), ["transpose"]),
    "unit axes": (lambda b: transpose(b, reshape(b, "x", 1, 1, 12, 10), 1, 2, 0, 3), ["reshape"]),
    "slice of all": (
        lambda b: b.emit(
            "relu",
            [b.emit("slice", ["x"], {"starts": (0,) * 4, "stops": (2, 3, 4, 5), "steps": (1,) * 4})],
        ),
        ["relu"],
    ),
    "through relu": (lambda b: transpose(b, b.emit("relu", [transpose(b, "x", *BACK)]), *FORTH), ["relu"]),
    "through a sum": (
        lambda b: transpose(b, b.emit("add", [transpose(b, "x", *BACK), weight(b, 5, 1, 1)]), *FORTH),
        ["add"],
    ),
    "through a sum of two": (
        lambda b: transpose(
            b, b.emit("add", [transpose(b, b.emit("exp", ["x"]), *BACK), transpose(b, "x", *BACK)]), *FORTH
        ),
        ["exp", "add"],
    ),
    "through a gate": (
        lambda b: transpose(
            b,
            b.emit("mul", [transpose(b, "x", *BACK), reduce(b, transpose(b, "x", *BACK), (2, 3), keepdims=True)]),
            *FORTH,
        ),
        ["reduce_mean", "mul"],
    ),
    "through a mean": (lambda b: reduce(b, transpose(b, "x", *BACK), (2, 3), keepdims=False), ["reduce_mean"]),
    "through a mean that reorders": (
        lambda b: reduce(b, transpose(b, "x", 3, 2, 1, 0), (1, 2), keepdims=False),
        ["reduce_mean", "transpose"],
    ),
    "through softmax": (
        lambda b: transpose(b, b.emit("softmax", [transpose(b, "x", *BACK)], {"axis": 1}), *FORTH),
        ["softmax"],
    ),
    "through concat": (
        lambda b: transpose(
            b,
            b.emit("concat", [transpose(b, b.emit("exp", ["x"]), *BACK), transpose(b, "x", *BACK)], {"axis": 1}),
            *FORTH,
        ),
        ["exp", "concat"],
    ),
    "through pad": (
        lambda b: transpose(b, pad(b, transpose(b, "x", *BACK), (0, 1, 2, 3), (1, 0, 0, 0)), *FORTH),
        ["pad"],
    ),
    "through slice": (
        lambda b: transpose(
            b,
            b.emit(
                "slice",
                [transpose(b, "x", *BACK)],
                {"starts": (0, 1, 0, 2), "stops": (2, 5, 3, 4), "steps": (1, 2, 1, 1)},
            ),
            *FORTH,
        ),
        ["slice"],
    ),
    "not through an unrelated sum": (
        lambda b: b.emit("add", [transpose(b, reshape(b, "x", 6, 20), 1, 0), reshape(b, "x", 20, 6)]),
        ["reshape", "transpose", "reshape", "add"],
    ),
    "into the rows of a product": (
        lambda b: b.emit("dense", [reshape(b, transpose(b, "x", *BACK), 2, 60), weight(b, 60, 7)]),
        ["reshape", "dense"],
    ),
    "reshape below bias and relu": (
        lambda b: b.emit("relu", [b.emit("add", [reshape(b, "x", 1, 6, 4, 5), weight(b, 5)])]),
        ["add", "relu", "reshape"],
    ),
    "reshape below the channels of a product": (
        lambda b: b.emit("relu", [b.emit("add", [reshape(b, dense(b, 60, 24), 2, 2, 3, 4), weight(b, 4)])]),
        ["reshape", "dense", "add", "relu", "reshape"],
    ),
    "not below the channels of anything else": (
        lambda b: b.emit("add", [reshape(b, b.emit("tanh", ["x"]), 3, 2, 20), weight(b, 3, 1, 1)]),
        ["tanh", "reshape", "add"],
    ),
    "not below a sum that is larger": (
        lambda b: b.emit("add", [reshape(b, dense(b, 60, 24), 1, 12, 4), weight(b, 3, 1, 1)]),
        ["reshape", "dense", "reshape", "add"],
    ),
    "reshape below a gate": (
        lambda b: b.emit("mul", [reshape(b, "x", 6, 20), b.emit("tanh", [reshape(b, "x", 6, 20)])]),
        ["tanh", "mul", "reshape"],
    ),
    "two different reshapes": (
        lambda b: b.emit(
            "mul", [reshape(b, "x", 6, 20), reshape(b, b.emit("tanh", [transpose(b, "x", *BACK)]), 6, 20)]
        ),
        ["reshape", "tanh", "transpose", "reshape", "mul"],
    ),
}


def written(write: Write) -> Graph:
    builder = GraphBuilder("case", [Value("x", (2, 3, 4, 5))])
    graph = builder.finish({"y": write(builder)})
    verify(graph)
    return graph


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    write, left = CASES[case]
    graph = written(write)
    simple = Simplify(rules=SETTLING_RULES).apply(Simplify().apply(graph))
    verify(simple)
    assert [node.op for node in simple.nodes] == left
    x: np.ndarray[Any, Any] = np.random.default_rng(1).standard_normal((2, 3, 4, 5), dtype=np.float32)
    for ours, theirs in zip(evaluate(simple, {"x": x}), evaluate(graph, {"x": x}), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_constants_lose_leading_ones() -> None:
    graph = Simplify().apply(written(lambda b: b.emit("mul", ["x", b.constant(np.ones((1, 1, 1, 5), np.float32) * 2)])))
    assert [array.shape for array in graph.constants.values()] == [(5,)]


def test_no_rule_divides_by_zero() -> None:
    graph = Simplify().apply(written(lambda b: b.emit("div", ["x", b.scalar(0, "float32")])))
    assert [node.op for node in graph.nodes] == ["div"]


def test_simplifying_twice_changes_nothing() -> None:
    for write, _ in CASES.values():
        once = Simplify().apply(written(write))
        assert str(Simplify().apply(once)) == str(once)
