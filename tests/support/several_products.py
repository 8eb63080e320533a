"""Elementwise tails over several products: the operators that users write by hand."""

from collections.abc import Callable

from retune.compiler import te
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.tensor import Tensor

inputs = te.placeholder


def product(a: Tensor, b: Tensor, name: str) -> Tensor:
    """The matrix product of `a` and `b`."""
    k = te.reduce_axis(a.shape[1], f"k_{name}")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, k] * b[k, j], k), name)


def lstm_cell(rows: int, width: int, hidden: int) -> ComputeDAG:
    """The next hidden state of an LSTM: four products, one result."""
    x, c = inputs((rows, width), name="x"), inputs((rows, hidden), name="c")
    weights = [inputs((width, hidden), name=f"w_{gate}") for gate in "ifgo"]
    i, f, g, o = (product(x, weight, gate) for gate, weight in zip("ifgo", weights, strict=True))
    cell = te.compute(
        (rows, hidden), lambda n, h: te.sigmoid(f[n, h]) * c[n, h] + te.sigmoid(i[n, h]) * te.tanh(g[n, h])
    )
    return ComputeDAG(
        [x, c, *weights, te.compute(cell.shape, lambda n, h: te.sigmoid(o[n, h]) * te.tanh(cell[n, h]), "h")]
    )


def gated_mlp(rows: int, width: int, hidden: int) -> ComputeDAG:
    """`silu(x U) * (x G)`."""
    x, u, g = inputs((rows, width), name="x"), inputs((width, hidden), name="u"), inputs((width, hidden), name="g")
    up, gate = product(x, u, "up"), product(x, g, "gate")
    return ComputeDAG([x, u, g, te.compute(up.shape, lambda i, j: up[i, j] * te.sigmoid(up[i, j]) * gate[i, j], "y")])


def complex_product(n: int) -> ComputeDAG:
    """The real and the imaginary part of a product of complex matrices: two results."""
    ar, ai, br, bi = (inputs((n, n), name=name) for name in ("ar", "ai", "br", "bi"))
    rr, ii, ri, ir = product(ar, br, "rr"), product(ai, bi, "ii"), product(ar, bi, "ri"), product(ai, br, "ir")
    real = te.compute((n, n), lambda i, j: rr[i, j] - ii[i, j], "re")
    return ComputeDAG([ar, ai, br, bi, real, te.compute((n, n), lambda i, j: ri[i, j] + ir[i, j], "im")])


def residual_block(size: int, channels: int) -> ComputeDAG:
    """ReLU of a 3 x 3 convolution plus a 1 x 1 convolution of the same image."""
    x = inputs((1, size + 2, size + 2, channels), name="x")
    w, v = inputs((3, 3, channels, channels), name="w"), inputs((channels, channels), name="v")
    r, s, c, d = (te.reduce_axis(extent, name) for extent, name in zip((3, 3, channels, channels), "rscd", strict=True))
    shape = (1, size, size, channels)
    a = te.compute(shape, lambda n, y, z, f: te.sum(x[n, y + r, z + s, c] * w[r, s, c, f], (r, s, c)), "a")
    b = te.compute(shape, lambda n, y, z, f: te.sum(x[n, y + 1, z + 1, d] * v[d, f], d), "b")
    return ComputeDAG([x, w, v, te.compute(shape, lambda *at: te.maximum(a[at] + b[at], 0.0), "y")])


def masked_product(n: int, width: int) -> ComputeDAG:
    """A product where a mask by columns chooses between it and one number, as in masked attention."""
    a, b, mask = inputs((n, width), name="a"), inputs((width, n), name="b"), inputs((1, n), "bool", name="mask")
    fill = inputs((), name="fill")
    y, shown = product(a, b, "y"), te.compute((n, n), lambda _, j: mask[0, j], "shown")
    filled = te.compute((n, n), lambda *_: fill[()], "filled")
    return ComputeDAG(
        [a, b, mask, fill, te.compute((n, n), lambda i, j: te.select(shown[i, j], y[i, j], filled[i, j]))]
    )


CASES: dict[str, Callable[[], ComputeDAG]] = {
    "LSTM cell": lambda: lstm_cell(8, 24, 16),
    "gated MLP": lambda: gated_mlp(8, 24, 40),
    "complex product": lambda: complex_product(12),
    "residual block": lambda: residual_block(6, 8),
    "masked product": lambda: masked_product(12, 8),
}
