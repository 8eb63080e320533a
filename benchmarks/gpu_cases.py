"""Operators of the GPU benchmarks: tensor expressions, seeded inputs and the equivalent PyTorch call.

Modes: "fp32" multiplies exact float32, "tf32" may round factors to 10 bits, "f16" and "bf16" have float16 and bfloat16
factors; all accumulate in float32. Activations are channels-last. Operations are counted alike for all contenders.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.core.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.expr import Expr
from retune.compiler.ops import OPS, Attribute
from retune.compiler.ops.norm import layer_norm
from retune.compiler.schedule.dag import ComputeDAG

Array = NDArray[Any]
MODES = ("fp32", "tf32", "f16", "bf16")
_DTYPES = {"f16": "float16", "bf16": BFLOAT16}
"""Element types of modes that are not float32."""

EPSILON = 1e-5


def dtype_of(mode: str) -> str:
    """The element type of inputs and results in a mode."""
    return _DTYPES.get(mode, "float32")


@dataclass(frozen=True, slots=True)
class GpuCase:
    """One operator. `kind` is matmul (sizes n, m, k), batched (b, n, m, k), conv (size, taken, made, window, stride),
    softmax or layer_norm (rows, columns).
    """

    kind: str
    sizes: tuple[int, ...]

    @property
    def modes(self) -> tuple[str, ...]:
        """How exact it can be asked to be: only products know the middle way, and bfloat16 is timed in one kind."""
        if self.kind == "matmul":
            return MODES
        return MODES[:3] if self.kind in ("batched", "conv") else ("fp32", "f16")

    @property
    def flops(self) -> float:
        """Arithmetic operations of one call; of what memory bounds those do not count."""
        match self.kind:
            case "matmul" | "batched":
                return 2.0 * prod(self.sizes)
            case "conv":
                size, taken, made, window, _ = self.sizes
                return 2.0 * size * size * taken * made * window * window
        return 0.0

    def nbytes(self, mode: str) -> float:
        """Bytes of all inputs and outputs, each once."""
        item = item_bytes(dtype_of(mode))
        return float(item * sum(prod(tensor.shape) for tensor in (*self.graph(mode).inputs, *self.graph(mode).outputs)))

    def graph(self, mode: str) -> ComputeDAG:
        """The tensor expressions; halves are multiplied as float32, and so added up."""
        dtype = dtype_of(mode)

        def factor(value: Expr) -> Expr:
            return value if dtype == "float32" else te.cast("float32", value)

        match self.kind, self.sizes:
            case "matmul", (n, m, k):
                a, b = te.placeholder((n, k), dtype, "a"), te.placeholder((k, m), dtype, "b")
                r = te.reduce_axis(k, "k")
                c = te.compute((n, m), lambda i, j: te.sum(factor(a[i, r]) * factor(b[r, j]), r), "c")
                return ComputeDAG([a, b, *self._narrowed(c, dtype)])
            case "batched", (count, n, m, k):
                a, b = te.placeholder((count, n, k), dtype, "a"), te.placeholder((count, k, m), dtype, "b")
                r = te.reduce_axis(k, "k")
                c = te.compute((count, n, m), lambda h, i, j: te.sum(factor(a[h, i, r]) * factor(b[h, r, j]), r), "c")
                return ComputeDAG([a, b, *self._narrowed(c, dtype)])
            case "conv", (size, taken, made, window, stride):
                x = te.placeholder((1, size * stride, size * stride, taken), dtype, "x")
                w = te.placeholder((window, window, taken, made), dtype, "w")
                pad = (window - 1) // 2
                attrs: dict[str, Attribute] = {
                    "strides": (stride, stride),
                    "pads": (pad,) * 4,
                    "dilations": (1, 1),
                    "groups": 1,
                    "layout": "NHWC",
                }
                return ComputeDAG([x, w, OPS["conv2d"].tensor((x, w), attrs, name="y")])
            case "softmax", shape:
                x = te.placeholder(shape, dtype, "x")
                return ComputeDAG([x, OPS["softmax"].tensor((x,), {"axis": 1}, name="y")])
            case "layer_norm", shape:
                x, scale, bias = (
                    te.placeholder(each, dtype, name)
                    for each, name in ((shape, "x"), (shape[1:], "scale"), (shape[1:], "bias"))
                )
                return ComputeDAG([x, scale, bias, layer_norm(x, scale, bias, axis=1, epsilon=EPSILON, name="y")])
        raise ValueError(f"no operator {self.kind} of the sizes {self.sizes}")

    @staticmethod
    def _narrowed(c: te.Tensor, dtype: str) -> list[te.Tensor]:
        """The result in the type of the factors."""
        if dtype == "float32":
            return [c]
        return [te.compute(c.shape, lambda *place: te.cast(dtype, c[place]), "narrow")]

    def arrays(self, mode: str) -> dict[str, Array]:
        """Seeded numbers for the inputs, by name, small enough for sums of halves."""
        rng = np.random.default_rng(0)
        inputs = self.graph(mode).inputs
        return {one.name: rng.uniform(-0.5, 0.5, one.shape).astype(one.dtype) for one in inputs}

    def torch_call(self, torch: Any, given: Mapping[str, Any]) -> Callable[[], Any]:
        """PyTorch's own way, on its tensors of these names; a convolution in its channels-last memory format."""
        functional = torch.nn.functional
        match self.kind:
            case "matmul" | "batched":
                return lambda: torch.matmul(given["a"], given["b"])
            case "conv":
                _, _, _, window, stride = self.sizes
                x = given["x"].permute(0, 3, 1, 2)
                w = given["w"].permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
                pad = (window - 1) // 2
                return lambda: functional.conv2d(x, w, None, stride, pad).permute(0, 2, 3, 1)
            case "softmax":
                return lambda: torch.softmax(given["x"], 1)
        shape = given["x"].shape[1:]
        return lambda: functional.layer_norm(given["x"], shape, given["scale"], given["bias"], EPSILON)


def _convolutions() -> dict[str, GpuCase]:
    """The different convolutions of ResNet-50 but the first, in the sizes of an image of 224 × 224."""
    found = {}
    for size, taken, made, window, stride in (
        (56, 64, 64, 1, 1),
        (56, 64, 64, 3, 1),
        (56, 64, 256, 1, 1),
        (28, 128, 128, 3, 1),
        (28, 128, 512, 1, 1),
        (28, 256, 512, 1, 2),
        (14, 256, 256, 3, 1),
        (14, 256, 1024, 1, 1),
        (7, 512, 512, 3, 1),
        (7, 512, 2048, 1, 1),
        (7, 512, 512, 3, 2),
    ):
        found[f"conv{window}x{window}_s{stride}_{size}_{taken}_{made}"] = GpuCase(
            "conv", (size, taken, made, window, stride)
        )
    return found


CASES: Mapping[str, GpuCase] = {
    **{f"matmul_{n}": GpuCase("matmul", (n, n, n)) for n in (1024, 2048, 4096, 8192)},
    "batched_12x128x128x64": GpuCase("batched", (12, 128, 128, 64)),
    "batched_16x512x512x64": GpuCase("batched", (16, 512, 512, 64)),
    **_convolutions(),
    "softmax_4096x1024": GpuCase("softmax", (4096, 1024)),
    "layer_norm_4096x1024": GpuCase("layer_norm", (4096, 1024)),
}
"""By name."""

NETWORKS = ("resnet50", "bert_base")
