"""Small graphs for tests: builders by hand, and a strategy for random ones."""

import numpy as np
from hypothesis import strategies as st

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Graph, Value
from tests.support.attributes import CONV


def start() -> tuple[GraphBuilder, str]:
    """A builder and its only input."""
    builder = GraphBuilder("net", [Value("x", (1, 4, 4, 8))])
    return builder, "x"


def conv(builder: GraphBuilder, x: str, name: str = "conv") -> str:
    """A 3 x 3 convolution of `x` with a constant weight."""
    weight = builder.constant(np.linspace(-0.2, 0.2, 576, dtype=np.float32).reshape(3, 3, 8, 8), "w")
    return builder.emit("conv2d", (x, weight), CONV, name=name)


def joined_conv(builder: GraphBuilder, one: str, other: str) -> str:
    """A 3 x 3 convolution of two values end to end along the channels."""
    joined = builder.emit("concat", (one, other), {"axis": 3})
    weight = builder.constant(np.linspace(-0.2, 0.2, 1152, dtype=np.float32).reshape(3, 3, 16, 8), "w")
    return builder.emit("conv2d", (joined, weight), CONV)


def bias(builder: GraphBuilder) -> str:
    """One number a channel."""
    return builder.constant(np.ones(8, np.float32), "b")


@st.composite
def small_graphs(draw: st.DrawFn) -> Graph:
    """Small networks of one shape in which any node may read any earlier value."""
    builder, x = start()
    values = [x]
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(["relu", "add", "maximum", "conv", "joined", "softmax", "twice"]))
        operands = [draw(st.sampled_from(values)) for _ in range(2)]
        if op == "conv":
            values.append(conv(builder, operands[0]))
        elif op == "joined":
            values.append(joined_conv(builder, *operands))
        elif op == "twice":
            turned = builder.emit("reshape", operands[:1], {"shape": (4, 4, 8)})
            values.append(builder.emit("reshape", (turned,), {"shape": (1, 4, 4, 8)}))
        elif op == "softmax":
            values.append(builder.emit(op, operands[:1], {"axis": 3}))
        else:
            values.append(builder.emit(op, operands[: 1 if op == "relu" else 2]))
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=3, unique=True))
    return builder.finish({f"out{place}": name for place, name in enumerate(outputs)})
