"""Small and large computations that the search tests share."""

import numpy as np

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Value
from retune.compiler.graph.partition.express import express
from retune.compiler.graph.partition.fuse import FusedOp
from retune.compiler.ir.expr import Expr
from retune.compiler.ops import winograd
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from tests.support.winograd_of_matrices import winograd_conv2d

CORES = HardwareParams(num_cores=4)
GPU = HardwareParams(
    num_cores=-1,
    vector_unit_bytes=16,
    max_shared_memory_per_block=49152,
    max_local_memory_per_block=2**31 - 1,
    max_threads_per_block=1024,
    max_vthread_extent=8,
    warp_size=32,
)
"""A usual NVIDIA GPU, for what can be checked without one."""


def task_of(name: str, dag: ComputeDAG, hardware: HardwareParams = CORES) -> SearchTask:
    """A task for the machine that runs the tests."""
    return SearchTask(name, dag, Target.host(), hardware)


def gpu_task_of(name: str, dag: ComputeDAG, hardware: HardwareParams = GPU) -> SearchTask:
    """A task for a GPU that need not be there."""
    return SearchTask(name, dag, Target("cuda"), hardware)


def matmul(n: int, m: int, k: int, dtype: str = "float32") -> ComputeDAG:
    """C[i, j] = sum of A[i, k] * B[k, j]; B may be packed."""
    a = te.placeholder((n, k), dtype, name="A")
    b = te.placeholder((k, m), dtype, name="B")
    r = te.reduce_axis(k, "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    return ComputeDAG([a, b, c])


def whole_axes_matmul(n: int, m: int, k: int, whole: list[str]) -> ComputeDAG:
    """A matmul of which some loops must not be split."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    attrs = {"auto_scheduler_no_split_at_inner": whole}
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", attrs)])


def unrolled_matmul(n: int, m: int, k: int, unrolled: list[str]) -> ComputeDAG:
    """A matmul of which the innermost tiles of some loops are always unrolled."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    attrs = {"auto_scheduler_always_unroll_inner": unrolled}
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", attrs)])


def double_matmul(n: int) -> ComputeDAG:
    """E = (A B) C, all square."""
    a, b, c = (te.placeholder((n, n), name=name) for name in "ABC")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    d = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "D")
    e = te.compute((n, n), lambda i, j: te.sum(d[i, r] * c[r, j], r), "E")
    return ComputeDAG([a, b, c, e])


