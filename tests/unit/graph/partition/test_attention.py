"""What is left of a transformer's layer: a few kernels."""

from typing import Any

import numpy as np
import pytest

from benchmarks import zoo
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph, Value
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.network import CompiledNetwork
from tests.support.encoder_layer import encoder_layer
from tests.support.small_kernels import GPU

PROJECTION = "dense+add"
BERT = [
    *[PROJECTION] * 3,
    "transpose",
    "contract+mul+add",
    "softmax",
    "contract",
    "dense+add+add",
    "normalize+mul+add",
    "dense+add+gelu",
    "dense+add+add",
    "normalize+mul+add",
]
VISION = [
    "normalize+mul+add",
    *[PROJECTION] * 3,
    "transpose",
    "contract+mul",
    "softmax",
    "contract",
    "dense+add+add",
    "normalize+mul+add",
    "dense+add+gelu",
    "dense+add+add",
]


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("options", "wanted"), [({}, BERT), ({"masked": False, "norm_first": True}, VISION)])
def test_the_kernels_of_an_encoder_layer(options: dict[str, Any], wanted: list[str], joint: bool) -> None:
    graph = encoder_layer(joint=joint, **options)
    best = optimize(graph)
    rng = np.random.default_rng(1)
    feed = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    (ours,), (theirs,) = evaluate(best, feed), evaluate(graph, feed)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert sorted("+".join(node.op for node in group.nodes) for group in fuse(best).groups) == sorted(wanted)


@pytest.mark.parametrize("name", ["bert_base", "vit_small"])
def test_the_kernels_of_attention_become_one_on_a_cpu(name: str) -> None:
    graph = optimize(load_model(zoo.build(name, layers=1)))
    cpu, gpu = (partition(graph, target, HardwareParams(num_cores=2)) for target in (Target("llvm"), GPU))
    (joined,) = (call for call in cpu.kernels if "attention" in call.name)
    apart = [call for call in gpu.kernels if set(call.nodes) <= set(joined.nodes)]
    assert [node for call in apart for node in call.nodes] == list(joined.nodes)
    assert len(apart) == 3
    assert len(cpu.kernels) == len(gpu.kernels) - 2


def test_of_two_attentions_in_a_chain_one_is_joined() -> None:
    shapes = {"q": (2, 64, 16), "k": (2, 16, 40), "v": (2, 40, 48), "w": (2, 48, 32)}
    builder = GraphBuilder("chain", [Value(name, shape, "float32") for name, shape in shapes.items()])
    result = "q"
    for name in "kvw":
        result = builder.emit("batch_matmul", [result, name])
        result = result if name == "w" else builder.emit("softmax", [result], {"axis": 2})
    network = _checked(builder.finish({"y": result}))
    assert sum(kernel.name.startswith("attention") for kernel in network.kernels) == 1


def test_what_follows_attention_stands_behind_it() -> None:
    shapes = {"q": (8, 64, 16), "k": (8, 16, 64), "v": (8, 64, 48)}
    builder = GraphBuilder("gated", [Value(name, shape, "float32") for name, shape in shapes.items()])
    shares = builder.emit("softmax", [builder.emit("batch_matmul", ["q", "k"])], {"axis": 2})
    result = builder.emit("silu", [builder.emit("batch_matmul", [shares, "v"])])
    network = _checked(builder.finish({"y": result}))
    assert [kernel.name.split("_")[0] for kernel in network.kernels] == ["attention", "silu"]


def _checked(graph: Graph) -> CompiledNetwork:
    """The compiled network, which gives what the evaluation of the graph gives."""
    network = compile_graph(graph, Target.host(), threads=1)
    rng = np.random.default_rng(1)
    feed = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in graph.inputs}
    executor = executor_of(network, 1)
    for name, array in feed.items():
        executor.set_input(name, array)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0), evaluate(graph, feed)[0], rtol=1e-4, atol=1e-5)
    return network
