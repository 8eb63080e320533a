"""Winograd's transforms: the matrices are those of minimal filtering, and the convolution is the direct one."""

import numpy as np
import pytest

from compiler import te
from compiler.errors import DefinitionError
from compiler.te.evaluate import evaluate
from compiler.te.ops.winograd import transform_matrices, winograd_conv2d, winograd_weight


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


@pytest.mark.parametrize(("size", "padding", "tile"), [(7, 1, 2), (6, 0, 4), (8, 1, 4)])
def test_the_convolution_is_the_direct_one(size: int, padding: int, tile: int) -> None:
    data, weight = te.placeholder((2, size, size, 3), name="data"), te.placeholder((3, 3, 3, 4), name="weight")
    result = winograd_conv2d(data, winograd_weight(weight, tile), padding)
    rng = np.random.default_rng(0)
    values = {data: rng.standard_normal(data.shape, np.float32), weight: rng.standard_normal(weight.shape, np.float32)}
    (found,) = evaluate([result], values)
    wide = np.pad(values[data], ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    out = wide.shape[1] - 2
    expected = sum(
        wide[:, y : y + out, x : x + out] @ values[weight][y, x] for y in range(3) for x in range(3)
    )
    assert found.shape == (2, out, out, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
