"""Operators of fixed sizes: tensor expressions, seeded inputs and reference results.

Float32; activations are channels-last, weights are constants that a kernel may pack. The reference is plain NumPy in
float64.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.ops import OPS, Attribute
from retune.compiler.ops.conv import CONVOLUTIONS
from retune.compiler.ops.norm import layer_norm
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.tensor import Tensor

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

EPSILON = 1e-5
LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


class Problem(Protocol):
    """One operator of fixed sizes. Its graph's inputs are x, then w, the second operand, then scale and bias."""

    def graph(self) -> ComputeDAG:
        """The operator's tensor expressions."""
        ...

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """The result for inputs by name."""
        ...


def random_inputs(dag: ComputeDAG) -> dict[str, Floats]:
    """Seeded normal numbers for every input of a graph, by name."""
    rng = np.random.default_rng(0)
    return {tensor.name: rng.standard_normal(tensor.shape, dtype=np.float32) for tensor in dag.inputs}


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of as many dimensions as `output` has; `channels` are (in, out), batch 1.

    It is padded so that stride 1 keeps the size. With `epilogue`, in two dimensions, a bias is added and what is
    negative becomes 0. With `norm` too every channel is scaled before that: batch normalization as it is at inference.
    """

    output: tuple[int, ...]
    channels: tuple[int, int]
    kernel: int
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    epilogue: bool = False
    norm: bool = False

    @property
    def pad(self) -> int:
        """Zeros at each end of every dimension."""
        return (self.kernel - 1) * self.dilation // 2

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of activations and weight; a depthwise weight has one channel axis."""
        taken, made = self.channels
        window = (self.kernel,) * len(self.output)
        depthwise = self.groups == taken == made
        weight = (*window, made) if depthwise else (*window, taken // self.groups, made)
        return (1, *(size * self.stride for size in self.output), taken), weight

    def graph(self) -> ComputeDAG:
        """Inputs x and w, then bias with an epilogue, scale and bias with a normalization."""
        rank = len(self.output)
        x, w = (te.placeholder(shape, name=name) for shape, name in zip(self.shapes, ("x", "w"), strict=True))
        attrs: dict[str, Attribute] = {
            "strides": (self.stride,) * rank,
            "dilations": (self.dilation,) * rank,
            "pads": (self.pad,) * (2 * rank),
            "groups": self.groups,
            "layout": LAYOUTS[rank],
        }
        shape = (1, *self.output, self.channels[1])
        made = CONVOLUTIONS[rank].tensor((x, w), attrs, name="conv", constants=frozenset({w}))
        if not self.epilogue:
            return ComputeDAG([x, w, made])
        scale, bias = (te.placeholder(shape[-1:], name=name) for name in ("scale", "bias"))
        scaled = te.compute(shape, lambda n, y, x, c: made[n, y, x, c] * scale[c], name="scaled") if self.norm else made
        biased = te.compute(shape, lambda n, y, x, c: scaled[n, y, x, c] + bias[c], name="biased")
        relu = te.compute(shape, lambda n, y, x, c: te.maximum(biased[n, y, x, c], 0.0), name="relu")
        return ComputeDAG([x, w, *((scale,) if self.norm else ()), bias, relu])

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """A matrix product for every tap of the window."""
        rank = len(self.output)
        taken, made = (count // self.groups for count in self.channels)
        around = ((0, 0), *((self.pad, self.pad),) * rank, (0, 0))
        x = np.pad(arrays["x"].astype(np.float64), around)
        x = x.reshape(*x.shape[:-1], self.groups, 1, taken)
        w = arrays["w"].astype(np.float64).reshape(*(self.kernel,) * rank, taken, self.groups, made)
        w = np.moveaxis(w, rank + 1, rank)
        total = np.zeros((1, *self.output, self.groups, 1, made))
        for tap in itertools.product(range(self.kernel), repeat=rank):
            window = tuple(
                slice(at * self.dilation, at * self.dilation + (size - 1) * self.stride + 1, self.stride)
                for at, size in zip(tap, self.output, strict=True)
            )
            total += x[(slice(None), *window)] @ w[tap]
        result = total.reshape(1, *self.output, self.channels[1])
        if self.norm:
            result = result * arrays["scale"]
        return np.maximum(result + arrays["bias"], 0) if self.epilogue else result


@dataclass(frozen=True, slots=True)
class TransposedConvolution:
    """A transposed 2-D convolution that doubles the size: kernel 4, stride 2, one element cut off each end."""

    output: tuple[int, int]
    channels: tuple[int, int]
    kernel: int = 4
    stride: int = 2
    pad: int = 1

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of activations and weight."""
        height, width = (size // self.stride for size in self.output)
        return (1, height, width, self.channels[0]), (self.kernel, self.kernel, *self.channels)

    def graph(self) -> ComputeDAG:
        """Inputs x and w."""
        x, w = (te.placeholder(shape, name=name) for shape, name in zip(self.shapes, ("x", "w"), strict=True))
        attrs: dict[str, Attribute] = {"layout": "NHWC", "strides": (self.stride,) * 2, "pads": (self.pad,) * 4}
        y = OPS["conv_transpose2d"].tensor((x, w), attrs, name="conv", constants=frozenset({w}))
        return ComputeDAG([x, w, y])

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """Every input element scattered, tap by tap."""
        x, w = arrays["x"].astype(np.float64), arrays["w"].astype(np.float64)
        height, width = x.shape[1:3]
        whole = np.zeros((1, *(size + 2 * self.pad for size in self.output), self.channels[1]))
        for row, column in itertools.product(range(self.kernel), repeat=2):
            rows = slice(row, row + (height - 1) * self.stride + 1, self.stride)
            columns = slice(column, column + (width - 1) * self.stride + 1, self.stride)
            whole[:, rows, columns] += x @ w[row, column]
        return whole[:, self.pad : -self.pad, self.pad : -self.pad]


@dataclass(frozen=True, slots=True)
class Product:
    """(rows × inner) by (inner × columns); with a batch both operands are activations, else the second is constant."""

    rows: int
    inner: int
    columns: int
    batch: int = 0

    def graph(self) -> ComputeDAG:
        """Inputs x and w."""
        first = (self.batch,) if self.batch else ()
        x = te.placeholder((*first, self.rows, self.inner), name="x")
        w = te.placeholder((*first, self.inner, self.columns), name="w")
        constants = frozenset[Tensor]() if self.batch else frozenset({w})
        op = OPS["batch_matmul" if self.batch else "dense"]
        return ComputeDAG([x, w, op.tensor((x, w), name="product", constants=constants)])

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """NumPy's own product."""
        return arrays["x"].astype(np.float64) @ arrays["w"].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax of every row."""

    shape: tuple[int, int]

    def graph(self) -> ComputeDAG:
        """Input x."""
        x = te.placeholder(self.shape, name="x")
        return ComputeDAG([x, OPS["softmax"].tensor((x,), {"axis": 1})])

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """Row by row."""
        x = arrays["x"].astype(np.float64)
        power = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(power / power.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalization of every row, with scale and bias."""

    shape: tuple[int, int]

    def graph(self) -> ComputeDAG:
        """Inputs x, scale and bias."""
        x = te.placeholder(self.shape, name="x")
        scale, bias = (te.placeholder(self.shape[1:], name=name) for name in ("scale", "bias"))
        return ComputeDAG([x, scale, bias, layer_norm(x, scale, bias, axis=1, epsilon=EPSILON)])

    def reference(self, arrays: Mapping[str, Floats]) -> Doubles:
        """Row by row."""
        x = arrays["x"].astype(np.float64)
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + EPSILON)
        return np.asarray(centred / deviation * arrays["scale"] + arrays["bias"])


def moved_bytes(dag: ComputeDAG) -> tuple[int, int]:
    """Bytes of all inputs, and of all outputs: what a kernel must read and write at the least."""

    def total(tensors: Sequence[Tensor]) -> int:
        return sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in tensors)

    return total(dag.inputs), total(dag.outputs)
