"""Computes an ONNX model in wider types than its own, for reference results with negligible error.

Models of float16 and bfloat16 become models of float32, others of float64, which onnx.reference computes.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import MeasureError

Arrays = Mapping[str, Array]
Outputs = Sequence[Array]

_SECONDS = 60.0
"""Time limit for onnx.reference."""
_HALVES: Mapping[int, int] = {TensorProto.FLOAT16: TensorProto.FLOAT, TensorProto.BFLOAT16: TensorProto.FLOAT}
_SINGLES: Mapping[int, int] = {TensorProto.FLOAT: TensorProto.DOUBLE}
_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
# Operators whose output has the quantum of their first input.
_MOVING = {"Flatten", "Identity", "MaxPool", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


class WiderModel:
    """A model computed in wider types: float32 or float64.

    `quanta` are the quantization steps of its outputs, 0 for those that are not quantized; empty if the model quantizes
    nothing. `plain` is the serialized model in its own types, with products that compute in no narrower type.
    """

    def __init__(self, model: bytes) -> None:
        read = onnx.load_from_string(model)
        self.plain = read.SerializeToString() if _remove_accuracy_levels(read.graph) else model
        self._model = inliner.inline_local_functions(read)
        self.quanta = _quanta(self._model.graph)
        kinds = [entry.type.tensor_type.elem_type for entry in self._model.graph.output]
        self._dtypes = [helper.tensor_dtype_to_np_dtype(kind) if kind in _HALVES else None for kind in kinds]
        self.is_float32 = _widen(self._model.graph, _HALVES)
        self._kinds = _HALVES if self.is_float32 else _SINGLES
        _widen(self._model.graph, self._kinds)
        self.name = "ONNX Runtime in float32" if self.is_float32 else "onnx.reference in float64"

    def widen(self, arrays: Arrays) -> Arrays:
        """The model's inputs in the wider types."""
        kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
        dtypes = {name: helper.tensor_dtype_to_np_dtype(self._kinds.get(kind, kind)) for name, kind in kinds.items()}
        return {name: array.astype(dtypes[name]) for name, array in arrays.items()}

    def round(self, outputs: Outputs) -> Outputs:
        """`outputs` in the model's own half types."""
        with np.errstate(over="ignore"):
            return [
                array if dtype is None else array.astype(dtype)
                for array, dtype in zip(outputs, self._dtypes, strict=True)
            ]

    def serialize(self) -> bytes:
        """The model as a message. Raises: MeasureError when it is too large for one."""
        try:
            return bytes(self._model.SerializeToString())
        except Exception as error:  # of protobuf
            raise MeasureError(f"the model is too large in float32: {error}") from error

    def evaluate(self, inputs: Arrays) -> Outputs:
        """Compute it with onnx.reference. Raises: MeasureError when that fails, or takes too long."""
        end = time.monotonic() + _SECONDS

        class Evaluator(ReferenceEvaluator):
            def _log(self, *_: object) -> None:  # before every node
                if time.monotonic() > end:
                    raise MeasureError("onnx.reference takes too long")

        try:
            return list(Evaluator(self._model, new_ops=[BatchNormalization]).run(None, dict(self.widen(inputs))))
        except Exception as error:  # any error of NumPy
            raise MeasureError(f"onnx.reference cannot compute the model: {error}") from error


class BatchNormalization(OpRun):
    """BatchNormalization of older operator sets, which onnx.reference computes as in training."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, **attributes: Any
    ) -> tuple[Array]:
        shape = (-1,) + (1,) * (x.ndim - 2)
        factor = scale / np.sqrt(variance + attributes["epsilon"])
        return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape),)


def _quanta(graph: onnx.GraphProto) -> list[float]:
    """The quantization step of every output, 0 without such a step; empty for a graph that quantizes nothing."""
    nodes = {name: node for node in graph.node for name in node.output}
    scales = {tensor.name: tensor for tensor in graph.initializer}
    quanta = []
    for entry in graph.output:
        node = nodes.get(entry.name)
        while node is not None and node.op_type in _MOVING:
            node = nodes.get(node.input[0])
        scale = scales.get(node.input[1]) if node is not None and node.op_type == "DequantizeLinear" else None
        is_integer = node is not None and node.op_type in _QUANTIZING
        quanta.append(float(np.max(numpy_helper.to_array(scale))) if scale is not None else float(is_integer))
    return quanta if any(node.op_type in _QUANTIZING for node in graph.node) else []


def _remove_accuracy_levels(graph: onnx.GraphProto) -> bool:
    """Let products with weights of a few bits compute in the type of their operands. Returns whether some did not."""
    is_changed = False
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                is_changed |= _remove_accuracy_levels(attribute.g)
            elif attribute.name == "accuracy_level" and node.op_type == "MatMulNBits":
                is_changed |= attribute.i > 0
                attribute.i = 0
    return is_changed


def _widen(graph: onnx.GraphProto, kinds: Mapping[int, int]) -> bool:
    """Replace types of a graph in place. Returns whether there were any."""
    del graph.value_info[:]
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    inner = [_widen(attribute.g, kinds) for attribute in attributes if attribute.HasField("g")]
    is_changed = any(inner)
    for entry in (*graph.input, *graph.output):
        tensor_type = entry.type.tensor_type
        is_changed |= tensor_type.elem_type in kinds
        tensor_type.elem_type = kinds.get(tensor_type.elem_type, tensor_type.elem_type)
    for attribute in attributes:
        if attribute.name in ("to", "dtype"):
            attribute.i = kinds.get(attribute.i, attribute.i)
    for tensor in (*graph.initializer, *(attribute.t for attribute in attributes if attribute.HasField("t"))):
        if tensor.data_type in kinds:
            wide = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kinds[tensor.data_type]))
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
            is_changed = True
    return is_changed
