"""Partition: what the kernels compute, when two of them are the same task, and the counts of known networks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks.zoo import NAMES, build
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate as evaluate_graph
from retune.compiler.graph.ir import Array, Graph, Value
from retune.compiler.graph.partition.express import express, group_signature
from retune.compiler.graph.partition.fuse import fuse
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.te.evaluate import evaluate
from tests.support.attributes import CONV
from tests.support.zoo_sizes import SMALL

_SLOW = pytest.mark.slow
QUICK = ("mlp", "resnet18", "gpt2_block")
LARGE = ("bert_base", "clip_vit_b32", "smollm2_135m", "smollm2_135m_step")


def cut(graph: Graph) -> Partition:
    return partition(graph, Target.host(), HardwareParams(num_cores=2))


def run(graph: Graph, parts: Partition, inputs: Mapping[str, Array]) -> list[NDArray[Any]]:
    """The network as its kernels compute it, in NumPy."""
    values: dict[str, NDArray[Any]] = {**graph.constants, **inputs}

    def value(name: str) -> NDArray[Any]:
        if name not in values:
            values[name] = value(parts.aliases[name]).reshape(graph.values[name].shape)
        return values[name]

    for call in parts.kernels:
        dag = call.task.dag
        feeds = dict(zip(dag.inputs, map(value, call.inputs), strict=True))
        (values[call.outputs[0]],) = evaluate(dag.outputs, feeds)
    return [value(name) for name in graph.outputs]


def small_network() -> Graph:
    rng = np.random.default_rng(0)
    builder = GraphBuilder("small", [Value("x", (1, 6, 6, 8))])

    def conv(x: str) -> str:
        weight = builder.constant(rng.standard_normal((3, 3, 8, 8), dtype=np.float32) / 8, "w")
        bias = builder.constant(rng.standard_normal(8, dtype=np.float32), "b")
        return builder.emit("add", (builder.emit("conv2d", (x, weight), CONV), bias))

    first = builder.emit("relu", (conv("x"),))
    second = builder.emit("relu", (conv(first),))
    third = builder.emit("relu", (builder.emit("add", (first, conv(second))),))
    halved = builder.emit("mul", (builder.scalar(0.5, "float32"), third))
    pooled = builder.emit("reduce_mean", (halved,), {"axes": (1, 2), "keepdims": True})
    flat = builder.emit("reshape", (pooled,), {"shape": (1, 8)})
    weight = builder.constant(rng.standard_normal((8, 3), dtype=np.float32), "fc")
    return builder.finish({"scores": builder.emit("softmax", (builder.emit("dense", (flat, weight)),), {"axis": 1})})


def test_kernels_compute_the_network() -> None:
    graph = small_network()
    inputs = {"x": np.random.default_rng(1).standard_normal((1, 6, 6, 8)).astype(np.float32)}
    wanted: Any
    for found, wanted in zip(run(graph, cut(graph), inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_equal_kernels_are_one_task() -> None:
    parts = cut(small_network())
    assert [task.name for task in parts.tasks] == [
        "conv2d_3x3_c8_1x6x6x8_add_relu",
        "conv2d_3x3_c8_1x6x6x8_add_add_relu_mul",
        "reduce_mean_1x1x1x8",
        "dense_k8_1x3",
        "softmax_1x3",
    ]
    assert parts.weights == (2, 1, 1, 1, 1)
    assert parts.tunable == (True, True, True, True, True)
    tasks, weights = parts.worth_tuning()
    assert tasks == parts.tasks
    assert weights == parts.weights
    assert len({task.workload_key for task in parts.tasks}) == len(parts.tasks)


def test_what_only_moves_data_is_worth_tuning_where_it_takes_a_part_of_the_time() -> None:
    builder = GraphBuilder("net", [Value("x", (512, 512)), Value("y", (4, 4))])
    weight = builder.constant(np.ones((512, 512), np.float32), "w")
    turned = builder.emit("transpose", (builder.emit("dense", ("x", weight)),), {"perm": (1, 0)})
    small = builder.emit("transpose", ("y",), {"perm": (1, 0)})
    found = cut(builder.finish({"turned": turned, "small": small}))
    assert dict(zip([task.name for task in found.tasks], found.tunable, strict=True)) == {
        "dense_k512_512x512": True,
        "transpose_512x512": True,
        "transpose_4x4": False,
    }


@pytest.mark.parametrize("name", ["resnet18", "gpt2_block", "yolov8n", "swin_tiny"])
def test_groups_of_one_signature_have_one_expression(name: str) -> None:
    graph = optimize(load_model(build(name, **SMALL[name])))
    keys: dict[str, str] = {}
    for group in fuse(graph).groups:
        inputs, text = group_signature(graph, group)
        dag = express(graph, group)
        assert keys.setdefault(text, dag.workload_key) == dag.workload_key
        assert [graph.values[one].shape for one in inputs] == [tensor.shape for tensor in dag.inputs]
    assert len(keys) < len(fuse(graph).groups)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"number": 2.0}),
        ({"number": 0.0}, {"number": -0.0}),
        ({}, {"shape": (4, 2)}),
        ({}, {"is_constant": True}),
        ({}, {"is_squared": True}),
        ({}, {"axis": 0}),
    ],
)
def test_signatures_tell_expressions_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    graphs = [_scaled_softmax(**options) for options in (one, other)]
    texts = [group_signature(graph, group)[1] for graph in graphs for group in fuse(graph).groups]
    assert len({*texts}) == len(texts) == 2


def _scaled_softmax(
    number: float = 1.0,
    shape: tuple[int, int] = (2, 4),
    axis: int = 1,
    *,
    is_constant: bool = False,
    is_squared: bool = False,
) -> Graph:
    builder = GraphBuilder("net", [Value("x", shape), *([] if is_constant else [Value("y", shape)])])
    y = builder.constant(np.ones(shape, np.float32), "y") if is_constant else "y"
    made = builder.emit("softmax", ("x",), {"axis": axis})
    made = builder.emit("mul", (made, builder.scalar(number, "float32")))
    return builder.finish({"z": builder.emit("add", (made, made if is_squared else y))})


def _residual(order: tuple[int, int], prefix: str) -> Graph:
    builder = GraphBuilder(prefix, [Value(f"{prefix}_x", (1, 4, 4, 8)), Value(f"{prefix}_y", (1, 4, 4, 8))])
    weight = builder.constant(np.ones((3, 3, 8, 8), np.float32), f"{prefix}_w")
    conv = builder.emit("conv2d", (f"{prefix}_x", weight), CONV, name=f"{prefix}_conv")
    operands = (conv, f"{prefix}_y")
    return builder.finish({f"{prefix}_out": builder.emit("add", (operands[order[0]], operands[order[1]]))})


def test_keys_depend_on_neither_names_nor_operand_order() -> None:
    one, two = cut(_residual((0, 1), "one")), cut(_residual((1, 0), "two"))
    assert one.tasks[0].workload_key == two.tasks[0].workload_key
    assert one.kernels[0].inputs == ("one_x", "one_w", "one_y")
    assert two.kernels[0].inputs == ("two_x", "two_w", "two_y")


def test_only_a_weight_of_its_own_may_be_packed() -> None:
    builder = GraphBuilder("net", [Value("x", (8, 8)), Value("v", (8, 8))])
    weight = builder.constant(np.ones((8, 8), np.float32), "w")
    own = builder.emit("dense", ("x", weight))
    fed = builder.emit("dense", (own, "v"))
    both = builder.emit("add", (builder.emit("dense", (fed, weight)), weight))
    free = [len(task.dag.layout_free) for task in cut(builder.finish({"out": both})).tasks]
    assert free == [1, 0, 0]


COUNTS: dict[str, tuple[int, int, int]] = {
    "bert_base": (125, 11, 7),
    "clip_vit_b32": (126, 12, 9),
    "convnext_tiny": (84, 27, 26),
    "dcgan": (6, 6, 5),
    "ddpm_unet": (198, 71, 55),
    "efficientnet_b0": (116, 69, 62),
    "gpt2_block": (13, 9, 9),
    "hifi_gan": (107, 71, 62),
    "minilm_l6": (70, 17, 10),
    "mlp": (3, 3, 3),
    "mobilenet_v2": (55, 33, 33),
    "r3d_18": (23, 18, 17),
    "resnet18": (24, 19, 18),
    "resnet50": (57, 31, 30),
    "sam2_tiny_encoder": (166, 78, 49),
    "segformer_b0": (119, 52, 47),
    "smollm2_135m": (612, 25, 10),
    "smollm2_135m_step": (519, 22, 15),
    "swin_tiny": (145, 51, 37),
    "unet": (28, 24, 23),
    "vit_small": (139, 14, 9),
    "whisper_tiny_encoder": (44, 11, 9),
    "whisper_tiny_step": (80, 16, 14),
    "yolov8n": (82, 67, 55),
}
"""Calls of kernels, distinct kernels, and those worth tuning, of each network of the zoo at its full size."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=_SLOW if name in LARGE else () if name in QUICK else pytest.mark.long) for name in NAMES],
)
def test_counts_of_known_networks(name: str) -> None:
    parts = cut(optimize(load_model(build(name))))
    assert (len(parts.kernels), len(parts.tasks), sum(parts.tunable)) == COUNTS[name]
    assert sum(parts.weights) == len(parts.kernels)
    heavy = [parts.weights[index] for index, task in enumerate(parts.tasks) if "conv" in task.name]
    assert sum(heavy) == CONVOLUTIONS.get(name, 0)


