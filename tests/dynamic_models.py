"""ONNX models whose shapes are known only when they run, and what ONNX Runtime computes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Dims = Sequence[int | str | None] | None
OPSET, IR = 18, 9


def tensor(name: str, dims: Dims, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output; a dimension is a number, a symbol or None, `dims` is None for an unknown rank."""
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """A checked model."""
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "dynamic", list(inputs), list(outputs), initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(made)
    return made


def reference(source: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """What ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(inputs))
    return found


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Array:
    """Random numbers of float32."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(np.float32)