def joined_convolution(size: int, channels: tuple[int, int], filters: int, kernel: int = 3) -> ComputeDAG:
    """A convolution of two images that lie end to end, padded to their size, and relu: one kernel of a network."""
    inputs = [Value(name, (1, size, size, count)) for name, count in zip("ab", channels, strict=True)]
    builder = GraphBuilder("level", inputs)
    weight = builder.constant(np.zeros((kernel, kernel, sum(channels), filters), np.float32), "w")
    pads = (kernel // 2,) * 4
    attrs: dict[str, Attribute] = {"strides": (1, 1), "pads": pads, "dilations": (1, 1), "groups": 1}
    joined = builder.emit("concat", ("a", "b"), {"axis": 3})
    made = builder.emit("conv2d", (joined, weight), {**attrs, "layout": "NHWC"})
    graph = builder.finish({"y": builder.emit("relu", (made,))})
    group = FusedOp(graph.nodes, 1)
    return express(graph, group)


def conv_bn_relu(
    n: int, size: int, channels_in: int, channels_out: int, kernel: int, stride: int, pad: int
) -> ComputeDAG:
    """NCHW convolution, + bias, * scale, + offset, relu."""
    data = te.placeholder((n, channels_in, size, size), name="Data")
    weight = te.placeholder((channels_out, channels_in, kernel, kernel), name="Kernel")
    bias, scale, offset = (te.placeholder((channels_out, 1, 1), name=name) for name in ("Bias", "Scale", "Offset"))
    wide = size + 2 * pad

    def padded(b: te.Axis, c: te.Axis, y: te.Axis, x: te.Axis) -> te.TensorRead:
        inside = te.logical_and(y >= pad, y < size + pad, x >= pad, x < size + pad)
        return te.if_then_else(inside, data[b, c, y - pad, x - pad], 0.0)  # type: ignore[return-value]

    source = te.compute((n, channels_in, wide, wide), padded, "pad")
    out = (wide - kernel) // stride + 1
    rc, ry, rx = te.reduce_axis(channels_in, "rc"), te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx")
    conv = te.compute(
        (n, channels_out, out, out),
        lambda b, f, y, x: te.sum(
            source[b, rc, y * stride + ry, x * stride + rx] * weight[f, rc, ry, rx], (rc, ry, rx)
        ),
        "conv",
        {"layout_free_placeholders": (weight,)},
    )
    biased = te.compute(conv.shape, lambda b, f, y, x: conv[b, f, y, x] + bias[f, 0, 0], "Bias_add")
    scaled = te.compute(conv.shape, lambda b, f, y, x: biased[b, f, y, x] * scale[f, 0, 0], "Bn_mul")
    moved = te.compute(conv.shape, lambda b, f, y, x: scaled[b, f, y, x] + offset[f, 0, 0], "Bn_add")
    relu = te.compute(conv.shape, lambda b, f, y, x: te.maximum(moved[b, f, y, x], 0.0), "relu")
    return ComputeDAG([data, weight, bias, scale, offset, relu])


def conv_residual_nhwc(size: int, channels: int, kernel: int = 3) -> ComputeDAG:
    """A channels-last convolution, + bias, + residual, relu: the tail of a residual block."""
    pad = kernel // 2
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((kernel, kernel, channels, channels), name="weight")
    bias = te.placeholder((channels,), name="bias")
    residual = te.placeholder((1, size, size, channels), name="residual")
    wide = size + 2 * pad
    source = te.compute(
        (1, wide, wide, channels),
        lambda n, y, x, c: te.if_then_else(
            te.logical_and(y >= pad, y < size + pad, x >= pad, x < size + pad), data[n, y - pad, x - pad, c], 0.0
        ),
        "pad",
    )
    ry, rx, rc = te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx"), te.reduce_axis(channels, "rc")
    conv = te.compute(
        (1, size, size, channels),
        lambda n, y, x, f: te.sum(source[n, y + ry, x + rx, rc] * weight[ry, rx, rc, f], (ry, rx, rc)),
        "conv",
        {"layout_free_placeholders": (weight,)},
    )
    biased = te.compute(conv.shape, lambda n, y, x, f: conv[n, y, x, f] + bias[f], "biased")
    added = te.compute(conv.shape, lambda n, y, x, f: biased[n, y, x, f] + residual[n, y, x, f], "added")
    relu = te.compute(conv.shape, lambda n, y, x, f: te.maximum(added[n, y, x, f], 0.0), "relu")
    return ComputeDAG([data, weight, bias, residual, relu])


def parallel_matmul(n: int) -> ComputeDAG:
    """D = A B and E = A C: one input read by two."""
    a, b, c = (te.placeholder((n, n), name=name) for name in "ABC")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    d = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "D")
    e = te.compute((n, n), lambda i, j: te.sum(a[i, r] * c[r, j], r), "E")
    return ComputeDAG([a, b, c, d, e])


def max_pool_nchw(n: int, height: int, width: int, channels: int, padding: int) -> ComputeDAG:
    """2x2 maximum with stride 1, channels first."""
    data = te.placeholder((n, channels, height, width), name="Data")
    source = data
    if padding:
        source = te.compute(
            (n, channels, height + 2 * padding, width + 2 * padding),
            lambda b, c, y, x: te.if_then_else(
                te.logical_and(y >= padding, y < height + padding, x >= padding, x < width + padding),
                data[b, c, y - padding, x - padding],
                -3.4028234663852886e38,
            ),
            "pad",
        )
    dh, dw = te.reduce_axis(2, "dh"), te.reduce_axis(2, "dw")
    out = te.compute(
        (n, channels, source.shape[2] - 1, source.shape[3] - 1),
        lambda b, c, y, x: te.max(source[b, c, y + dh, x + dw], (dh, dw)),
        "pool",
    )
    return ComputeDAG([data, out])


