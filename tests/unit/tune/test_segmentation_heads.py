"""Heads of segmentation and detection networks: few kernels, nothing copied between them, ONNX Runtime's results."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.pipeline import optimize
from retune.compiler.model import RandomModel
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.steps import load_steps
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.extract import extract_network
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from tests.support.property.checks import checked
from tests.support.property.programs import inputs_of

BILINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


class Network:
    """Nodes and seeded weights of an ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(7)

    def constant(self, array: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return f"c{len(self.constants) - 1}"

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return self.constant((self._rng.standard_normal(shape) * scale).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def upsample(self, x: str, factor: int, attributes: dict[str, str]) -> str:
        return self.add("Resize", x, "", self.constant(np.array([1, 1, factor, factor], np.float32)), **attributes)

    def model(self, inputs: Mapping[str, tuple[int, ...]], *outputs: str) -> onnx.ModelProto:
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "c", "h", "w"]) for name in outputs]
        graph = helper.make_graph(self.nodes, "head", given, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def dilated() -> onnx.ModelProto:
    """Convolutions of rates 2, 8 and 12 over 6x6 pixels, as of DeepLab: the last two see nothing but their center."""
    net = Network()
    parts = [net.add("Relu", net.add("Conv", "x", net.weight(8, 6, 1, 1)))]
    for rate in (2, 8, 12):
        y = net.add("Conv", "x", net.weight(8, 6, 3, 3), pads=[rate] * 4, dilations=[rate, rate])
        parts.append(net.add("Relu", y))
    y = net.add("Conv", net.add("Concat", *parts, axis=1), net.weight(5, 32, 1, 1), net.weight(5))
    return net.model({"x": (1, 6, 6, 6)}, net.upsample(y, 4, BILINEAR))


def pyramid_of_tokens() -> onnx.ModelProto:
    """Projected tokens of four sizes, upsampled, joined and convolved, as of SegFormer."""
    net, parts = Network(), []
    inputs = {f"x{level}": (1, 4 + 2 * level, 16 >> level, 16 >> level) for level in range(4)}
    for level, (name, (_, channels, size, _)) in enumerate(inputs.items()):
        y = net.add("Reshape", name, net.constant(np.array([1, channels, size * size])))
        y = net.add("MatMul", net.add("Transpose", y, perm=[0, 2, 1]), net.weight(channels, 16))
        y = net.add("Transpose", net.add("Add", y, net.weight(16)), perm=[0, 2, 1])
        y = net.add("Reshape", y, net.constant(np.array([1, 16, size, size])))
        parts.append(net.upsample(y, 2**level, BILINEAR) if level else y)
    y = net.add("Relu", net.add("Conv", net.add("Concat", *parts, axis=1), net.weight(16, 64, 1, 1), net.weight(16)))
    return net.model(inputs, y)


def top_down() -> onnx.ModelProto:
    """A feature pyramid: each level is added to the upsampled one above."""
    net = Network()
    inputs = {f"x{level}": (1, 4 + 2 * level, 16 >> level, 16 >> level) for level in range(3)}
    levels = [net.add("Conv", name, net.weight(8, shape[1], 1, 1), net.weight(8)) for name, shape in inputs.items()]
    for level in (1, 0):
        levels[level] = net.add("Add", net.upsample(levels[level + 1], 2, NEAREST), levels[level])
    return net.model(inputs, *(net.add("Conv", y, net.weight(8, 8, 3, 3), pads=[1] * 4) for y in levels))


HEADS = {"dilated": dilated, "pyramid of tokens": pyramid_of_tokens, "top down": top_down}


def _kernels(graph: Graph) -> Counter[str]:
    return Counter(group.core.op for group in fuse(graph).groups)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_computes_what_onnxruntime_does(name: str) -> None:
    model = HEADS[name]()
    rng = np.random.default_rng(3)
    executor = GraphExecutor(compile_graph(optimize(load_model(model)), Target.host()))
    shapes, _ = executor.get_input_info()
    feed = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    for key, array in feed.items():
        executor.set_input(key, array)
    executor.run()
    for index, wanted in enumerate(OnnxRuntime(model.SerializeToString(), 1).run(feed)):
        np.testing.assert_allclose(executor.get_output(index), np.asarray(wanted, np.float32), rtol=1e-4, atol=1e-5)


def test_taps_that_only_meet_padding_are_gone() -> None:
    graph = optimize(load_model(dilated()))
    taps = sorted(graph.values[node.inputs[1]].shape[:2] for node in graph.nodes if node.op == "conv2d")
    assert taps == [(1, 1)] * 4 + [(3, 3)]


def test_tokens_are_projected_and_convolved_at_once_before_they_are_upsampled() -> None:
    graph = optimize(load_model(pyramid_of_tokens()))
    sizes = sorted(graph.values[node.output].shape[1] for node in graph.nodes if node.op in ("conv2d", "dense"))
    assert sizes == [2, 4, 8, 16]
    assert _kernels(graph)["conv2d"] == 4
    assert _kernels(graph).keys() == {"conv2d", "transpose"}, (
        "the convolution of the largest reads the others upsampled"
    )


def test_an_upsampled_level_is_added_where_it_is_read() -> None:
    graph = optimize(load_model(top_down()))
    # Three images come in channels-first, and three results go out so.
    assert _kernels(graph) == {"conv2d": 6, "transpose": 6}


@pytest.mark.parametrize("name", HEADS)
def test_programs_that_the_search_proposes_for_a_head_are_right(name: str, tmp_path: Path) -> None:
    onnx.save(HEADS[name](), str(tmp_path / "head.onnx"))
    network = extract_network(str(tmp_path / "head.onnx"), str(Target.host()), 2)
    upsampled = [task for task in network.partition.tasks if "resample" in task.name]
    assert upsampled
    for task in upsampled:
        values = inputs_of(task.dag, np.random.default_rng(1))
        for candidate in SketchPolicy(task, RandomModel(0), SearchOptions(population=64, generations=1), 5).ask(3, 0):
            checked(task.dag, load_steps(candidate.steps), values, 2)
