"""A layer-by-layer writer of ONNX models; seeded weights are scaled so that activations neither vanish nor overflow."""

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from retune.compiler.core.dtype import Array

OPSET = 17
IR_VERSION = 8  # what operator set 17 came with, so that older runtimes read it

Floats = NDArray[np.float32]


def round_channels(channels: float) -> int:
    """The nearest multiple of eight that loses at most a tenth."""
    # The rule of MobileNet's reference code, for vector units.
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class LayerWriter:
    """Writes an ONNX graph layer by layer; every method returns the name of the layer's result."""

    def __init__(self, name: str, input_shape: Sequence[int | str] | None, seed: int) -> None:
        """`input_shape` is that of the only input, `input`; None where the inputs are declared by `feed`."""
        self._rng = np.random.default_rng(seed)
        self._weights: set[str] = set()
        self._model = onnx.ModelProto(producer_name="retune", ir_version=IR_VERSION)
        self._model.opset_import.append(helper.make_opsetid("", OPSET))
        self._graph = self._model.graph  # written in place: a large network is never held twice
        self._graph.name = name
        self.input = "input"
        self._spatial = 2 if input_shape is None else len(input_shape) - 2
        if input_shape is not None:
            self.feed(self.input, input_shape)

    def feed(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """Declare an input; `dtype` is ONNX's number of an element type."""
        self._graph.input.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def node(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """Any operator with one result."""
        self._graph.node.append(helper.make_node(op_type, list(inputs), [name], name=f"{name}_node", **attributes))
        return name

    def extent(self, x: str, axis: int, name: str) -> str:
        """How far a dimension of `x` reaches: an int64 of shape (1,)."""
        shape = self.node("Shape", [x], f"{name}_shape")
        return self.node("Gather", [shape, self.integers((axis,), f"{name}_axis")], name)

    def part(self, start: int, end: str, axis: int, name: str) -> tuple[str, str, str]:
        """The operands of a Slice from `start` to the value `end` of one axis."""
        return self.integers((start,), f"{name}_start"), end, self.integers((axis,), f"{name}_axis")

    def weight(self, array: Array, name: str) -> str:
        """A named initializer; if there is one of this name, that one."""
        if name not in self._weights:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            weights = self._model.graph.initializer
            weights.add(name=name, data_type=dtype, dims=array.shape, raw_data=array.tobytes())
            self._weights.add(name)
        return name

    def number(self, number: float, name: str) -> str:
        """An initializer without dimensions."""
        return self.weight(np.asarray(number, np.float32), name)

    def normal(self, shape: Sequence[int], deviation: float, name: str) -> str:
        """An initializer of normally distributed numbers."""
        return self.weight(self._normal(tuple(shape), deviation), name)

    def uniform(self, shape: Sequence[int], name: str) -> str:
        """An initializer of factors about 1, such as normalizations have."""
        return self.weight(self._rng.uniform(0.8, 1.2, shape).astype(np.float32), name)

    def integers(self, values: Sequence[int], name: str) -> str:
        """An initializer that tells a shape or axes."""
        return self.weight(np.asarray(values, np.int64), name)

    def convolution(
        self,
        x: str,
        channels: tuple[int, int],
        kernel: int | tuple[int, ...],
        name: str,
        *,
        stride: int | tuple[int, ...] = 1,
        groups: int = 1,
    ) -> str:
        """A convolution, padded so that stride 1 keeps the size; `channels` is (in, out).

        One number for `kernel` or `stride` is that of all dimensions of the input's images, a tuple has an entry each.
        """
        taken, made = channels
        extents = (kernel,) * self._spatial if isinstance(kernel, int) else kernel
        steps = (stride,) * len(extents) if isinstance(stride, int) else stride
        shape = (made, taken // groups, *extents)
        # He et al. (arXiv 1502.01852): a ReLU halves the second moment, which the 2 makes up for.
        weight = self.normal(shape, sqrt(2 / prod(shape[1:])), f"{name}_weight")
        pads = [extent // 2 for extent in extents] * 2
        return self.node("Conv", [x, weight], name, strides=steps, pads=pads, kernel_shape=extents, group=groups)

    def batch_norm(self, x: str, channels: int, name: str, *, gain: float = 1.0) -> str:
        """Batch normalization with statistics such as training leaves; `gain` scales the result."""
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

    def linear(self, x: str, features: tuple[int, int], name: str, *, bias: bool = True) -> str:
        """x W + b along the last axis of `x`, of any rank, or x W; `features` is (in, out)."""
        taken, made = features
        # No ReLU follows: LeCun's variance 1 / n keeps that of the operand.
        weight = self.normal((taken, made), sqrt(1 / taken), f"{name}_weight")
        if not bias:
            return self.node("MatMul", [x, weight], name)
        offsets = self.normal((made,), 0.02, f"{name}_bias")
        return self.node("Add", [self.node("MatMul", [x, weight], f"{name}_product"), offsets], name)

    def layer_norm(self, x: str, width: int, name: str, *, epsilon: float = 1e-5) -> str:
        """Layer normalization over the last axis, of extent `width`."""
        scale = self.uniform((width,), f"{name}_scale")
        bias = self.normal((width,), 0.05, f"{name}_bias")
        return self.node("LayerNormalization", [x, scale, bias], name, axis=-1, epsilon=epsilon)

    def classify(self, x: str, channels: int, output_shape: tuple[int | str, int]) -> onnx.ModelProto:
        """The model whose result, (batch, classes), is a linear layer of the means of each channel of `x`."""
        means = self.node("Flatten", [self.node("GlobalAveragePool", [x], "pool")], "features", axis=1)
        return self.finish(self.fully_connected(means, (channels, output_shape[1]), "logits"), output_shape)

    def finish(self, output: str, output_shape: Sequence[int | str]) -> onnx.ModelProto:
        """The model whose result is `output`."""
        return self.finish_all({output: output_shape})

    def finish_all(self, outputs: Mapping[str, Sequence[int | str]]) -> onnx.ModelProto:
        """The model with these results, each with its shape."""
        for name, shape in outputs.items():
            self.result(name, shape)
        return self._model

    def result(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> None:
        self._graph.output.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def _normal(self, shape: tuple[int, ...], deviation: float) -> Floats:
        # float32 from the start, scaled in place: half the memory of doubles.
        numbers = self._rng.standard_normal(shape, dtype=np.float32)
        numbers *= np.float32(deviation)
        return numbers
