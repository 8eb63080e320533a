"""Random ONNX graphs in QDQ form: every operator between quantizations, with random types, scales and zero points."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.dtype import Array

OPSET = 21
_BYTES = ("uint8", "int8")
_FEW_BITS = ("uint8", "int8", "uint8", "int8", "uint16", "int16")
_RANGE = 3.0
"""Values are quantized for about this range: scales of results follow from it, so that few are clipped."""


class QuantizedGraph:
    """A graph in QDQ form while it is drawn. `values` are stored tensors: shape, type, scale and zero point by name."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 40])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: dict[str, tuple[int, ...]] = {}

    def choice(self, *options: Any) -> Any:
        """One of the options."""
        return options[int(self.rng.integers(len(options)))]

    def fresh(self, kind: str) -> str:
        return f"{kind}{len(self.nodes)}_{len(self.weights)}"

    def weight(self, array: Array, kind: str) -> str:
        name = self.fresh(kind)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = self.fresh(op.lower())
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def quantize(self, name: str, shape: tuple[int, ...], scale: float, dtype: str) -> str:
        """Store a float tensor."""
        zero = self.weight(_zero_point(self.rng, dtype), "zero")
        stored = self.node("QuantizeLinear", [name, self.weight(np.asarray(scale, np.float32), "scale"), zero])
        restored = self.node("DequantizeLinear", [stored, *self.nodes[-1].input[1:]])
        self.values[restored] = shape
        return restored

    def constant(self, shape: tuple[int, ...], axis: int | None) -> str:
        """A dequantized weight, with a scale for each index of `axis`, in a type of a byte or of four bits."""
        dtype = self.choice("int8", "int8", "int8", "uint8", "int4", "uint4")
        info = onnx.helper.tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.upper()))
        least, most = {"int8": (-127, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}[dtype]
        array = self.rng.integers(least, most, shape, endpoint=True).astype(info)
        size = () if axis is None else (shape[axis],)
        scale = self.rng.uniform(0.2, 1, size).astype(np.float32) * np.float32(2 / (most - least))
        zero = np.full(size, (least + most + 1) // 2).astype(info)
        parameters = [self.weight(np.asarray(scale), "scale"), self.weight(zero, "zero")]
        attributes = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", [self.weight(array, "w"), *parameters], **attributes)


Form = Callable[[QuantizedGraph, str, tuple[int, ...]], tuple[str, tuple[int, ...], float]]
"""Adds an operator on a dequantized tensor: the result, its shape, and its range in those of the operand."""


def _zero_point(rng: np.random.Generator, dtype: str) -> Array:
    info = np.iinfo(dtype)
    middle = (int(info.min) + int(info.max) + 1) // 2
    spread = (int(info.max) - middle) // 4
    return np.asarray(middle + (int(rng.integers(-spread, spread)) if rng.random() < 0.6 else 0), dtype)


def _conv(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    _, channels, *extents = shape
    group = graph.choice(1, 1, channels)
    kernel, stride = graph.choice(1, 3, 3, 5), graph.choice(1, 1, 2)
    pad = graph.choice(0, kernel // 2)
    if min(extents) + 2 * pad < kernel:
        raise ValueError("the kernel exceeds the input")
    filters = group * graph.choice(1, 2) if group > 1 else graph.choice(1, 3, 8, 16, 17)
    axis = graph.choice(0, 0, None)
    operands = [x, graph.constant((filters, channels // group, kernel, kernel), axis)]
    source = next(node for node in graph.nodes if node.output[0] == x)
    if graph.rng.random() < 0.5:
        scales = [_content(graph, source.input[1]), _content(graph, graph.nodes[-1].input[1])]
        bias = graph.rng.integers(-2000, 2000, filters).astype(np.int32)
        scale = np.asarray(scales[0] * scales[1], np.float32)
        attributes = {"axis": 0} if scale.ndim else {}
        parameters = [graph.weight(bias, "b"), graph.weight(scale, "scale")]
        operands.append(graph.node("DequantizeLinear", parameters, **attributes))
    pads, strides = [pad] * 4, [stride] * 2
    result = graph.node("Conv", operands, pads=pads, strides=strides, group=group)
    sizes = [(extent + 2 * pad - kernel) // stride + 1 for extent in extents]
    return result, (shape[0], filters, *sizes), (channels // group * kernel * kernel) ** 0.5 / 3 + 0.3


def _matmul(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    columns = graph.choice(1, 5, 16, 33)
    weight = graph.constant((shape[-1], columns), graph.choice(1, 1, None))
    return graph.node("MatMul", [x, weight]), (*shape[:-1], columns), shape[-1] ** 0.5 / 3 + 0.3


def _binary(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    others = [name for name, other in graph.values.items() if other == shape]
    op = graph.choice("Add", "Add", "Mul", "Sub")
    return graph.node(op, [x, graph.choice(*others)]), shape, {"Mul": _RANGE}.get(op, 2.0)


def _unary(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    op = graph.choice("Relu", "Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh", "Clip", "HardSwish", "Gelu")
    limits = [graph.weight(np.asarray(limit, np.float32), "limit") for limit in (-1, 2)] if op == "Clip" else []
    return graph.node(op, [x, *limits]), shape, 1.0


def _pool(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    if graph.rng.random() < 0.2:
        return graph.node("GlobalAveragePool", [x]), (*shape[:2], 1, 1), 1.0
    if min(shape[2:]) < 2:
        raise ValueError("the window exceeds the input")
    op = graph.choice("MaxPool", "AveragePool")
    result = graph.node(op, [x], kernel_shape=[2, 2], strides=[2, 2])
    return result, (*shape[:2], shape[2] // 2, shape[3] // 2), 1.0


def _concat(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    others = [name for name, other in graph.values.items() if (other[:1], other[2:]) == (shape[:1], shape[2:])]
    other = graph.choice(*others)
    joined = graph.node("Concat", [x, other], axis=1)
    return joined, (shape[0], shape[1] + graph.values[other][1], *shape[2:]), 1.0


def _moved(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    if graph.rng.random() < 0.5:
        order = [int(axis) for axis in graph.rng.permutation(len(shape))]
        return graph.node("Transpose", [x], perm=order), tuple(shape[axis] for axis in order), 1.0
    flat = graph.weight(np.array([shape[0], -1]), "shape")
    return graph.node("Reshape", [x, flat]), (shape[0], int(np.prod(shape[1:]))), 1.0


def _resize(graph: QuantizedGraph, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], float]:
    scales = graph.weight(np.array([1, 1, 2, 2], np.float32), "scales")
    mode = graph.choice("nearest", "linear")
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    doubled = (*shape[:2], 2 * shape[2], 2 * shape[3])
    return graph.node("Resize", [x, "", scales], mode=mode, **attributes), doubled, 1.0


_OF_IMAGES: tuple[Form, ...] = (_conv, _conv, _conv, _binary, _binary, _unary, _pool, _concat, _resize, _moved, _matmul)
_OF_ROWS: tuple[Form, ...] = (_matmul, _matmul, _binary, _unary, _concat)


def _content(graph: QuantizedGraph, name: str) -> Array:
    return numpy_helper.to_array(next(tensor for tensor in graph.weights if tensor.name == name))


def random_quantized(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model with two to nine operators between quantizations, and its input."""
    graph = QuantizedGraph(seed)
    rng = graph.rng
    shape = (graph.choice(1, 2), graph.choice(1, 3, 4, 8, 17), graph.choice(4, 7, 8), graph.choice(4, 6, 9))
    x = rng.normal(0, 1.2, shape).astype(np.float32)
    last = graph.quantize("x", shape, 2 * _RANGE / 255, graph.choice(*_BYTES))
    count = int(rng.integers(2, 10))
    for _ in range(4 * count):
        if count == 0:
            break
        name = last if rng.random() < 0.7 else graph.choice(*graph.values)
        extents = graph.values[name]
        before = len(graph.nodes), len(graph.weights)
        try:
            result, made, spread = graph.choice(*(_OF_IMAGES if len(extents) == 4 else _OF_ROWS))(graph, name, extents)
        except ValueError:  # of an extent that the form does not take
            del graph.nodes[before[0] :], graph.weights[before[1] :]
            continue
        if np.prod(made) > 20_000 or min(made) < 1:
            del graph.nodes[before[0] :], graph.weights[before[1] :]
            continue
        if rng.random() < 0.3:
            result = graph.node("Relu", [result])
        dtype = graph.choice(*_FEW_BITS)
        levels = 255 if dtype in _BYTES else 65535
        last = graph.quantize(result, made, 2 * _RANGE * spread * float(rng.uniform(0.6, 1.1)) / levels, dtype)
        count -= 1
    graph.nodes.append(helper.make_node("Identity", [last], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, graph.values[last])]
    made_graph = helper.make_graph(graph.nodes, f"quantized_{seed}", inputs, outputs, graph.weights)
    model = helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return model, {"x": x}
