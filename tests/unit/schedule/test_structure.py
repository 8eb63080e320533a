"""What tasks have in common: the structure of their computation without its sizes."""

import pytest

from retune.compiler import te
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.structure import structure_of


def convolution(size: int, channels: int, stride: int = 1, dtype: str = "float32", relu: bool = False) -> ComputeDAG:
    data = te.placeholder((1, stride * size + 2, stride * size + 2, channels), dtype, "data")
    weight = te.placeholder((3, 3, channels, 2 * channels), dtype, "weight")
    ry, rx, rc = te.reduce_axis(3, "ry"), te.reduce_axis(3, "rx"), te.reduce_axis(channels, "rc")
    out = te.compute(
        (1, size, size, 2 * channels),
        lambda n, y, x, c: te.sum(
            data[n, y * stride + ry, x * stride + rx, rc] * weight[ry, rx, rc, c], axis=(ry, rx, rc)
        ),
        "conv",
    )
    if relu:
        out = te.compute(out.shape, lambda n, y, x, c: te.maximum(out[n, y, x, c], 0.0), "relu")
    return ComputeDAG([data, weight, out])


def test_sizes_do_not_count() -> None:
    assert structure_of(convolution(56, 64)) == structure_of(convolution(7, 512))


@pytest.mark.parametrize(
    "other", [convolution(56, 64, stride=2), convolution(56, 64, dtype="float64"), convolution(56, 64, relu=True)]
)
def test_what_is_computed_counts(other: ComputeDAG) -> None:
    assert structure_of(other) != structure_of(convolution(56, 64))
