"""A packing puts each element of a weight where the loops read it."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build, build_kernel
from retune.compiler.runtime.artifact import kernel_of, kernel_row
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import Reorder, Split
from retune.compiler.schedule.task import SearchTask
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
    assert packing is None or packing.extents == ((5, columns) if padded else ())
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
        del row["args"][1]["packing"]["extents"]
        assert kernel_of(row, artifact.object_code) == artifact


def test_a_weight_of_an_operator_is_padded_inside_the_kernel() -> None:
    task = SearchTask(
        "product",
        matmul(7, 30, 5),
        Target.host(),
        HardwareParams(2),
        layout=LayoutRewriteOption.INSERT_TRANSFORM_STAGE,
    )
    artifact = build_kernel(task, (Split(2, 1, 30, (8,)), Reorder(2, (1, 0, 3, 2))), "k")
    assert [spec.size for spec in artifact.args] == [35, 150, 210]
    assert artifact.workspace_bytes >= 4 * 160
    rng = np.random.default_rng(0)
    left, right = aligned_copy(rng.random((7, 5), "float32")), aligned_copy(rng.random((5, 30), "float32"))
    out, workspace = aligned_array((7, 30), "float32"), aligned_array((artifact.workspace_bytes,), "uint8")
    workspace.fill(0xFF)
    load_kernels([artifact])["k"].bind([left, right, out, workspace], threads=2)()
    np.testing.assert_allclose(out, left @ right, rtol=1e-5)


def test_a_weight_of_one_dimension_is_padded_in_the_call() -> None:
    x, w = te.placeholder((6, 30), name="x"), te.placeholder((30,), name="w")
    k = te.reduce_axis(30, "k")
    y = te.compute((6,), lambda i: te.sum(x[i, k] * w[k], k), "y", {"layout_free_placeholders": (w,)})
    function = build([x, w, y], (Split(2, 1, 30, (4,)),))
    assert function.args[1].size == 32
    (out,) = function.outputs()
    function(np.ones((6, 30), "float32"), np.ones(30, "float32"), out)
    assert out.tolist() == [30.0] * 6
