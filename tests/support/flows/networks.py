"""Small ONNX files that the tests of the command line and the flows share."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_mlp(path: Path, widths: Sequence[int] = (16, 32, 8), batch: int | str = 2) -> Path:
    """A chain of matrix products with bias and relu between them; `batch` may be a name, which makes it dynamic."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for number, (before, after) in enumerate(pairwise(widths)):
        weight = rng.standard_normal((before, after)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"m{number}"], name=f"matmul{number}"))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"], name=f"relu{number}"))
        value = f"r{number}"
    return _write(path, nodes, weights, (batch, widths[0]), value, (batch, widths[-1]))


def write_unsupported(path: Path) -> Path:
    """One node of an operator that nobody converts."""
    regions = numpy_helper.from_array(np.array([[0, 0, 0, 3, 3]], np.float32), "regions")
    node = helper.make_node("MaxRoiPool", ["x", "regions"], ["y"], name="pooled", pooled_shape=(2, 2))
    return _write(path, [node], [regions], (1, 1, 8, 8), "y", (1, 1, 2, 2))


def _write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    shape: Sequence[int | str],
    output: str,
    output_shape: Sequence[int | str],
) -> Path:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path
