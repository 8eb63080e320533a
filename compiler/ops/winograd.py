"""Stride-1 convolutions by Winograd's minimal filtering, channels last.

The result is that of the direct convolution up to rounding, with fewer products. A tile of m x m outputs is computed of
alpha x alpha inputs, alpha = m + r - 1: both are brought into a space in which a convolution is a product of elements,
so that the work becomes alpha^2 matrix products. The weights are brought there beforehand. (Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, 2016).

    data_pad -> data_rows -> data_pack -> bgemm -> inverse_rows -> the result
Each transform goes over the rows first and then over the columns, which takes a third of the operations of both at
once. A transform is a choice among sums of few terms, by the digit of an index that a schedule unrolls: nothing is
multiplied by 0 or 1, and what two rows of a matrix share is computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.conv import window_extent, zero_padded
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall
from retune.compiler.te.tensor import Tensor

KERNEL = 3
"""The extent of the kernels that graphs may transform."""

TRANSFORMED = "winograd_tile"
"""The attribute of the result's operation that holds m; the sketch rule of these convolutions looks for it."""

_POINTS = tuple(Fraction(point) for point in ("0", "1", "-1", "2", "-2", "1/2", "-1/2"))
"""Where the polynomials are evaluated, besides infinity; small numbers keep the rounding errors small."""
_FIVE_POINTS = tuple(Fraction(point) for point in ("0", "3/4", "-3/4", "3/2", "-3/2"))
"""Five points with a third of the rounding errors of 0, 1, -1, 2 and -2, found by trying; all factors stay exact."""

Matrix = tuple[tuple[float, ...], ...]


def transform_matrices(tile: int, kernel: int) -> tuple[Matrix, Matrix, Matrix]:
    """(A, B, G) of F(tile, kernel): shapes (alpha, tile), (alpha, alpha) and (alpha, kernel).

    For one dimension: outputs = A^T ((G weights) * (B^T inputs)).
    Raises: DefinitionError when the tile is too large for single precision.
    """
    alpha = tile + kernel - 1
    if tile < 1 or kernel < 1 or alpha - 1 > len(_POINTS):
        raise DefinitionError(f"a Winograd transform of {kernel} weights and {tile} outputs is not available")
    # Toom-Cook construction: evaluate at alpha - 1 points and at infinity, multiply, interpolate. Fractions keep it
    # exact.
    points = _FIVE_POINTS if alpha - 1 == len(_FIVE_POINTS) else _POINTS[: alpha - 1]
    a = [[point**power for power in range(tile)] for point in points]
    g = []
    # The denominators of Lagrange's interpolation go into the weights, which are transformed beforehand.
    for point in points:
        scale = Fraction(1)
        for other in points:
            scale *= point - other if other != point else 1
        g.append([point**power / scale for power in range(kernel)])
    b = [[*_roots_polynomial([other for other in points if other != point]), Fraction(0)] for point in points]
    # Infinity stands for the leading coefficients.
    a.append([Fraction(int(power == tile - 1)) for power in range(tile)])
    g.append([Fraction(int(power == kernel - 1)) for power in range(kernel)])
    b.append(_roots_polynomial(points))
    transposed = [list(column) for column in zip(*b, strict=True)]
    return _floats(a), _floats(transposed), _floats(g)


def _roots_polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the polynomial with these roots and leading coefficient 1."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [-root * value for value in (*found, Fraction(0))]
        found = [one + other for one, other in zip(shifted, scaled, strict=True)]
    return found


def _floats(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)


def transformed_weight(weight: NDArray[np.generic], tile: int) -> NDArray[np.generic]:
    """Weights (r, r, CI, CO) in the transformed space, (alpha, alpha, CI, CO), of the same dtype.

    Computed in float64, so that the only rounding is the last one.
    """
    g = np.array(transform_matrices(tile, weight.shape[0])[2])
    wide = np.einsum("ea,abio,nb->enio", g, weight.astype(np.float64), g, optimize=True)
    return np.ascontiguousarray(wide.astype(weight.dtype))


