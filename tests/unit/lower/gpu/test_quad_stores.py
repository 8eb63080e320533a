"""Rows of halves that tensor cores have summed: which are exchanged among lanes before they are stored, and how."""

from dataclasses import replace

import pytest

from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.stmt import Allocate, For, If, Let, LoopFunction, LoopKind, Stmt, Store, block, walk_stmt
from retune.compiler.ir.tensor_core import Mma, TransposeQuad
from retune.compiler.lower.gpu.quad_stores import widen_stores
from retune.compiler.schedule.dag import ComputeDAG
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


PAIRS = called("contract", ((64, 16), (16, 2, 16)), "float16", "float16", left="ij", right="jhd", result="idh")
EXCHANGED = {
    "float16": product(128, 64, 64, out="float16"),
    "bfloat16 with bias and relu": product(128, 64, 64, "bfloat16", out="bfloat16", relu=True),
    "batched": called("batch_matmul", ((2, 64, 48), (2, 48, 64)), "float16", "float16"),
    "convolution": conv(8, (16, 64), 3, "float16", "float16"),
    "convolution, channels first": conv(8, (16, 64), 3, "float16", "float16", layout="NCHW"),
}


@pytest.mark.parametrize(("target", "columns"), [(WARPGROUPS, 64), (TF32, 32)])
@pytest.mark.parametrize("name", EXCHANGED)
def test_rows_of_halves_are_stored_in_pieces_of_sixteen_bytes(name: str, target: Target, columns: int) -> None:
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
        (PAIRS, 32),  # two columns in the last dimension
    ],
)
def test_others_are_stored_as_they_are(dag: ComputeDAG, columns: int) -> None:
    function = program(dag, columns=columns)
    assert count_of(function, TransposeQuad) == 0
    assert stored(function) == {1}
    check_as_threads_and_as_ptx(dag, function, WARPGROUPS)


GROUP, FRAGMENT, HALF, LANE, NUMBER = (Var(name) for name in ("g", "f", "e", "t", "q"))
OUTPUT = Buffer("y", (32, 64), "float16")
ROW, OTHER = Var("r"), Var("s")
COLUMN = FRAGMENT * 8 + NUMBER * 2 + HALF


def kernel(store: Stmt, lanes: int = 32, condition: Expr | None = None) -> LoopFunction:
    """The stores of a warp's eight instructions of eight columns, as lowering makes them."""
    sums = Buffer("c", (8, 4), "float32", "local")
    loops = For(FRAGMENT, 8, LoopKind.UNROLL, For(HALF, 2, LoopKind.UNROLL, store))
    inner: Stmt = loops if condition is None else If(condition, loops)
    for var, value, extent in ((OTHER, LANE // 2, 16), (NUMBER, LANE % 4, 4), (ROW, LANE // 4, 8)):
        inner = Let(var, value, extent, inner)
    warp = For(LANE, lanes, LoopKind.THREAD_X, inner)
    zero = (const(0), const(0))
    multiplied = Mma("f16", sums, zero, sums, zero, sums, zero)
    return LoopFunction("k", (OUTPUT,), (), Allocate(sums, block(multiplied, warp)), 1)


def write(column: Expr, row: Expr = ROW, buffer: Buffer = OUTPUT, value: Expr | None = None) -> Store:
    return Store(buffer, (row, column), const(1.0, "float16") if value is None else value)


def is_exchanged(function: LoopFunction) -> bool:
    return any(isinstance(stmt, TransposeQuad) for stmt in walk_stmt(widen_stores(function).body))


def test_a_warp_exchanges_its_rows() -> None:
    assert is_exchanged(kernel(write(COLUMN)))


@pytest.mark.parametrize(
    "function",
    [
        kernel(write(COLUMN), lanes=64),
        kernel(write(COLUMN), condition=LANE < 20),
        kernel(write(COLUMN + 4)),  # not at a multiple of 16 bytes
        kernel(write(COLUMN, row=ROW + NUMBER // 2)),  # the rows of a quad differ
        kernel(write(COLUMN, row=LANE)),
        kernel(write(COLUMN, row=OTHER)),
        kernel(write(COLUMN, row=ROW + FRAGMENT // 4)),
        kernel(write(COLUMN, buffer=replace(OUTPUT, scope="shared"))),
        kernel(write(COLUMN, buffer=replace(OUTPUT, dtype="float32"), value=const(1.0))),
        kernel(write(COLUMN, value=Load(OUTPUT, (ROW, COLUMN)))),
    ],
)
def test_what_a_warp_does_not_exchange(function: LoopFunction) -> None:
    assert widen_stores(function) == function
