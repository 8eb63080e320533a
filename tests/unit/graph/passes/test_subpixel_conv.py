"""Transposed convolutions become their phases, and compute the same."""

import numpy as np
import pytest

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.partition.express import express, group_signature
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.passes.subpixel_conv import split_by_phase
from retune.compiler.graph.pipeline import optimize
from retune.compiler.graph.verify import verify
from retune.compiler.te.evaluate import evaluate as evaluate_tensors


def _graph(kernel: int, stride: int, pads: tuple[int, ...], *, fed: bool = False, follow: bool = False) -> Graph:
    rng = np.random.default_rng(kernel * 10 + stride)
    builder = GraphBuilder("net", [Value("x", (2, 4, 5, 3))])
    weight = rng.standard_normal((kernel, kernel, 3, 6), dtype=np.float32)
    name = builder.input(Value("w", weight.shape)) if fed else builder.constant(weight, "w")
    attrs: dict[str, Attribute] = {"strides": (stride, stride), "pads": pads, "layout": "NHWC"}
    y = builder.emit("conv_transpose2d", ["x", name], attrs)
    if follow:
        bias = builder.constant(rng.standard_normal(6, dtype=np.float32), "b")
        y = builder.emit("relu", [builder.emit("add", [y, bias])])
    return builder.finish({"y": y})


@pytest.mark.parametrize(
    ("kernel", "stride", "pads"),
    [
        (4, 2, (1, 1, 1, 1)),
        (2, 2, (0, 0, 0, 0)),
        (3, 2, (1, 1, 0, 0)),
        (3, 2, (0, 0, 1, 1)),
        (5, 2, (2, 2, 1, 1)),
        (5, 3, (1, 1, 1, 1)),
        (6, 3, (5, 5, -2, -2)),
        (1, 2, (0, 0, -1, -1)),
        (2, 3, (0, 0, -1, -1)),
    ],
)
def test_the_phases_are_the_transposed_convolution(kernel: int, stride: int, pads: tuple[int, ...]) -> None:
    graph = _graph(kernel, stride, pads)
    phased = split_by_phase(graph)
    verify(phased)
    assert [node.op for node in phased.nodes] == ["conv_phases2d", "reshape"]
    x = {"x": np.random.default_rng(1).standard_normal((2, 4, 5, 3), dtype=np.float32)}
    (wanted,), (found,) = evaluate(graph, x), evaluate(phased, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    (group,) = fuse(phased).groups
    (inputs, _), dag = group_signature(phased, group), express(phased, group)
    values = {**phased.constants, **x}
    feeds = {tensor: values[name] for tensor, name in zip(dag.inputs, inputs, strict=True)}
    (computed,) = evaluate_tensors(dag.outputs, feeds)
    np.testing.assert_allclose(np.reshape(computed, wanted.shape), wanted, rtol=1e-5, atol=1e-5)


def test_what_follows_is_computed_with_the_phases() -> None:
    graph = optimize(_graph(4, 2, (1, 1, 1, 1), follow=True))
    (group,) = fuse(graph).groups
    assert [node.op for node in group.nodes] == ["conv_phases2d", "add", "relu"]
    x = {"x": np.random.default_rng(1).standard_normal((2, 4, 5, 3), dtype=np.float32)}
    (wanted,), (found,) = evaluate(_graph(4, 2, (1, 1, 1, 1), follow=True), x), evaluate(graph, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
