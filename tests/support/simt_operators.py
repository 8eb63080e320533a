"""The operators that are tuned, small enough to be executed thread by thread."""

from collections.abc import Callable

from retune.compiler import te
from retune.compiler.ops import OPS, Attribute, Op
from retune.compiler.ops.conv import CONVOLUTIONS
from retune.compiler.ops.norm import layer_norm
from retune.compiler.schedule.dag import ComputeDAG
from tests.support.workloads import conv_bn_relu, matmul, min_nm, softmax

_LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


def called(op: Op, shapes: tuple[tuple[int, ...], ...], **attrs: Attribute) -> ComputeDAG:
    """One operation on placeholders of `shapes`."""
    inputs = [te.placeholder(each, name=f"x{place}") for place, each in enumerate(shapes)]
    return ComputeDAG([*inputs, op.tensor(inputs, attrs, name="y")])


def conv(
    size: tuple[int, ...], channels: tuple[int, int], kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> ComputeDAG:
    """A channels-last convolution of one to three dimensions, padded to keep the size where the stride is 1."""
    rank, (taken, made) = len(size), channels
    pad = (kernel - 1) * dilation // 2
    depthwise = groups == taken == made
    window = ((kernel,) * rank + (made,)) if depthwise else ((kernel,) * rank + (taken // groups, made))
    return called(
        CONVOLUTIONS[rank],
        ((1, *size, taken), window),
        strides=(stride,) * rank,
        dilations=(dilation,) * rank,
        pads=(pad,) * (2 * rank),
        groups=groups,
        layout=_LAYOUTS[rank],
    )


def norm(n: int, m: int, k: int) -> ComputeDAG:
    """The length of every matrix of a batch."""
    x = te.placeholder((n, m, k), name="x")
    i, j = te.reduce_axis(m, "i"), te.reduce_axis(k, "j")
    squares = te.compute((n,), lambda b: te.sum(x[b, i, j] * x[b, i, j], [i, j]), "squares")
    return ComputeDAG([x, te.compute((n,), lambda b: te.sqrt(squares[b]), "norm")])


def row_norm(rows: int, columns: int) -> ComputeDAG:
    """Layer normalization of every row."""
    x, scale, bias = (
        te.placeholder(shape, name=f"x{i}") for i, shape in enumerate([(rows, columns), (columns,), (columns,)])
    )
    return ComputeDAG([x, scale, bias, layer_norm(x, scale, bias, axis=1, epsilon=1e-5, name="y")])


OPERATORS: dict[str, Callable[[], ComputeDAG]] = {
    "matmul": lambda: matmul(32, 32, 24),
    "matmul of few points": lambda: matmul(4, 8, 128),
    "batched matmul": lambda: called(OPS["batch_matmul"], ((3, 8, 12), (3, 12, 16))),
    "conv1d": lambda: conv((24,), (4, 8), 3),
    "conv2d": lambda: conv((8, 8), (4, 8), 3, stride=2),
    "conv3d": lambda: conv((4, 4, 4), (3, 8), 3),
    "depthwise": lambda: conv((8, 8), (8, 8), 3, groups=8),
    "grouped": lambda: conv((6, 6), (8, 8), 3, groups=2),
    "dilated": lambda: conv((8, 8), (4, 6), 3, dilation=2),
    "transposed": lambda: called(
        OPS["conv_transpose2d"],
        ((1, 4, 4, 4), (4, 4, 4, 6)),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        layout="NHWC",
    ),
    "conv + bn + relu": lambda: conv_bn_relu(1, 6, 4, 8, 3, 1, 1),
    "layer norm": lambda: row_norm(6, 48),
    "softmax": lambda: softmax(6, 48),
    "norm": lambda: norm(3, 12, 16),
    "minimum": lambda: min_nm(5, 100),
}
"""By name; small extents, some of them odd."""
