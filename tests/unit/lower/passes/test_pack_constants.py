"""A packing puts each element of a weight where the loops read it."""

import numpy as np
import pytest

from retune.compiler.driver.build import build
from retune.compiler.packing import Packing
from retune.compiler.runtime.artifact_rows import kernel_of, kernel_row
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.schedule.steps import Reorder, Split
from tests.support.small_computations import matmul


def test_the_packing_puts_each_element_where_it_is_read() -> None:
    # By hand: B[k, j] with j = 4 j.0 + j.1 lies at (4 j.0 + k) * 4 + j.1.
    weight = np.arange(32).reshape(4, 8)
    packed = Packing((4, 2, 4), (1, 0, 2)).pack(weight)
    for k in range(4):
        for j in range(8):
            assert packed[(j // 4 * 4 + k) * 4 + j % 4] == weight[k, j]


@pytest.mark.parametrize(
    ("columns", "strip", "padded"),
    [(30, 8, (5, 32)), (63, 32, (5, 64)), (64, 32, ()), (57, 8, (5, 64)), (9, 8, None), (56, 48, None)],
)
def test_a_weight_is_padded_to_whole_strips_where_that_adds_little(
    columns: int, strip: int, padded: tuple[int, int] | None
) -> None:
    function = build(matmul(7, columns, 5), (Split(2, 1, columns, (strip,)), Reorder(2, (1, 0, 3, 2))))
    packing = function.args[1].packing
    assert (None if packing is None else packing.padded) == padded
    rng = np.random.default_rng(columns)
    left, right = rng.standard_normal((7, 5), np.float32), rng.standard_normal((5, columns), np.float32)
    (out,) = function.outputs()
    function(*function.prepared(left, right), out)
    np.testing.assert_allclose(out, left @ right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [30, 32])
def test_a_packing_is_written_and_read(columns: int) -> None:
    function = build(matmul(7, columns, 5), (Split(2, 1, columns, (8,)), Reorder(2, (1, 0, 3, 2))))
    assert isinstance(function, KernelFunction)
    artifact = function.kernel.artifact
    assert artifact.args[1].size == 5 * 32
    row = kernel_row(artifact)
    assert kernel_of(row, artifact.object_code) == artifact
    if columns == 32:
        # As files were written before packings could pad.
        del row["args"][1]["packing"]["padded"]
        assert kernel_of(row, artifact.object_code) == artifact
