"""Winograd's transforms: the matrices are those of minimal filtering, and the convolution is the direct one."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Binary, BinaryOp, Const, Expr
from retune.compiler.ir.visit import walk
from retune.compiler.ops.winograd import transform_matrices, transformed_weight, winograd_conv
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import ComputeOp, Tensor


@pytest.mark.parametrize(("tile", "kernel"), [(2, 3), (4, 3), (3, 2), (6, 1), (2, 5)])
def test_one_dimension_is_a_correlation(tile: int, kernel: int) -> None:
    a, b, g = (np.array(matrix) for matrix in transform_matrices(tile, kernel))
    rng = np.random.default_rng(tile)
    inputs, weights = rng.standard_normal(tile + kernel - 1), rng.standard_normal(kernel)
    found = a.T @ ((g @ weights) * (b.T @ inputs))
    np.testing.assert_allclose(found, np.correlate(inputs, weights, "valid"), rtol=1e-9, atol=1e-9)


def test_a_tile_too_large_for_single_precision_is_refused() -> None:
    with pytest.raises(DefinitionError, match="not available"):
        transform_matrices(8, 3)


@pytest.mark.parametrize(
    ("shape", "pads", "tile"),
    [
        ((7, 7), ((1, 1), (1, 1)), 2),
        ((6, 9), ((0, 0), (0, 0)), 4),
        ((8, 5), ((1, 1), (1, 1)), 4),
        ((9, 6), ((0, 2), (1, 0)), 3),
        ((3, 3), ((0, 0), (0, 0)), 4),
    ],
)
def test_the_convolution_is_the_direct_one(
    shape: tuple[int, int], pads: tuple[tuple[int, int], tuple[int, int]], tile: int
) -> None:
    rng = np.random.default_rng(0)
    image, kernel = rng.standard_normal((2, *shape, 3), np.float32), rng.standard_normal((3, 3, 3, 4), np.float32)
    data, packed = te.placeholder(image.shape, name="data"), te.placeholder((tile + 2, tile + 2, 3, 4), name="packed")
    result = winograd_conv(data, packed, pads)
    (found,) = evaluate([result], {data: image, packed: transformed_weight(kernel, tile)})
    wide = np.pad(image, ((0, 0), *pads, (0, 0)))
    rows, columns = wide.shape[1] - 2, wide.shape[2] - 2
    expected = sum(wide[:, y : y + rows, x : x + columns] @ kernel[y, x] for y in range(3) for x in range(3))
    assert found.shape == (2, rows, columns, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def _factors(expr: Expr) -> list[float]:
    products = (node for node in walk(expr) if isinstance(node, Binary) and node.op is BinaryOp.MUL)
    return [float(node.rhs.value) for node in products if isinstance(node.rhs, Const) and node.dtype == "float32"]


@pytest.mark.parametrize(("tile", "products"), [(2, 0), (4, 22)])
def test_nothing_is_multiplied_by_zero_or_one(tile: int, products: int) -> None:
    data, packed = te.placeholder((1, 8, 8, 3), name="data"), te.placeholder((tile + 2, tile + 2, 3, 4), name="packed")
    stages: dict[str, Tensor] = {
        node.op.name: node.tensor
        for node in ComputeDAG([data, packed, winograd_conv(data, packed, ((1, 1), (1, 1)))]).nodes
    }
    bodies = [stages[name].op for name in ("data_rows", "inverse_rows")]
    factors = [_factors(op.body) for op in bodies if isinstance(op, ComputeOp)]
    assert not {abs(factor) for found in factors for factor in found} & {0.0, 1.0}
    assert sum(map(len, factors)) == products
