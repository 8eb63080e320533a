"""Products of warpgroups, executed by all threads: what they compute, and faults that are put into them on purpose."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.ir.expr import Load
from retune.compiler.ir.kernel import INDICES, DeviceFunction
from retune.compiler.ir.stmt import Barrier, If, LoopKind, Stmt, Store, block
from retune.compiler.ir.tensor_core import ProxyFence, WarpgroupMma, WarpgroupWait
from retune.compiler.schedule.dag import ComputeDAG
from tests.support.simt.execute import execute
from tests.support.simt.fault import KernelFaultError
from tests.support.tensor_core_products import (
    WARPGROUP_GPU,
    WARPGROUPS,
    broken,
    called,
    check_as_threads_and_as_ptx,
    conv,
    count_of,
    lowered,
    product,
    sampled,
    tensor_space,
    with_lengths,
    without,
)
from tests.support.tiers import long_except

PRODUCTS: dict[str, Callable[[], ComputeDAG]] = {
    "f16": lambda: product(256, 64, 128),
    "B by columns": lambda: product(256, 64, 128, turned="B"),
    "A by columns": lambda: product(256, 64, 128, turned="A"),
    "bf16 by columns": lambda: product(256, 64, 128, "bfloat16", turned="AB", relu=True),
    "f16 written as f16": lambda: product(256, 64, 64, out="float16"),
    "sizes that nothing divides": lambda: product(270, 50, 104),
    "sizes that no vector divides": lambda: product(270, 37, 43),
    "A alone copied asynchronously": lambda: product(256, 37, 160),
    "B alone copied asynchronously": lambda: product(256, 64, 171),
    "batched": lambda: called("batch_matmul", ((2, 264, 48), (2, 48, 40)), "float16", "float32"),
    "conv2d": lambda: conv(12, (16, 40), 3, "float16", "float32"),
    "conv2d, channels first": lambda: conv(5, (16, 256), 3, "bfloat16", "float32", layout="NCHW"),
}
LENGTHS = {
    "one fragment a warp, two columns of warps": {"rows": 16, "row_warps": 4, "columns": 16, "column_warps": 2},
    "two fragments a warp": {"rows": 32, "row_warps": 4, "columns": 32, "column_warps": 1},
    "two groups along the rows": {"rows": 32, "row_warps": 8, "columns": 8, "column_warps": 1},
    "four fragments a warp": {"rows": 64, "row_warps": 4, "columns": 16, "column_warps": 2},
}
THREAD = INDICES[LoopKind.THREAD_X]


@pytest.mark.parametrize("depth", long_except([4], [1, 2, 3, 4]))
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", long_except(["f16", "A by columns"], PRODUCTS))
def test_warpgroups_compute_the_definition_as_threads_and_as_ptx(name: str, lengths: str, depth: int) -> None:
    dag = PRODUCTS[name]()
    steps = with_lengths(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), **LENGTHS[lengths], steps=1, depth=depth)
    function = lowered(dag, steps, WARPGROUP_GPU)
    assert count_of(function, WarpgroupMma) == 1
    check_as_threads_and_as_ptx(dag, function, WARPGROUPS)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PRODUCTS if "written" not in name])
def test_sampled_programs_compute_the_definition(name: str) -> None:
    dag = PRODUCTS[name]()
    for steps in sampled(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), 4, seed=2):
        check_as_threads_and_as_ptx(dag, lowered(dag, steps, WARPGROUP_GPU), WARPGROUPS)


def program(depth: int, columns: int = 64) -> tuple[DeviceFunction, list[np.ndarray]]:
    """A product of two warpgroups in eight iterations, and its inputs; columns that no vector divides are stored."""
    dag = product(128, columns, 256)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in dag.inputs]
    lengths = {"rows": 16, "row_warps": 8, "columns": 16, "column_warps": 1, "steps": 2, "depth": depth}
    return lowered(dag, with_lengths(tensor_space(dag, WARPGROUPS, WARPGROUP_GPU), **lengths), WARPGROUP_GPU), inputs


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (ProxyFence, "but written without a proxy fence after it"),
        (WarpgroupWait, "while a multiplication that needs it is under way"),
        (Barrier, r"with no barrier between|that needs it is under way"),
    ],
)
def test_every_fence_wait_and_barrier_is_needed(depth: int, kind: type[Stmt], fault: str) -> None:
    function, inputs = program(depth, 37 if kind is ProxyFence else 64)
    execute(function, inputs)
    assert count_of(function, kind) > 0
    for number in range(count_of(function, kind)):
        with pytest.raises(KernelFaultError, match=fault):
            execute(without(function, kind, number), inputs)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_what_is_copied_asynchronously_needs_no_fence(depth: int) -> None:
    assert count_of(program(depth)[0], ProxyFence) == 0


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_waiting_for_fewer_multiplications_is_found(depth: int) -> None:
    function, inputs = program(depth)

    def later(stmt: Stmt) -> Stmt | None:
        return replace(stmt, pending=stmt.pending + 1) if isinstance(stmt, WarpgroupWait) else None

    with pytest.raises(KernelFaultError, match=r"is written by .* while a multiplication that needs it is under way"):
        execute(broken(function, later), inputs)


def test_sums_of_a_multiplication_under_way_are_not_read() -> None:
    function, inputs = program(4)

    def read_early(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, WarpgroupMma):
            return None
        return block(stmt, Store(stmt.sums, stmt.at, Load(stmt.sums, stmt.at)))

    with pytest.raises(KernelFaultError, match=r"is read by thread .* while a multiplication that needs it"):
        execute(broken(function, read_early), inputs)


def test_part_of_a_warpgroup_is_found() -> None:
    function, inputs = program(1)

    def some(stmt: Stmt) -> Stmt | None:
        return If(THREAD < 9, stmt) if isinstance(stmt, WarpgroupMma) else None

    with pytest.raises(KernelFaultError, match="is for whole warpgroups, but thread 9 of warpgroup 0 does not come"):
        execute(broken(function, some), inputs)


def test_threads_that_name_different_factors_are_found() -> None:
    function, inputs = program(1)

    def apart(stmt: Stmt) -> Stmt | None:
        return replace(stmt, right_at=(THREAD * 8,)) if isinstance(stmt, WarpgroupMma) else None

    with pytest.raises(KernelFaultError, match=r"names another element of C\.right\.shared than the first thread"):
        execute(broken(function, apart), inputs)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_wrong_layout_makes_a_wrong_result(side: str) -> None:
    function, inputs = program(2)
    (wanted,) = execute(function, inputs)

    def turned(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, WarpgroupMma):
            return None
        layout = stmt.left_layout if side == "left" else stmt.right_layout
        other = replace(layout, width=layout.width // 2)
        return replace(stmt, left_layout=other) if side == "left" else replace(stmt, right_layout=other)

    # It may also end outside of the tile.
    with contextlib.suppress(KernelFaultError):
        (found,) = execute(broken(function, turned), inputs)
        assert np.abs(found - wanted).max() > 0.1