def _winograd(call: OpCall) -> Lowered:
    """A 3x3 convolution of stride 1 whose weight is (tile + 2, tile + 2, I, O)."""
    x, w = call.types
    tile, pads = call.integer("tile"), call.ints("pads")
    fits = len(x.shape) == 4 and len(pads) == 4 and w.shape[:-1] == (tile + 2, tile + 2, x.shape[3])
    call.require(fits, f"the weight must be ({tile + 2}, {tile + 2}, I, O), the pads four numbers")
    extents = [window_extent(x.shape[1 + i], KERNEL, 1, 1, pads[i], pads[2 + i]) for i in range(2)]
    call.require(min(extents) > 0, "the window (3, 3) does not fit")

    def build(data: Tensor, weight: Tensor) -> Tensor:
        border = ((pads[0], pads[2]), (pads[1], pads[3]))
        return winograd_conv2d(data, weight, border, name=call.name, attrs=call.layout_free(weight))

    return Lowered((x.shape[0], *extents, w.shape[3]), x.dtype, build)


def _winograd_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    """Tile by tile, in the precision of the operands."""
    x, weight = arrays
    tile, (top, left, bottom, right) = call.integer("tile"), call.ints("pads")
    a, b = (np.array(matrix, weight.dtype) for matrix in transform_matrices(tile, 3)[:2])
    height, width = x.shape[1] + top + bottom - 2, x.shape[2] + left + right - 2
    below, beside = -height % tile, -width % tile
    padded = np.pad(x, ((0, 0), (top, bottom + below), (left, right + beside), (0, 0)))
    # Tiles overlap by r - 1 = 2 inputs: every window of m + 2 starts m after the one before.
    windows = sliding_window_view(padded, (tile + 2, tile + 2), axis=(1, 2))[:, ::tile, ::tile]
    turned = np.einsum("ie,bhwcij,jf->efbhwc", b, windows, b, optimize=True)
    products = np.einsum("efbhwc,efco->efbhwo", turned, weight, optimize=True)
    tiles = np.einsum("em,efbhwo,fn->bhmwno", a, products, a, optimize=True)
    whole = tiles.reshape(x.shape[0], height + below, width + beside, weight.shape[3])
    return np.ascontiguousarray(whole[:, :height, :width])


