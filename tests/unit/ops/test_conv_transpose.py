"""Transposed convolutions against every input element scattered by hand."""

import itertools

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.ops import OPS, Attribute
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import ComputeOp


@pytest.mark.parametrize(
    ("kernel", "stride", "before", "after", "extra"),
    [
        (4, 2, 1, 1, 0),
        (3, 2, 1, 1, 1),
        (3, 2, 0, 0, 0),
        (3, 2, 1, 0, 0),
        (5, 3, 2, 1, 0),
        (2, 3, 0, 0, 0),
        (3, 1, 1, 1, 0),
        (5, 2, 2, 2, 1),
    ],
)
def test_transposed_convolution_is_the_scattered_sum(
    kernel: int, stride: int, before: int, after: int, extra: int
) -> None:
    rng = np.random.default_rng(kernel * 10 + stride)
    data = rng.standard_normal((1, 4, 5, 2), dtype=np.float32)
    weight = rng.standard_normal((kernel, kernel, 2, 3), dtype=np.float32)
    height, width = ((size - 1) * stride + kernel - before - after + extra for size in (4, 5))
    whole = np.zeros((1, 3 * stride + kernel + extra, 4 * stride + kernel + extra, 3))
    for row, column in itertools.product(range(kernel), repeat=2):
        rows, columns = slice(row, row + 3 * stride + 1, stride), slice(column, column + 4 * stride + 1, stride)
        whole[:, rows, columns] += data.astype(np.float64) @ weight[row, column]
    x, w = te.placeholder(data.shape, name="x"), te.placeholder(weight.shape, name="w")
    attrs: dict[str, Attribute] = {
        "strides": (stride, stride),
        "pads": (before, before, after - extra, after - extra),
        "layout": "NHWC",
    }
    y = OPS["conv_transpose2d"].tensor((x, w), attrs)
    (found,) = evaluate([y], {x: data, w: weight})
    np.testing.assert_allclose(found, whole[:, before : before + height, before : before + width], atol=1e-5)


def test_a_window_of_whole_strides_needs_no_choice() -> None:
    x, w = te.placeholder((1, 4, 4, 2), name="x"), te.placeholder((4, 4, 2, 3), name="w")
    attrs: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NHWC"}
    dag = ComputeDAG([OPS["conv_transpose2d"].tensor((x, w), attrs, name="deconv", constants=frozenset({w}))])
    (phases,) = (op for op in dag.ops if op.name == "deconv_phases")
    assert isinstance(phases, ComputeOp)
    assert phases.shape == (1, 2, 2, 4, 4, 3)
    assert phases.attrs["layout_free_placeholders"] == (w,)
    assert "select" not in str(phases.body)
    assert dag.flop_count == 2 * 8 * 8 * 3 * (2 * 2 * 2)
