"""Small and large computations that the search tests share."""

from compiler import te
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.task import SearchTask
from compiler.target import HardwareParams, Target

CORES = HardwareParams(num_cores=4)


def task_of(name: str, dag: ComputeDAG, hardware: HardwareParams = CORES) -> SearchTask:
    """A task for the machine that runs the tests."""
    return SearchTask(name, dag, Target.host(), hardware)


def matmul(n: int, m: int, k: int) -> ComputeDAG:
    """C[i, j] = sum of A[i, k] * B[k, j]; B may be packed."""
    a = te.placeholder((n, k), name="A")
    b = te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    return ComputeDAG([a, b, c])


def double_matmul(n: int) -> ComputeDAG:
    """E = (A B) C, all square."""
    a, b, c = (te.placeholder((n, n), name=name) for name in "ABC")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    d = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "D")
    e = te.compute((n, n), lambda i, j: te.sum(d[i, r] * c[r, j], r), "E")
    return ComputeDAG([a, b, c, e])


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
