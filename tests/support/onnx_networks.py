"""Small ONNX models that tests of exports to ONNX Runtime share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Arrays = Mapping[str, NDArray[Any]]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Arrays | None = None,
    known: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, held, value_info=known)
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("ai.onnx.ml", 3),
    ]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_tensor(name: str, shape: Sequence[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def draw_weights(*shape: int) -> NDArray[Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32") / np.float32(8)


def mlp_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("MatMul", ["z", "v"], ["out"]),
    ]
    return make_model(
        nodes,
        [make_tensor("x", (3, 64))],
        [make_tensor("out", (3, 10))],
        {"w": draw_weights(64, 48), "v": draw_weights(48, 10)},
    )


def residual_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Conv", ["z", "v"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["u", "x"], ["t"]),
        helper.make_node("GlobalAveragePool", ["t"], ["g"]),
        helper.make_node("Flatten", ["g"], ["flat"]),
    ]
    weights = {"w": draw_weights(16, 8, 3, 3), "v": draw_weights(8, 16, 3, 3)}
    outputs = [make_tensor("flat", (1, 8)), make_tensor("t", (1, 8, 12, 12))]
    return make_model(nodes, [make_tensor("x", (1, 8, 12, 12))], outputs, weights)


def unsupported_model() -> onnx.ModelProto:
    """Two products with operators of ONNX's domain of machine learning between them, with a part of the first read
    around them.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Shape", ["y"], ["dims"]),
        helper.make_node("Normalizer", ["y"], ["g"], domain="ai.onnx.ml", norm="L2"),
        helper.make_node("ArrayFeatureExtractor", ["g", "order"], ["b"], domain="ai.onnx.ml"),
        helper.make_node("Reshape", ["b", "dims"], ["r"]),
        helper.make_node("Add", ["r", "y"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["out"]),
        helper.make_node("Normalizer", ["out"], ["last"], domain="ai.onnx.ml", norm="L1"),
    ]
    weights = {"w": draw_weights(64, 48), "v": draw_weights(48, 10), "order": np.arange(48)[::-1].copy()}
    known = [make_tensor("g", (3, 48)), make_tensor("b", (3, 48)), make_tensor("last", (3, 10))]
    outputs = [make_tensor("out", (3, 10)), make_tensor("last", (3, 10))]
    return make_model(nodes, [make_tensor("x", (3, 64))], outputs, weights, known)
