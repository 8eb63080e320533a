"""Stride-1 convolutions by Winograd's minimal filtering, channels last.

The result is that of the direct convolution up to rounding, with fewer products. A tile of m x m outputs is computed of
alpha x alpha inputs, alpha = m + r - 1: both are brought into a space in which a convolution is a product of elements,
so that the work becomes alpha^2 matrix products. The weights are brought there beforehand. (Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, 2016). Of three spatial dimensions the last two are transformed: the
products sum over the first one's taps as well.

    data_pad -> data_rows -> data_pack -> bgemm -> inverse_rows -> the result
Each transform goes over the rows first and then over the columns, which takes a third of the operations of both at
once. A transform is a choice among sums of few terms, by the digit of an index that a schedule unrolls: nothing is
multiplied by 0 or 1, and what two rows of a matrix share is computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.core.dtype import sum_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.conv import window_extent, zero_padded
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, summed_product, widen
from retune.compiler.te.reduction import Axis
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
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [-root * value for value in (*coefficients, Fraction(0))]
        coefficients = [low + high for low, high in zip(shifted, scaled, strict=True)]
    return coefficients


def _floats(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(value) for value in row) for row in rows)


def transformed_weight(weight: NDArray[np.generic], tile: int) -> NDArray[np.generic]:
    """Weights (r, r, CI, CO), or (KD, r, r, CI, CO), in the transformed space: (alpha, alpha, CI, CO), or
    (alpha, alpha, KD, CI, CO), of the same dtype; those of halves are float32.

    Computed in float64, so that only the last step rounds.
    """
    kernel, channels = weight.shape[-3], weight.shape[-2:]
    g = np.array(transform_matrices(tile, kernel)[2])
    # Rows and columns in one matrix product: several times as fast as one after the other.
    both, alpha = np.kron(g, g), len(g)
    packed = np.empty((alpha, alpha, *weight.shape[:-4], *channels), sum_type(weight.dtype.name))
    taps = weight.reshape(-1, kernel**2, prod(channels))
    by_tap = packed.reshape(alpha**2, len(taps), prod(channels))
    for number, image in enumerate(taps):
        by_tap[:, number] = both @ image.astype(np.float64)
    return packed


def _winograd(call: OpCall, rank: int) -> Lowered:
    """A channels-last convolution of stride 1, of 3x3 taps in the last two dimensions. The weights are transformed for
    tiles of `tile` results a side: (A, A, I, O), or (A, A, KD, I, O).
    """
    x, w = call.types
    dtype = call.out_dtype or x.dtype
    tile, pads = call.integer("tile"), call.ints("pads")
    kernel = (*w.shape[2:-2], KERNEL, KERNEL)
    fits = len(x.shape) == len(w.shape) == rank + 2 and len(pads) == 2 * rank
    fits = fits and (*w.shape[:2], w.shape[-2]) == (tile + 2, tile + 2, x.shape[-1])
    wanted = f"({tile + 2}, {tile + 2}, {'KD, ' * (rank - 2)}I, O)"
    call.require(fits, f"the weight must be {wanted}, the pads {2 * rank} numbers")
    border = tuple(zip(pads[:rank], pads[rank:], strict=True))
    extents = [
        window_extent(have, taps, 1, 1, *pad) for have, taps, pad in zip(x.shape[1:-1], kernel, border, strict=True)
    ]
    call.require(min(extents) > 0, f"the window {kernel} does not fit")

    def build(data: Tensor, weight: Tensor) -> Tensor:
        return winograd_conv(data, weight, border, call.name, call.layout_free(weight), dtype)

    return Lowered((x.shape[0], *extents, w.shape[-1]), dtype, build)


def _winograd_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    """Tile by tile, in the precision of the operands."""
    x, weight = map(widen, arrays)
    tile, rank = call.integer("tile"), x.ndim - 2
    border = list(zip(call.ints("pads")[:rank], call.ints("pads")[rank:], strict=True))
    if rank == 2:
        # An image is one of depth 1.
        x, weight, border = x[:, None], weight[:, :, None], [(0, 0), *border]
    a, b = (np.array(matrix, weight.dtype) for matrix in transform_matrices(tile, KERNEL)[:2])
    padded = np.pad(x, ((0, 0), *border, (0, 0)))
    height, width = (extent - KERNEL + 1 for extent in padded.shape[2:4])
    below, beside = -height % tile, -width % tile
    padded = np.pad(padded, ((0, 0), (0, 0), (0, below), (0, beside), (0, 0)))
    # Tiles overlap by r - 1 = 2 inputs: every window of m + 2 starts m after the one before.
    windows = sliding_window_view(padded, (tile + 2, tile + 2), axis=(2, 3))[:, :, ::tile, ::tile]
    turned = np.einsum("ie,bzhwcij,jf->efbzhwc", b, windows, b, optimize=True)
    turned = sliding_window_view(turned, weight.shape[2], axis=3)
    products = np.einsum("efbzhwcd,efdco->efbzhwo", turned, weight, optimize=True)
    tiles = np.einsum("em,efbzhwo,fn->bzhmwno", a, products, a, optimize=True)
    whole = tiles.reshape(*products.shape[2:4], height + below, width + beside, weight.shape[-1])
    result = np.ascontiguousarray(whole[:, :, :height, :width])
    return result[:, 0] if rank == 2 else result


def winograd_conv(
    data: Tensor,
    packed: Tensor,
    pads: Sequence[tuple[int, int]],
    name: str = "winograd_conv",
    attrs: Mapping[str, object] | None = None,
    dtype: str = "",
) -> Tensor:
    """A stride-1 convolution of (N, H, W, CI), or (N, D, H, W, CI), with weights of `transformed_weight`.

    `pads` are the zeros before and after each spatial dimension. Returns (N, H', W', CO), or (N, D', H', W', CO).
    `attrs` are those of the stage that reads the weights. The result has type `dtype`, by default that of `data`;
    halves are computed in float32.
    """
    wide = sum_type(data.dtype)
    alpha, taps, (channels_in, channels_out) = packed.shape[0], packed.shape[2:-2], packed.shape[-2:]
    tile = alpha - KERNEL + 1
    _, b, _ = transform_matrices(tile, KERNEL)
    batch = data.shape[0]
    extents = [have + sum(pad) for have, pad in zip(data.shape[1:-1], pads, strict=True)]
    depth, (out_h, out_w) = tuple(extents[:-2]), (extent - KERNEL + 1 for extent in extents[-2:])
    out_depth = tuple(have - count + 1 for have, count in zip(depth, taps, strict=True))
    outer = ("z",) * len(taps)
    # The last tiles may compute results beyond the edge, which are never read.
    tiles_h, tiles_w = -(-out_h // tile), -(-out_w // tile)
    padded = _pad(data, pads, (*depth, tiles_h * tile + KERNEL - 1, tiles_w * tile + KERNEL - 1))
    rows_of = _products(list(zip(*b, strict=True)))

    def row(eps: Expr, n: Expr, *at: Expr) -> Expr:
        *z, th, x, ci = at
        return rows_of(eps, [te.cast(wide, padded[(n, *z, th * tile + i, x, ci)]) for i in range(alpha)])

    shape = (alpha, batch, *depth, tiles_h, tiles_w * tile + KERNEL - 1, channels_in)
    rows = te.compute(shape, row, "data_rows", varargs_names=(*outer, "th", "x", "ci"))

    def pack(eps: Expr, nu: Expr, n: Expr, *at: Expr) -> Expr:
        *z, th, tw, ci = at
        return rows_of(nu, [rows[(eps, n, *z, th, tw * tile + j, ci)] for j in range(alpha)])

    shape = (alpha, alpha, batch, *depth, tiles_h, tiles_w, channels_in)
    transformed = te.compute(shape, pack, "data_pack", varargs_names=(*outer, "th", "tw", "ci"))
    window = [te.reduce_axis(extent, "rz") if extent > 1 else te.const(0) for extent in taps]
    rc = te.reduce_axis(channels_in, "ci")

    def multiply(eps: Expr, nu: Expr, n: Expr, *at: Expr) -> Expr:
        *z, th, tw, co = at
        read = [coordinate + offset for coordinate, offset in zip(z, window, strict=True)]
        factors = transformed[(eps, nu, n, *read, th, tw, rc)], packed[(eps, nu, *window, rc, co)]
        return summed_product(wide, *factors, [axis for axis in (*window, rc) if isinstance(axis, Axis)])

    shape = (alpha, alpha, batch, *out_depth, tiles_h, tiles_w, channels_out)
    names = (*outer, "th", "tw", "co")
    product = te.compute(shape, multiply, "bgemm", dict(attrs or {}), varargs_names=names)
    return _transform_back(product, (batch, *out_depth, out_h, out_w, channels_out), name, dtype or data.dtype)


def _transform_back(product: Tensor, shape: Sequence[int], name: str, dtype: str) -> Tensor:
    """The result of `shape`: tiles of outputs from their `product`, which is of shape (alpha, alpha, N, ..., CO)."""
    alpha, depth = product.shape[0], shape[1:-3]
    tile = alpha - KERNEL + 1
    columns_of = _products(list(zip(*transform_matrices(tile, KERNEL)[0], strict=True)))
    outer = ("z",) * len(depth)
    inverse = te.compute(
        (tile, *product.shape[1:]),
        lambda vh, nu, n, *at: columns_of(vh, [product[(i, nu, n, *at)] for i in range(alpha)]),
        "inverse_rows",
        varargs_names=(*outer, "th", "tw", "co"),
    )

    def result(n: Expr, *at: Expr) -> Expr:
        *z, h, w, co = at
        values = [inverse[(h % tile, j, n, *z, h // tile, w // tile, co)] for j in range(alpha)]
        return te.cast(dtype, columns_of(w % tile, values))

    return te.compute(tuple(shape), result, name, {TRANSFORMED: tile}, varargs_names=(*outer, "h", "w", "co"))


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
    terms += [(factor, values[index]) for index, factor in enumerate(row)]
    partner = _mirrored_row(rows, number)
    if partner is None:
        return _sum(terms)
    first = min(number, partner)
    own, other = rows[first], rows[max(number, partner)]
    same = [(factor, values[index]) for index, factor in enumerate(own) if factor == other[index]]
    turned = [(factor, values[index]) for index, factor in enumerate(own) if factor != other[index]]
    return _sum(same) + _sum(turned) if number == first else _sum(same) - _sum(turned)


def _mirrored_columns(rows: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs of columns that are equal up to the signs, in which both signs occur."""
    columns = list(zip(*rows, strict=True))
    return [
        (first, first + 1)
        for first in range(len(columns) - 1)
        if list(map(abs, columns[first])) == list(map(abs, columns[first + 1]))
        and any(left == right != 0 for left, right in zip(columns[first], columns[first + 1], strict=True))
        and any(left != right for left, right in zip(columns[first], columns[first + 1], strict=True))
    ]


def _mirrored_row(rows: Sequence[Sequence[float]], number: int) -> int | None:
    """The row that is equal up to the signs, of which some agree and some do not; None when there is no such row."""
    for other, factors in enumerate(rows):
        pairs = [pair for pair in zip(rows[number], factors, strict=True) if any(pair)]
        alike = [left == right for left, right in pairs]
        if all(abs(left) == abs(right) for left, right in pairs) and any(alike) and not all(alike):
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


def _pad(data: Tensor, pads: Sequence[tuple[int, int]], sizes: tuple[int, ...]) -> Tensor:
    """The input with zeros around it, as far as the tiles reach; the last ones may reach further than the padding."""
    inside = data.shape[1:-1]
    before = tuple(low for low, _ in pads)
    after = tuple(max(0, size - low - have) for size, low, have in zip(sizes, before, inside, strict=True))
    if not any(before) and not any(after):
        return data
    return zero_padded(data, 1, before, after, "data_pad", sizes)


_ATTRS = {"pads": tuple, "tile": int}

OPERATORS = tuple(
    Op(f"winograd_conv{rank}d", 2, FusionKind.COMPLEX, partial(_winograd, rank=rank), _winograd_array, _ATTRS)
    for rank in (2, 3)
)
