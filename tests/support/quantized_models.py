"""Small models quantized by the tool of ONNX Runtime."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

Floats = NDArray[np.float32]


def inputs(shape: tuple[int, ...], count: int) -> list[Floats]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def cnn() -> onnx.ModelProto:
    """Convolutions of several forms, a residual sum, both pools, a dense layer."""
    make, pads = helper.make_node, [1, 1, 1, 1]
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], pads=pads),
        make("Relu", ["c1"], ["r1"]),
        make("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=pads),
        make("Conv", ["p1", "w2", "b2"], ["c2"], pads=pads),
        make("Relu", ["c2"], ["r2"]),
        make("Conv", ["r2", "w3"], ["c3"], pads=pads, group=16),
        make("Conv", ["c3", "w4", "b4"], ["c4"]),
        make("Add", ["c4", "p1"], ["s"]),
        make("Relu", ["s"], ["r4"]),
        make("GlobalAveragePool", ["r4"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w5", "b5"], ["y"], transB=1),
    ]
    weights = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (16, 1, 3, 3)}
    weights |= {"w4": (16, 16, 1, 1), "b4": (16,), "w5": (10, 16), "b5": (10,)}
    return _model(nodes, (2, 3, 12, 12), weights)


def branches() -> onnx.ModelProto:
    """Two branches of convolutions behind a pool of means, with a sigmoid and a leaky ReLU, joined and enlarged."""
    make, pads = helper.make_node, [1, 1, 1, 1]
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], pads=pads),
        make("Relu", ["c1"], ["r1"]),
        make("Conv", ["r1", "w2", "b2"], ["c2"], pads=pads, group=16),
        make("Relu", ["c2"], ["r2"]),
        make("Add", ["r2", "r1"], ["s"]),
        make("AveragePool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Conv", ["p", "w3", "b3"], ["c3"]),
        make("Sigmoid", ["c3"], ["u"]),
        make("Conv", ["s", "w4", "b4"], ["c4"], pads=pads, strides=[2, 2]),
        make("LeakyRelu", ["c4"], ["v"], alpha=0.1),
        make("Concat", ["u", "v"], ["z"], axis=1),
        make("MaxPool", ["z"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Resize", ["m", "", "scales"], ["e"], mode="nearest", coordinate_transformation_mode="asymmetric"),
        make("GlobalAveragePool", ["e"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w5", "b5"], ["y"], transB=1),
    ]
    nodes[12].attribute.append(helper.make_attribute("nearest_mode", "floor"))
    weights = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "b2": (16,), "w3": (24, 16, 1, 1), "b3": (24,)}
    weights |= {"w4": (24, 16, 3, 3), "b4": (24,), "w5": (10, 48), "b5": (10,)}
    model = _model(nodes, (1, 3, 16, 16), weights)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([1, 1, 2, 2], np.float32), "scales"))
    return onnx.shape_inference.infer_shapes(model)


def lstm() -> onnx.ModelProto:
    """Two LSTMs, the first in both directions, and a dense layer for each step."""
    nodes = [
        helper.make_node("LSTM", ["x", "w1", "r1", "b1"], ["a"], hidden_size=12, direction="bidirectional"),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "shape"], ["d"]),
        helper.make_node("LSTM", ["d", "w2", "r2"], ["c"], hidden_size=10),
        helper.make_node("Squeeze", ["c", "one"], ["e"]),
        helper.make_node("MatMul", ["e", "w3"], ["y"]),
    ]
    weights = {"w1": (2, 48, 8), "r1": (2, 48, 12), "b1": (2, 96), "w2": (1, 40, 24), "r2": (1, 40, 10), "w3": (10, 5)}
    model = _model(nodes, (6, 2, 8), weights)
    for name, numbers in (("shape", [6, 2, 24]), ("one", [1])):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
    return onnx.shape_inference.infer_shapes(model)


def mlp() -> onnx.ModelProto:
    """Two dense layers."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["y"]),
    ]
    return _model(nodes, (4, 32), {"w1": (48, 32), "b1": (48,), "w2": (48, 10), "b2": (10,)})


MODELS = {"cnn": (cnn, (2, 3, 12, 12)), "mlp": (mlp, (4, 32))}


FORMS: list[dict[str, Any]] = [
    {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": False},
    {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8, "per_channel": False},
]


def quantized(name: str, form: dict[str, Any], folder: Path, kind: QuantFormat = QuantFormat.QDQ) -> onnx.ModelProto:
    """One of `MODELS` in QDQ form, or in another `kind`."""
    build, shape = MODELS[name]
    source, target = folder / "float.onnx", folder / "bytes.onnx"
    onnx.save(build(), source)
    quantize_static(source, target, Images(shape), quant_format=kind, **form)
    return onnx.load(target)


class Images(CalibrationDataReader):  # type: ignore[misc]
    """Seeded inputs to calibrate with."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left: Iterator[dict[str, Floats]] = iter([{"x": array} for array in inputs(shape, 6)])

    def get_next(self) -> dict[str, Floats] | None:
        """The next one, None after the last."""
        return next(self._left, None)


def _model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.normal(0, (2 / max(1, math.prod(extents[1:]))) ** 0.5, extents).astype(np.float32)
        for name, extents in weights.items()
    }
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model)
