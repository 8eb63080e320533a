"""Winograd's convolution in TVM's formulation.

The transform matrices are stages of literals. The stages that multiply by them annotate which loops index them
(`auto_scheduler_simplify_const_tensor_indices`), so that a schedule unrolls those.
"""

from collections.abc import Sequence

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.winograd import Matrix, transform_matrices
from retune.compiler.te.tensor import Tensor


def const_matrix(matrix: Matrix, name: str, dtype: str = "float32") -> Tensor:
    """A tensor of literals: every element a choice among them that folds once its indices are known."""

    def element(i: Expr, j: Expr) -> Expr:
        rows = [_choice(j, [te.const(value, dtype) for value in row]) for row in matrix]
        return _choice(i, rows)

    return te.compute((len(matrix), len(matrix[0])), element, name, {"const_matrix": True})


def _choice(index: Expr, values: Sequence[Expr]) -> Expr:
    """The value number `index`."""
    chosen = values[-1]
    for number in range(len(values) - 2, -1, -1):
        chosen = te.if_then_else(index < number + 1, values[number], chosen)
    return chosen


def winograd_conv2d(data: Tensor, packed: Tensor, padding: int, kernel: int = 3) -> Tensor:
    """A stride-1 convolution of (N, H, W, CI) with transformed weights, (alpha, alpha, CI, CO).

    `padding` rows and columns of zeros surround the input. Returns (N, H', W', CO).
    """
    alpha, _, _, channels_out = packed.shape
    tile = alpha - kernel + 1
    a_values, b_values, _ = transform_matrices(tile, kernel)
    batch, height, width, channels_in = data.shape
    out_h, out_w = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
    tiles_h, tiles_w = -(-out_h // tile), -(-out_w // tile)
    padded = _padded(data, padding, tiles_h * tile + kernel - 1, tiles_w * tile + kernel - 1)
    tiles = batch * tiles_h * tiles_w
    gathered = te.compute(
        (alpha, alpha, tiles, channels_in),
        lambda eps, nu, p, ci: padded[
            p // (tiles_h * tiles_w), p // tiles_w % tiles_h * tile + eps, p % tiles_w * tile + nu, ci
        ],
        "input_tile",
    )
    b = const_matrix(b_values, "B")
    ra, rb = te.reduce_axis(alpha, "r_a"), te.reduce_axis(alpha, "r_b")
    transformed = te.compute(
        (alpha, alpha, tiles, channels_in),
        lambda eps, nu, p, ci: te.sum(gathered[ra, rb, p, ci] * b[ra, eps] * b[rb, nu], [ra, rb]),
        "data_pack",
        {"auto_scheduler_simplify_const_tensor_indices": ["eps", "nu", "r_a", "r_b"]},
    )
    rc = te.reduce_axis(channels_in, "ci")
    product = te.compute(
        (alpha, alpha, tiles, channels_out),
        lambda eps, nu, p, co: te.sum(transformed[eps, nu, p, rc] * packed[eps, nu, rc, co], rc),
        "bgemm",
        {"layout_free_placeholders": (packed,)} if isinstance(packed.op, te.PlaceholderOp) else {},
    )
    a = const_matrix(a_values, "A")
    rc_h, rc_w = te.reduce_axis(alpha, "r_a"), te.reduce_axis(alpha, "r_b")
    inverse = te.compute(
        (tile, tile, tiles, channels_out),
        lambda vh, vw, p, co: te.sum(product[rc_h, rc_w, p, co] * a[rc_h, vh] * a[rc_w, vw], [rc_h, rc_w]),
        "inverse",
        {"auto_scheduler_simplify_const_tensor_indices": ["vh", "vw", "r_a", "r_b"]},
    )
    return te.compute(
        (batch, out_h, out_w, channels_out),
        lambda n, h, w, co: inverse[h % tile, w % tile, n * (tiles_h * tiles_w) + h // tile * tiles_w + w // tile, co],
        "conv2d_winograd",
    )


def _padded(data: Tensor, padding: int, rows: int, columns: int) -> Tensor:
    """The input with zeros around it, as far as the tiles reach; the last ones may reach further than the padding."""
    batch, height, width, channels = data.shape

    def value(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        inside = te.logical_and(h >= padding, h < height + padding, w >= padding, w < width + padding)
        return te.if_then_else(inside, data[n, h - padding, w - padding, c], te.const(0.0, data.dtype))

    return te.compute((batch, rows, columns, channels), value, "data_pad")