def winograd_conv2d(
    data: Tensor,
    packed: Tensor,
    pads: tuple[tuple[int, int], tuple[int, int]],
    kernel: int = KERNEL,
    name: str = "winograd_conv2d",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """A stride-1 convolution of (N, H, W, CI) with weights of `transformed_weight`, (alpha, alpha, CI, CO).

    `pads` are rows of zeros (above, below) and columns (left, right) around the input. Returns (N, H', W', CO). `attrs`
    are those of the stage that reads the weights.
    """
    alpha, _, channels_in, channels_out = packed.shape
    tile = alpha - kernel + 1
    a, b, _ = transform_matrices(tile, kernel)
    batch, height, width, _ = data.shape
    out_h, out_w = height + sum(pads[0]) - kernel + 1, width + sum(pads[1]) - kernel + 1
    # The last tiles may compute results beyond the edge, which are never read.
    tiles_h, tiles_w = -(-out_h // tile), -(-out_w // tile)
    padded = _padded(data, pads, (tiles_h * tile + kernel - 1, tiles_w * tile + kernel - 1))
    rows_of = _products(list(zip(*b, strict=True)))
    rows = te.compute(
        (alpha, batch, tiles_h, tiles_w * tile + kernel - 1, channels_in),
        lambda eps, n, th, x, ci: rows_of(eps, [padded[n, th * tile + i, x, ci] for i in range(alpha)]),
        "data_rows",
    )
    transformed = te.compute(
        (alpha, alpha, batch, tiles_h, tiles_w, channels_in),
        lambda eps, nu, n, th, tw, ci: rows_of(nu, [rows[eps, n, th, tw * tile + j, ci] for j in range(alpha)]),
        "data_pack",
    )
    rc = te.reduce_axis(channels_in, "ci")
    product = te.compute(
        (alpha, alpha, batch, tiles_h, tiles_w, channels_out),
        lambda eps, nu, n, th, tw, co: te.sum(transformed[eps, nu, n, th, tw, rc] * packed[eps, nu, rc, co], rc),
        "bgemm",
        dict(attrs or {}),
    )
    columns_of = _products(list(zip(*a, strict=True)))
    inverse = te.compute(
        (tile, alpha, batch, tiles_h, tiles_w, channels_out),
        lambda vh, nu, n, th, tw, co: columns_of(vh, [product[i, nu, n, th, tw, co] for i in range(alpha)]),
        "inverse_rows",
    )
    return te.compute(
        (batch, out_h, out_w, channels_out),
        lambda n, h, w, co: columns_of(
            w % tile, [inverse[h % tile, j, n, h // tile, w // tile, co] for j in range(alpha)]
        ),
        name,
        {TRANSFORMED: tile},
    )


def _products(rows: Sequence[Sequence[float]]) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """A function of a row's number and the elements of a vector: that row of the matrix times the vector."""
    return lambda row, values: _choice(row, [_dot(rows, number, values) for number in range(len(rows))])


def _choice(index: Expr, values: Sequence[Expr]) -> Expr:
    """The value number `index`."""
    # The schedule unrolls the loop over `index`, which decides every choice at compile time.
    chosen = values[-1]
    for number in range(len(values) - 2, -1, -1):
        chosen = te.if_then_else(index < number + 1, values[number], chosen)
    return chosen


def _dot(rows: Sequence[Sequence[float]], number: int, values: Sequence[Expr]) -> Expr:
    """Row `number` times the vector, written so that rows have sums in common: of two elements that all rows take alike
    up to the sign, their sum or difference; of two rows that differ in the signs of some terms, the sum of these.
    """
    row = list(rows[number])
    terms: list[tuple[float, Expr]] = []
    for first, second in _mirrored_columns(rows):
        joined = values[first] + values[second] if row[first] == row[second] else values[first] - values[second]
        terms.append((row[first], joined))
        row[first] = row[second] = 0.0
    terms += [(factor, values[place]) for place, factor in enumerate(row)]
    partner = _mirrored_row(rows, number)
    if partner is None:
        return _sum(terms)
    first = min(number, partner)
    own, other = rows[first], rows[max(number, partner)]
    same = [(factor, values[place]) for place, factor in enumerate(own) if factor == other[place]]
    turned = [(factor, values[place]) for place, factor in enumerate(own) if factor != other[place]]
    return _sum(same) + _sum(turned) if number == first else _sum(same) - _sum(turned)


def _mirrored_columns(rows: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs of columns that are equal up to the signs, in which both signs occur."""
    columns = list(zip(*rows, strict=True))
    return [
        (first, first + 1)
        for first in range(len(columns) - 1)
        if list(map(abs, columns[first])) == list(map(abs, columns[first + 1]))
        and any(one == other != 0 for one, other in zip(columns[first], columns[first + 1], strict=True))
        and any(one != other for one, other in zip(columns[first], columns[first + 1], strict=True))
    ]


def _mirrored_row(rows: Sequence[Sequence[float]], number: int) -> int | None:
    """The row that is equal up to the signs, of which some agree and some do not; None when there is no such row."""
    for other, factors in enumerate(rows):
        pairs = [pair for pair in zip(rows[number], factors, strict=True) if any(pair)]
        alike = [one == two for one, two in pairs]
        if all(abs(one) == abs(two) for one, two in pairs) and any(alike) and not all(alike):
            return other
    return None


def _sum(terms: Sequence[tuple[float, Expr]]) -> Expr:
    """The sum of factors times values; those taken as they are come first, then multiply-adds follow."""
    total: Expr | None = None
    for factor, value in sorted((term for term in terms if term[0]), key=lambda term: term[0] != 1.0):
        if total is None:
            total = value if factor == 1.0 else value * te.const(factor, value.dtype)
        elif abs(factor) == 1.0:
            total = total + value if factor == 1.0 else total - value
        else:
            total = total + value * te.const(factor, value.dtype)
    assert total is not None, "a row of zeros transforms nothing"
    return total


def _padded(data: Tensor, pads: tuple[tuple[int, int], tuple[int, int]], sizes: tuple[int, int]) -> Tensor:
    """The input with zeros around it, as far as the tiles reach; the last ones may reach further than the padding."""
    inside = data.shape[1:3]
    before = tuple(low for low, _ in pads)
    after = tuple(max(0, size - low - have) for size, low, have in zip(sizes, before, inside, strict=True))
    if not any(before) and not any(after):
        return data
    return zero_padded(data, 1, before, after, "data_pad", sizes)


OPERATORS = (
    Op(
        "winograd_conv2d",
        2,
        FusionKind.COMPLEX,
        "conv2d NHWC, stride 1, of weights transformed for tiles of `tile` results a side, (A, A, I, O)",
        _winograd,
        _winograd_array,
        {"pads": tuple, "tile": int},
    ),
)