CONVOLUTIONS = {
    "clip_vit_b32": 1, "convnext_tiny": 22, "dcgan": 4, "ddpm_unet": 65, "efficientnet_b0": 81, "hifi_gan": 78,
    "mobilenet_v2": 52, "r3d_18": 20, "resnet18": 20, "resnet50": 53, "sam2_tiny_encoder": 5, "segformer_b0": 23,
    "swin_tiny": 1, "unet": 23, "vit_small": 1, "whisper_tiny_encoder": 2, "yolov8n": 66,
}  # fmt: skip
"""Those of the definitions, but for the first layer of DCGAN, a matrix product, and the linear layers of SegFormer's
decoder, three of which are convolutions, and the two after upsampled maps of YOLOv8, each of which became two."""


def _edited(model: onnx.ModelProto) -> onnx.ModelProto:
    """Other weights and names, a node that does nothing, and a second classifier beside the first."""
    edited = onnx.ModelProto()
    edited.CopyFrom(model)
    graph = edited.graph
    fixed = {value.name for value in (*graph.input, *graph.output)}
    for node in graph.node:
        node.name = f"renamed_{node.name}"
        node.input[:] = [name if name in fixed else f"renamed_{name}" for name in node.input]
        node.output[:] = [name if name in fixed else f"renamed_{name}" for name in node.output]
    for tensor in graph.initializer:
        tensor.name = f"renamed_{tensor.name}"
    weight = np.ones((17, 256), np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "more_weight"))
    graph.node.append(onnx.helper.make_node("Identity", ["renamed_features"], ["same_features"]))
    graph.node.append(onnx.helper.make_node("Gemm", ["same_features", "more_weight"], ["more"], transB=1))
    graph.output.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1, 17]))
    return edited


def test_keys_survive_unrelated_edits_of_the_network() -> None:
    sizes = {"image": 64, "width": 8}
    before = cut(optimize(load_model(build("resnet50", **sizes))))
    after = cut(optimize(load_model(_edited(build("resnet50", **sizes, seed=3)))))
    old, new = ([task.workload_key for task in parts.tasks] for parts in (before, after))
    assert [key for key in new if key in old] == old
    (added,) = (task for task in after.tasks if task.workload_key not in old)
    assert added.name == "dense_k256_1x17"
    assert [weight for key, weight in zip(new, after.weights, strict=True) if key in old] == list(before.weights)
