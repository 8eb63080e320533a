"""Rows of halves that tensor cores have summed: which are exchanged among lanes before they are stored, and how."""

import pytest

from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.stmt import For, LoopKind, Stmt, Store, walk_stmt
from retune.compiler.ir.tensor_core import TransposeQuad
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.target import Target
from tests.support.tensor_core_products import (
    TF32,
    WARPGROUP_GPU,
    WARPGROUPS,
    called,
    check_as_threads_and_as_ptx,
    conv,
    count_of,
    lowered,
    product,
    tensor_space,
    with_lengths,
)
from tests.support.workloads import GPU


def program(dag: ComputeDAG, target: Target = WARPGROUPS, columns: int = 32) -> DeviceFunction:
    hardware = WARPGROUP_GPU if target is WARPGROUPS else GPU
    lengths = {"rows": 16, "row_warps": 4, "columns": columns, "column_warps": 1, "steps": 1, "depth": 2}
    return lowered(dag, with_lengths(tensor_space(dag, target, hardware), **lengths), hardware)


def stored(function: DeviceFunction) -> set[int]:
    """How many elements are stored at once in global memory."""
    loops = [stmt for kernel in function.kernels for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, For)]
    vectors = {loop.body: loop.extent for loop in loops if loop.kind is LoopKind.VECTOR}
    every: list[Stmt] = [stmt for kernel in function.kernels for stmt in walk_stmt(kernel.body.body)]
    return {vectors.get(stmt, 1) for stmt in every if isinstance(stmt, Store) and stmt.buffer.scope == "global"}


EXCHANGED = {
    "float16": product(128, 64, 64, out="float16"),
    "bfloat16 with bias and relu": product(128, 64, 64, "bfloat16", out="bfloat16", relu=True),
    "batched": called("batch_matmul", ((2, 64, 48), (2, 48, 64)), "float16", "float16"),
    "convolution": conv(8, (16, 64), 3, "float16", "float16"),
    "convolution, channels first": conv(8, (16, 64), 3, "float16", "float16", layout="NCHW"),
}


@pytest.mark.parametrize("target", [WARPGROUPS, TF32])
@pytest.mark.parametrize("columns", [32, 64])
@pytest.mark.parametrize("name", EXCHANGED)
def test_rows_of_halves_are_stored_in_pieces_of_sixteen_bytes(name: str, columns: int, target: Target) -> None:
    function = program(EXCHANGED[name], target, columns)
    assert count_of(function, TransposeQuad) == 1
    assert stored(function) == {8}
    check_as_threads_and_as_ptx(EXCHANGED[name], function, target)


@pytest.mark.parametrize(
    ("dag", "columns"),
    [
        (product(128, 64, 64), 32),  # a quad writes 32 bytes of a row of float32
        (product(128, 64, 64, out="float16"), 16),  # two instructions a row
        (product(128, 60, 64, out="float16"), 32),  # rows that do not begin at multiples of 16 bytes
        (product(120, 64, 64, out="float16"), 32),  # rows that some lanes of a warp lack
    ],
)
def test_others_are_stored_as_they_are(dag: ComputeDAG, columns: int) -> None:
    function = program(dag, columns=columns)
    assert count_of(function, TransposeQuad) == 0
    assert stored(function) == {1}
    check_as_threads_and_as_ptx(dag, function, WARPGROUPS)
