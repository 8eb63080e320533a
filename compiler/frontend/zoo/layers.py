"""In: layers in order. Out: an ONNX model. Always: seeded weights keep activations sane."""

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # what operator set 17 came with, so that older runtimes read it

Floats = NDArray[np.float32]


class LayerWriter:
    """Writes an ONNX graph layer by layer; every method returns the name of the layer's result."""

    def __init__(self, name: str, input_shape: Sequence[int], seed: int) -> None:
        self._name = name
        self._input_shape = tuple(input_shape)
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self.input = "input"

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Any operator with one result."""
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"{name}_node", **attributes))
        return name

    def weight(self, array: NDArray[Any], name: str) -> str:
        """A named initializer."""
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def convolution(
        self, x: str, channels: tuple[int, int], kernel: int, name: str, *, stride: int = 1, groups: int = 1
    ) -> str:
        """A square convolution without bias, padded so that stride 1 keeps the size; `channels` is (in, out)."""
        taken, made = channels
        shape = (made, taken // groups, kernel, kernel)
        weight = self.weight(self._normal(shape, sqrt(2 / prod(shape[1:]))), f"{name}_weight")
        attributes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "kernel_shape": [kernel] * 2, "group": groups}
        return self.node("Conv", [x, weight], name, **attributes)

    def batch_norm(self, x: str, channels: int, name: str, *, gain: float = 1.0) -> str:
        """Batch normalisation with statistics such as training leaves; `gain` scales the result."""
        parts = {
            "scale": gain * self._rng.uniform(0.8, 1.2, channels),
            "bias": self._rng.normal(0.0, 0.1, channels),
            "mean": self._rng.normal(0.0, 0.2, channels),
            "var": self._rng.uniform(0.7, 1.6, channels),
        }
        names = [self.weight(part.astype(np.float32), f"{name}_{key}") for key, part in parts.items()]
        return self.node("BatchNormalization", [x, *names], name, epsilon=1e-5)

    def fully_connected(self, x: str, features: tuple[int, int], name: str) -> str:
        """x W + b with the weight stored (out, in) as PyTorch writes it; `features` is (in, out)."""
        taken, made = features
        weight = self.weight(self._normal((made, taken), sqrt(2 / taken)), f"{name}_weight")
        bias = self.weight(self._normal((made,), 0.1), f"{name}_bias")
        return self.node("Gemm", [x, weight, bias], name, transB=1)

    def finish(self, output: str, output_shape: Sequence[int]) -> onnx.ModelProto:
        """The model whose result is `output`."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info(self.input, TensorProto.FLOAT, self._input_shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, list(output_shape))],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="retune")
        model.ir_version = IR_VERSION
        return model

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Floats:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
