"""Random small computations with unusual access patterns, reproducible from the seed.

Together they cover strides, dilations, groups, padding, any layout, several readers and outputs, chains, indirect and
non-affine reads, and types other than float32.
"""

from collections.abc import Callable

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.tensor import Tensor
from tests.support.property.draws import Source


def _size(rng: Source, high: int, low: int = 1) -> int:
    return int(rng.integers(low, high + 1))


def _pad(x: Tensor, pad: int, height: int, width: int, channels_last: bool) -> Tensor:
    """`x` with a border of zeros around its two spatial dimensions."""

    def body(n: Expr, a: Expr, b: Expr, c: Expr) -> Expr:
        row, column = (a, b) if channels_last else (b, c)
        inside = te.logical_and(row >= pad, row < height + pad, column >= pad, column < width + pad)
        read = x[n, row - pad, column - pad, c] if channels_last else x[n, a, row - pad, column - pad]
        return te.if_then_else(inside, read, 0.0)

    grown = (height + 2 * pad, width + 2 * pad)
    shape = (x.shape[0], *grown, x.shape[3]) if channels_last else (*x.shape[:2], *grown)
    return te.compute(shape, body, "pad")


def convolution(rng: Source) -> ComputeDAG:
    """A convolution of any layout, stride, dilation, grouping and padding with an elementwise tail."""
    channels_last, groups = bool(rng.integers(2)), _size(rng, 3)
    into, out = _size(rng, 5), _size(rng, 20)
    kernel, stride, dilation, pad = _size(rng, 3), _size(rng, 3), _size(rng, 2), _size(rng, 2, 0)
    height, width = (max(1, (kernel - 1) * dilation + 1 - 2 * pad) + _size(rng, 7, 0) for _ in range(2))
    shape = (1, height, width, groups * into) if channels_last else (_size(rng, 2), groups * into, height, width)
    x = te.placeholder(shape, name="x")
    places = [int(place) for place in rng.permutation(4)]
    sizes = (kernel, kernel, into, groups * out)
    weight = te.placeholder([sizes[place] for place in places], name="w")
    source = _pad(x, pad, height, width, channels_last) if pad else x
    high, wide = ((size + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for size in (height, width))
    kh, kw, ci = te.reduce_axis(kernel, "kh"), te.reduce_axis(kernel, "kw"), te.reduce_axis(into, "ci")

    def body(n: Expr, a: Expr, b: Expr, c: Expr) -> Expr:
        row, column, channel = (a, b, c) if channels_last else (b, c, a)
        y, z = row * stride + kh * dilation, column * stride + kw * dilation
        k = channel // out * into + ci if groups > 1 else ci + 0
        point = (kh, kw, ci, channel)
        read = source[n, y, z, k] if channels_last else source[n, k, y, z]
        return te.sum(read * weight[tuple(point[place] for place in places)], [kh, kw, ci])

    result = (1, high, wide, groups * out) if channels_last else (shape[0], groups * out, high, wide)
    conv = te.compute(result, body, "conv", {"layout_free_placeholders": (weight,)} if rng.integers(2) else None)
    return _tail(rng, [x, weight], conv)


def _tail(rng: Source, inputs: list[Tensor], last: Tensor) -> ComputeDAG:
    """What follows a convolution: activation, residual, a diamond, a second output or a second reduction."""
    shape = last.shape
    match rng.integers(6):
        case 0:
            return ComputeDAG([*inputs, te.compute(shape, lambda a, b, c, d: te.maximum(last[a, b, c, d], 0.0), "r")])
        case 1:
            skip, bias = te.placeholder(shape, name="skip"), te.placeholder(shape[3:], name="bias")
            moved = te.compute(shape, lambda a, b, c, d: last[a, b, c, d] + bias[d], "moved")
            added = te.compute(shape, lambda a, b, c, d: moved[a, b, c, d] + skip[a, b, c, d], "added")
            return ComputeDAG([*inputs, skip, bias, added])
        case 2:
            gate = te.compute(shape, lambda a, b, c, d: te.sigmoid(last[a, b, c, d]), "gate")
            return ComputeDAG(
                [*inputs, te.compute(shape, lambda a, b, c, d: last[a, b, c, d] * gate[a, b, c, d], "silu")]
            )
        case 3:
            one = te.compute(shape, lambda a, b, c, d: te.maximum(last[a, b, c, d], 0.0), "one")
            two = te.compute(shape[::-1], lambda a, b, c, d: last[d, c, b, a] * 2.0, "two")
            return ComputeDAG([*inputs, one, two])
        case 4:
            p, q = te.reduce_axis(shape[1], "p"), te.reduce_axis(shape[2], "q")
            mean = te.compute((shape[0], shape[3]), lambda a, d: te.sum(last[a, p, q, d], [p, q]), "mean")
            moved = te.compute(shape, lambda a, b, c, d: last[a, b, c, d] - mean[a, d], "centred")
            return ComputeDAG([*inputs, moved])
    return ComputeDAG([*inputs, last])


def separable(rng: Source) -> ComputeDAG:
    """Padding, depthwise convolution, activation, pointwise convolution, activation: a chain to attach along."""
    size, channels, filters, stride = _size(rng, 7), _size(rng, 20), _size(rng, 20), _size(rng, 2)
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((3, 3, channels), name="w")
    v = te.placeholder((filters, channels), name="v")
    padded = _pad(x, 1, size, size, True)
    kh, kw, ci = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw"), te.reduce_axis(channels, "ci")
    out = (size - 1) // stride + 1
    deep = te.compute(
        (1, out, out, channels),
        lambda n, h, i, c: te.sum(padded[n, h * stride + kh, i * stride + kw, c] * w[kh, kw, c], [kh, kw]),
        "deep",
    )
    six = te.compute(deep.shape, lambda n, h, i, c: te.minimum(te.maximum(deep[n, h, i, c], 0.0), 6.0), "six")
    wide = te.compute(
        (1, out, out, filters),
        lambda n, h, i, f: te.sum(six[n, h, i, ci] * v[f, ci], ci),
        "wide",
        {"layout_free_placeholders": (v,)},
    )
    return ComputeDAG([x, w, v, te.compute(wide.shape, lambda n, h, i, f: te.maximum(wide[n, h, i, f], 0.0), "r")])


def transposed_convolution(rng: Source) -> ComputeDAG:
    """Reads at quotients under a lazy choice of remainders."""
    size, kernel, stride = _size(rng, 9), _size(rng, 4), _size(rng, 3)
    into, out = _size(rng, 4), _size(rng, 20)
    x, w = te.placeholder((size, into), name="x"), te.placeholder((kernel, into, out), name="w")
    k, ci = te.reduce_axis(kernel, "k"), te.reduce_axis(into, "ci")
    length = (size - 1) * stride + kernel

    def spread(i: Expr, c: Expr) -> Expr:
        at = i - (kernel - 1)
        inside = te.logical_and(at >= 0, at < size * stride, te.equal(at % stride, 0))
        return te.if_then_else(inside, x[at // stride, c], 0.0)

    grown = te.compute((length + kernel - 1, into), spread, "grown")
    y = te.compute(
        (length, out), lambda i, f: te.sum(grown[i + k, ci] * w[kernel - 1 - k, ci, f], [k, ci]), "transposed"
    )
    return ComputeDAG([x, w, te.compute(y.shape, lambda i, f: te.tanh(y[i, f]), "t")])


def batch_matmul(rng: Source) -> ComputeDAG:
    """Any operand turned round, integers or floats, one output of scores and one of their sums."""
    b, n, m, k = _size(rng, 3), _size(rng, 9), _size(rng, 40), _size(rng, 17)
    dtype = ["float32", "float64", "int32", "int8", "uint8"][int(rng.integers(5))]
    left, right = bool(rng.integers(2)), bool(rng.integers(2))
    p = te.placeholder((b, k, n) if left else (b, n, k), dtype, "p")
    q = te.placeholder((b, m, k) if right else (b, k, m), dtype, "q")
    wide = dtype if "float" in dtype else "int32"
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(m, "s")

    def product(z: Expr, i: Expr, j: Expr) -> Expr:
        one = p[z, r, i] if left else p[z, i, r]
        two = q[z, j, r] if right else q[z, r, j]
        return te.sum(te.cast(wide, one) * te.cast(wide, two), r)

    attrs = {"layout_free_placeholders": (q,)} if rng.integers(2) else None
    scores = te.compute((b, n, m), product, "scores", attrs)
    total = te.compute((b, n), lambda z, i: te.sum(scores[z, i, s], s), "total")
    if rng.integers(2):
        return ComputeDAG([p, q, total])
    doubled = te.compute((b, n, m), lambda z, i, j: scores[z, i, j] * 2, "doubled")
    return ComputeDAG([p, q, doubled, total])


def normalization(rng: Source) -> ComputeDAG:
    """A layer normalization: two reductions that read what the last stage reads too."""
    rows, columns = _size(rng, 9), _size(rng, 70)
    x, scale = te.placeholder((rows, columns), name="x"), te.placeholder((columns,), name="scale")
    k, q = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "q")
    total = te.compute((rows,), lambda i: te.sum(x[i, k], k), "total")
    mean = te.compute((rows,), lambda i: total[i] / float(columns), "mean")
    apart = te.compute((rows, columns), lambda i, j: x[i, j] - mean[i], "apart")
    spread = te.compute((rows,), lambda i: te.sum(apart[i, q] * apart[i, q], q), "spread")
    root = te.compute((rows,), lambda i: te.rsqrt(spread[i] / float(columns) + 1e-3), "root")
    return ComputeDAG([x, scale, te.compute((rows, columns), lambda i, j: apart[i, j] * root[i] * scale[j], "normal")])


def indirect(rng: Source) -> ComputeDAG:
    """Rows picked by computed numbers, then summed in windows; indices that are clipped, turned and divided."""
    rows, columns, count = _size(rng, 9), _size(rng, 40), _size(rng, 12)
    window = _size(rng, 3)
    table = te.placeholder((rows, columns), name="table")
    picks = te.placeholder((count,), ["int64", "int32", "uint8"][int(rng.integers(3))], "picks")
    row = te.compute((count,), lambda i: te.cast("int64", picks[i]) % rows, "row")
    found = te.compute((count, columns), lambda i, j: table[row[i], j] * 2.0, "found")
    k = te.reduce_axis(window, "k")
    summed = te.compute((count, columns), lambda i, j: te.sum(found[te.minimum(i + k, count - 1), j], k), "summed")
    half = (columns + 1) // 2
    nearest = te.compute(
        (count, half), lambda i, j: summed[count - 1 - i, te.cast("int64", te.cast("float32", j) * 0.5)], "nearest"
    )
    return ComputeDAG([table, picks, nearest])


def reshaped(rng: Source) -> ComputeDAG:
    """Reshape, transpose, broadcast of one row, reads at constant places."""
    n, m = _size(rng, 12), _size(rng, 20)
    x = te.placeholder((n, m), name="x")
    flat = te.compute((n * m,), lambda i: x[i // m, i % m] * 2.0, "flat")
    turned = te.compute((m, n), lambda j, i: flat[i * m + j] + 1.0, "turned")
    mixed = te.compute((n, n), lambda i, j: turned[m // 2, (i + j) % n], "mixed")
    return ComputeDAG([x, te.compute((n,), lambda i: mixed[0, i] + mixed[i, i], "picked")])


def compared(rng: Source) -> ComputeDAG:
    """Booleans as results, as conditions, as stages of their own, and reduced."""
    n, m = _size(rng, 9), _size(rng, 70)
    a, b = te.placeholder((n, m), name="a"), te.placeholder((m, n), name="b")
    k = te.reduce_axis(m, "k")
    above = te.compute((n, m), lambda i, j: a[i, j] < b[j, i], "above")
    chosen = te.compute((n, m), lambda i, j: te.if_then_else(above[i, j], a[i, j], b[j, i] * 3.0), "chosen")
    count = te.compute((n,), lambda i: te.sum(te.cast("int32", above[i, k]), k), "count")
    seen = te.compute((n,), lambda i: te.max(above[i, k], k), "seen")
    return ComputeDAG([a, b, chosen, count, seen])


def scalar(rng: Source) -> ComputeDAG:
    """A sum over everything, which then scales everything."""
    n, m = _size(rng, 9), _size(rng, 40)
    x = te.placeholder((n, m), name="x")
    i, j = te.reduce_axis(n, "i"), te.reduce_axis(m, "j")
    total = te.compute((), lambda: te.sum(x[i, j], [i, j]), "total")
    if rng.integers(3) == 0:
        return ComputeDAG([x, total])
    return ComputeDAG([x, te.compute((n, m), lambda a, b: x[a, b] / (te.abs(total[()]) + 1.0), "scaled")])


KINDS: tuple[Callable[[Source], ComputeDAG], ...] = (
    convolution,
    convolution,
    convolution,
    separable,
    transposed_convolution,
    batch_matmul,
    normalization,
    indirect,
    reshaped,
    compared,
    scalar,
)


def random_computation(rng: Source) -> ComputeDAG:
    """One of the computations above with small random, often awkward, extents."""
    return KINDS[int(rng.integers(len(KINDS)))](rng)
