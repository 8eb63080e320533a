"""The whole pipeline keeps the meaning of random graphs, and blames the pass that breaks one."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.verify import verify


def random_graph(seed: int, count: int = 14) -> Graph:
    """A chain with branches of layers on (N, C, H, W) values whose H and W stay."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"random{seed}", [Value("x", (2, 4, 5, 5))])
    pool = ["x"]

    def weight(*shape: int) -> str:
        return builder.constant(rng.standard_normal(shape).astype(np.float32) / 2, "w")

    def convolution(x: str) -> str:
        taken, made = builder.value(x).shape[1], int(rng.choice([4, 8]))
        groups = int(rng.choice([1, 2, taken]))
        made = taken if groups == taken else made
        attrs: dict[str, Attribute] = {"strides": (1, 1), "dilations": (1, 1), "layout": "NCHW"}
        attrs |= {"pads": (1, 1, 1, 1), "groups": groups}
        return builder.emit("conv2d", [x, weight(made, taken // groups, 3, 3)], attrs)

    def batch_norm(x: str) -> str:
        channels = builder.value(x).shape[1]
        variance = builder.constant(rng.uniform(0.5, 2, channels).astype(np.float32), "v")
        statistics = [weight(channels), weight(channels), weight(channels), variance]
        return builder.emit("batch_norm", [x, *statistics], {"axis": 1, "epsilon": 1e-5})

    def gate(x: str) -> str:
        mean = builder.emit("reduce_mean", [x], {"axes": (2, 3), "keepdims": True})
        return builder.emit("mul", [x, builder.emit("sigmoid", [mean])])

    def swapped(x: str) -> str:
        return builder.emit("transpose", [x], {"perm": (0, 1, 3, 2)})

    def max_pool(x: str) -> str:
        attrs: dict[str, Attribute] = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1)}
        attrs |= {"dilations": (1, 1), "layout": "NCHW"}
        return builder.emit("max_pool2d", [x], attrs)

    def joined(x: str) -> str:
        other = str(rng.choice(pool))
        if builder.value(other).shape == builder.value(x).shape:
            return builder.emit("add", [other, x])
        return builder.emit("slice", [builder.emit("concat", [other, x], {"axis": 1})], _first_four)

    def regrouped(x: str) -> str:
        n, channels, height, width = builder.value(x).shape
        split = builder.emit("reshape", [x], {"shape": (n, 2, channels // 2, height, width)})
        turned = builder.emit("transpose", [split], {"perm": (0, 2, 1, 3, 4)})
        return builder.emit("reshape", [turned], {"shape": (n, channels, height, width)})

    layers = [convolution, convolution, batch_norm, gate, swapped, max_pool, joined, regrouped]
    layers += [lambda x: builder.emit("tanh", [x]), lambda x: builder.emit("add", [x, weight(1, 1, 1)])]
    layers += [lambda x: builder.emit("sub", [weight(5, 1), x]), lambda x: builder.emit("softmax", [x], {"axis": 1})]
    for index in rng.integers(len(layers), size=count):
        pool.append(layers[index](pool[-1]))
    flat = builder.emit("reshape", [pool[-1]], {"shape": (2, builder.value(pool[-1]).size // 2)})
    logits = builder.emit("dense", [flat, weight(builder.value(flat).shape[1], 3)])
    return builder.finish({"logits": logits, "features": pool[count // 2]})


_first_four: dict[str, Attribute] = {"starts": (0, 0, 0, 0), "stops": (2, 4, 5, 5), "steps": (1, 1, 1, 1)}


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_meaning(seed: int) -> None:
    graph = random_graph(seed)
    verify(graph)
    x = np.random.default_rng(seed).standard_normal((2, 4, 5, 5)).astype(np.float32)
    best = optimize(graph)
    assert best.outputs == graph.outputs
    assert not any(node.op == "batch_norm" for node in best.nodes)
    for ours, theirs in zip(evaluate(best, {"x": x}), evaluate(graph, {"x": x}), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    assert str(optimize(graph)) == str(best)


def forget_nodes(graph: Graph) -> Graph:
    return replace(graph, nodes=())


def test_the_pass_to_blame_is_named() -> None:
    with pytest.raises(DefinitionError, match="after pass forget_nodes: graph random0: output logits is not computed"):
        optimize(random_graph(0), (forget_nodes,))
