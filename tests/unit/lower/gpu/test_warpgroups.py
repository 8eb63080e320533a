"""Products that groups of four warps multiply: how they are made, and where single warps multiply instead."""

import pytest

from retune.compiler.core.target import Target
from retune.compiler.ir.stmt import Barrier, Let, Stmt, Store, walk_stmt
from retune.compiler.ir.tensor_core import (
    AsyncCopy,
    LoadMatrix,
    Mma,
    ProxyFence,
    WaitGroup,
    WarpgroupMma,
    WarpgroupWait,
)
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.lower.gpu.warpgroups import GroupBuilder
from retune.compiler.schedule.state import replay
from tests.support.cases import check_case
from tests.support.kernel_texts import sections_of
from tests.support.tensor_core_products import WARPGROUP_GPU, WARPGROUPS, lowered, product, tensor_space, with_lengths

USUAL = {"rows": 32, "row_warps": 4, "columns": 16, "column_warps": 2, "steps": 2}


def statements(dtype: str = "float16", columns_of_result: int = 64, **lengths: int) -> list[Stmt]:
    """Those of the kernel of a product."""
    dag = product(256, columns_of_result, 256, dtype)
    target = Target(f"{WARPGROUPS} -math=tf32")
    steps = with_lengths(tensor_space(dag, target, WARPGROUP_GPU), **{**USUAL, **lengths})
    (kernel,) = lowered(dag, steps, WARPGROUP_GPU).kernels
    return list(walk_stmt(kernel.body.body))


def test_how_they_are_made(update_golden: bool) -> None:
    """Rows of A in the order of the instructions, warps along the rows first, a fourth tile that is copied into."""
    dag = product(256, 64, 128)
    steps = with_lengths(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), **USUAL, depth=4)
    sections = sections_of(replay(dag, steps), GroupBuilder, WARPGROUP_GPU)
    check_case("gpu", "warpgroups", sections, update_golden)


@pytest.mark.parametrize(("depth", "pending", "ahead"), [(1, [0], 0), (2, [0, 0], 1), (3, [0, 0], 2), (4, [1, 0], 2)])
def test_a_multiplication_stays_under_way_where_there_are_four_tiles(
    depth: int, pending: list[int], ahead: int
) -> None:
    found = statements(depth=depth)
    assert [stmt.pending for stmt in found if isinstance(stmt, WarpgroupWait)] == pending
    assert [stmt.pending for stmt in found if isinstance(stmt, WaitGroup)] == [max(0, ahead - 1)]
    order = [type(stmt) for stmt in found if isinstance(stmt, (WaitGroup, ProxyFence, Barrier, WarpgroupMma))]
    around = [Barrier] if depth == 1 else []
    assert order == [*around, WaitGroup, Barrier, WarpgroupMma]
    assert not any(isinstance(stmt, (LoadMatrix, Mma)) for stmt in found)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_fence_stands_between_what_is_stored_and_the_barrier(depth: int) -> None:
    """37 columns are stored element by element, rows are copied."""
    found = statements(columns_of_result=37, depth=depth)
    kinds = [type(stmt) for stmt in found]
    fence, multiply = kinds.index(ProxyFence), kinds.index(WarpgroupMma)
    stored = [at for at, stmt in enumerate(found) if isinstance(stmt, Store) and stmt.buffer.scope == "shared"]
    assert stored[0] < fence < multiply
    assert Barrier in kinds[fence:multiply]
    assert not any(fence < at < multiply for at in stored)


@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [
        ("float16", {"row_warps": 2}),  # no group of four along the rows
        ("float16", {"row_warps": 1, "column_warps": 4}),
        ("float32", {}),  # a factor would have to be rounded to tf32 in shared memory
    ],
)
def test_single_warps_multiply_where_no_group_can(dtype: str, lengths: dict[str, int]) -> None:
    found = statements(dtype, **lengths)
    assert any(isinstance(stmt, Mma) for stmt in found)
    assert not any(isinstance(stmt, (WarpgroupMma, ProxyFence)) for stmt in found)


def test_single_warps_multiply_where_the_gpu_has_no_groups() -> None:
    dag = product(256, 64, 128)
    space = tensor_space(dag, Target("cuda -arch=sm_90"))
    assert any(
        isinstance(stmt, Mma)
        for kernel in lowered(dag, with_lengths(space, **USUAL)).kernels
        for stmt in walk_stmt(kernel.body.body)
    )


@pytest.mark.parametrize("turned", ["", "A", "B", "AB"])
@pytest.mark.parametrize(("columns", "width"), [(8, 8), (16, 16), (32, 32), (128, 64)])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_lines_are_as_long_as_what_a_warpgroup_reads(turned: str, columns: int, width: int, steps: int) -> None:
    """Two warps are along the columns, so that lines of columns are those of one of them; nothing is padded."""
    dag = product(256, 256, 256, turned=turned)
    lengths = {"rows": 32, "row_warps": 4, "columns": columns, "column_warps": 2, "steps": steps, "depth": 2}
    (kernel,) = lowered(
        dag, with_lengths(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), **lengths), WARPGROUP_GPU
    ).kernels
    (multiply,) = (stmt for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, WarpgroupMma))
    assert multiply.left_layout.width == (64 if "A" in turned else 16 * steps)
    assert multiply.right_layout.width == (16 * steps if "B" in turned else width)
    assert kernel.bytes_of("shared") == 2 * 2 * (128 + 2 * columns) * 16 * steps


def test_four_consecutive_warps_are_along_the_rows() -> None:
    """With eight warps of which two are along the columns, warp n is row n % 4 and column n // 4."""
    lets = [stmt for stmt in statements(depth=2) if isinstance(stmt, Let)]
    values = {stmt.var.name: str(stmt.value) for stmt in lets}
    assert values["i.0.1.s5"] == "(threadIdx.y % 4)"
    assert values["j.0.1.s5"] == "(threadIdx.y // 4)"


def test_copies_of_sixteen_bytes_stay_so() -> None:
    for turned in ("", "A", "B", "AB"):
        dag = product(256, 64, 128, turned=turned)
        steps = with_lengths(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), **USUAL, depth=3)
        function = lower_for_gpu(replay(dag, steps), "k", WARPGROUP_GPU, check=True)
        found = list(walk_stmt(function.kernels[0].body.body))
        assert {stmt.count for stmt in found if isinstance(stmt, AsyncCopy)} == {8}
        (multiply,) = (stmt for stmt in found if isinstance(stmt, WarpgroupMma))
        assert multiply.left_layout.transposed == ("A" in turned)
        assert multiply.right_layout.transposed == ("B" not in turned)
