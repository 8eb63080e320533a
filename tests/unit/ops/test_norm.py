"""Layer normalization against NumPy."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.ops.norm import layer_norm
from retune.compiler.te.evaluate import evaluate


@pytest.mark.parametrize(("shape", "axis"), [((4, 9), 1), ((2, 3, 8), -1), ((2, 3, 8), 1)])
def test_layer_norm_is_exact_far_from_zero(shape: tuple[int, ...], axis: int) -> None:
    rng = np.random.default_rng(3)
    inner = shape[axis:]
    data = (100 + rng.standard_normal(shape)).astype(np.float32)
    scale, bias = (rng.standard_normal(inner, dtype=np.float32) for _ in range(2))
    x, g, b = (te.placeholder(array.shape, name=name) for array, name in ((data, "x"), (scale, "g"), (bias, "b")))
    y = layer_norm(x, g, b, axis, 1e-5)
    (found,) = evaluate([y], {x: data, g: scale, b: bias})
    axes = tuple(range(len(shape) - len(inner), len(shape)))
    wide = data.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