def min_nm(n: int, m: int) -> ComputeDAG:
    """The minimum of every row."""
    a, k = te.placeholder((n, m), name="A"), te.reduce_axis(m, "k")
    return ComputeDAG([a, te.compute((n,), lambda i: te.min(a[i, k], k), "B")])


def softmax(*shape: int) -> ComputeDAG:
    """Softmax over the last axis: maximum, exponential, sum, quotient."""
    a = te.placeholder(shape, name="A")
    k, r = te.reduce_axis(shape[-1], "k"), te.reduce_axis(shape[-1], "k")
    top = te.compute(shape[:-1], lambda *i: te.max(a[(*i, k)], k), "max")
    powers = te.compute(shape, lambda *i: te.exp(a[tuple(i)] - top[tuple(i[:-1])]), "exp")
    total = te.compute(shape[:-1], lambda *i: te.sum(powers[(*i, r)], r), "sum")
    return ComputeDAG([a, te.compute(shape, lambda *i: powers[tuple(i)] / total[tuple(i[:-1])], "div")])


def zero_rank_reduce(n: int) -> ComputeDAG:
    """The sum of a vector, a scalar."""
    a, k = te.placeholder((n,), name="A"), te.reduce_axis(n, "k")
    return ComputeDAG([a, te.compute((), lambda: te.sum(a[k], k), "B")])


def zero_rank_compute(n: int) -> ComputeDAG:
    """One element of a vector."""
    a = te.placeholder((n,), name="A")

    def first() -> Expr:
        return a[0]

    return ComputeDAG([a, te.compute((), first, "B")])


def winograd_nhwc(n: int, size: int, channels_in: int, channels_out: int, padding: int, tile: int = 4) -> ComputeDAG:
    """A 3x3 convolution, channels last, of transformed weights."""
    data = te.placeholder((n, size, size, channels_in), name="inputs")
    alpha = tile + 2
    weight = te.placeholder((alpha, alpha, channels_in, channels_out), name="weight")
    return ComputeDAG([data, weight, winograd_conv2d(data, weight, padding)])


def transformed_convolution(
    size: int,
    channels: tuple[int, int],
    tile: int,
    pads: tuple[tuple[int, int], ...],
    batch: int = 1,
    depth: tuple[int, ...] = (),
    taps: tuple[int, ...] = (),
) -> ComputeDAG:
    """A 3x3 convolution, channels last, in the transformed space, with bias, residual and relu behind it; of `depth`
    images with weights of `taps` images where these are given.
    """
    data = te.placeholder((batch, *depth, size, size, channels[0]), name="data")
    weight = te.placeholder((tile + 2, tile + 2, *taps, *channels), name="weight")
    free: dict[str, object] = {"layout_free_placeholders": (weight,)}
    result = winograd.winograd_conv(data, weight, pads, attrs=free)
    bias, other = te.placeholder((channels[1],), name="bias"), te.placeholder(result.shape, name="residual")
    names = ("n", *"z"[: len(depth)], "y", "x", "c")
    added = te.compute(result.shape, lambda *at: result[at] + bias[at[-1]], "bias_add", varargs_names=names)
    joined = te.compute(result.shape, lambda *at: added[at] + other[at], "add", varargs_names=names)
    zero = te.const(0.0, "float32")
    rectified = te.compute(result.shape, lambda *at: te.maximum(joined[at], zero), "relu", varargs_names=names)
    return ComputeDAG([data, weight, bias, other, rectified])


def max_pool(size: int, channels: int) -> ComputeDAG:
    """2x2 maximum, channels last: a reduction without reuse."""
    data = te.placeholder((1, size, size, channels), name="data")
    ry, rx = te.reduce_axis(2, "ry"), te.reduce_axis(2, "rx")
    out = te.compute(
        (1, size - 1, size - 1, channels), lambda n, y, x, c: te.max(data[n, y + ry, x + rx, c], (ry, rx)), "pool"
    )
    return ComputeDAG([data, out])


def relu_only(n: int) -> ComputeDAG:
    """One elementwise loop."""
    a = te.placeholder((n,), name="A")
    return ComputeDAG([a, te.compute((n,), lambda i: te.maximum(a[i], 0.0), "B")])
