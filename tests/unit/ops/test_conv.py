"""Convolutions of one and three dimensions against sums over the window."""

import itertools

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.ops import Attribute
from retune.compiler.ops.conv import CONVOLUTIONS
from retune.compiler.te.evaluate import evaluate


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "pad"),
    [((9,), 3, 1, 1, 1), ((9,), 3, 2, 2, 2), ((9,), 1, 2, 1, 0), ((4, 5, 6), 3, 1, 1, 1), ((5, 5, 4), 2, 2, 1, 0)],
)
@pytest.mark.parametrize("channels_last", [True, False])
def test_convolution_sums_over_the_window(
    size: tuple[int, ...], kernel: int, stride: int, dilation: int, pad: int, channels_last: bool
) -> None:
    rank = len(size)
    rng = np.random.default_rng(rank)
    data = rng.standard_normal((2, *size, 3), dtype=np.float32)
    weight = rng.standard_normal((*(kernel,) * rank, 3, 4), dtype=np.float32)
    result = tuple((extent + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for extent in size)
    padded = np.pad(data.astype(np.float64), ((0, 0), *((pad, pad),) * rank, (0, 0)))
    wanted = np.zeros((2, *result, 4))
    for tap in itertools.product(range(kernel), repeat=rank):
        window = [
            slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride) for t, n in zip(tap, result, strict=True)
        ]
        wanted += padded[(slice(None), *window)] @ weight[tap]
    attrs: dict[str, Attribute] = {
        "strides": (stride,) * rank,
        "dilations": (dilation,) * rank,
        "pads": (pad,) * (2 * rank),
        "groups": 1,
        "layout": {1: "NWC", 3: "NDHWC"}[rank] if channels_last else {1: "NCW", 3: "NCDHW"}[rank],
    }
    if not channels_last:
        data, wanted = np.moveaxis(data, -1, 1), np.moveaxis(wanted, -1, 1)
        weight = np.moveaxis(weight, (-1, -2), (0, 1))
    x, w = te.placeholder(data.shape, name="x"), te.placeholder(weight.shape, name="w")
    y = CONVOLUTIONS[rank].tensor((x, w), attrs)
    assert y.shape == wanted.shape
    (found,) = evaluate([y], {x: data, w: weight})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
