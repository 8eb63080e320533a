"""Products on tensor cores, executed lane by lane: what they compute, and faults that are put into them on purpose."""

import re
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Expr, Load, cast, const
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    If,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    block,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import AsyncCopy, CommitGroup, LoadMatrix, Mma, WaitGroup
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.simt.fault import KernelFaultError
from tests.support.tensor_core_products import (
    PRODUCTS,
    broken,
    count_of,
    lowered,
    product,
    sampled,
    tensor_space,
    with_lengths,
    without,
)
from tests.support.tiers import long_except

PROGRAMS = 3
TOLERANCES = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 3e-3}
"""Of results: halves round them once; tf32 rounds factors to 11 bits."""
LANE = INDICES[LoopKind.THREAD_X]


def largest_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, as a share of the largest value."""
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.parametrize("name", long_except(["f16", "tf32 by columns", "conv2d with stride"], PRODUCTS))
def test_tensor_cores_compute_the_definition_without_a_fault(name: str) -> None:
    dag = PRODUCTS[name]()
    values = inputs_of(dag, np.random.default_rng(1))
    wanted = evaluate(dag.outputs, values)
    exact = dag.inputs[0].dtype != "float32"
    count = 0
    for steps in sampled(tensor_space(dag), PROGRAMS):
        function = lowered(dag, steps)
        assert any(isinstance(stmt, Mma) for stmt in statements(function))
        found = execute(function, [values[tensor] for tensor in dag.inputs])
        for one, other in zip(found, wanted, strict=True):
            least = 1e-5 if exact and one.dtype == np.float32 else TOLERANCES[one.dtype.name]
            assert largest_error(one, other) < least, str(function)
        count += 1
    assert count == PROGRAMS


def statements(function: DeviceFunction) -> list[Stmt]:
    return [stmt for kernel in function.kernels for stmt in walk_stmt(kernel.body.body)]


def test_factors_are_rounded_to_tf32_to_the_nearest() -> None:
    """1 + 2^-11 is halfway between two numbers of 10 bits of fraction and goes away from zero."""
    dag = product(16, 8, 8, "float32")
    half = np.float32(1 + 2**-11)
    a = np.zeros((16, 8), np.float32)
    a[0, 0], a[1, 0], a[2, 0] = half, np.nextafter(half, np.float32(0)), -half
    (found,) = execute(
        lowered(dag, with_lengths(tensor_space(dag), rows=16, row_warps=1, columns=8)), [a, np.eye(8, dtype="float32")]
    )
    np.testing.assert_array_equal(found[:3, 0], np.array([1 + 2**-10, 1, -1 - 2**-10], np.float32))


def test_halves_are_summed_in_float32() -> None:
    dag = product(16, 8, 4096)
    ones = np.ones((16, 4096), np.float16)
    small = np.full((4096, 8), 2**-12, np.float16)
    small[0] = 1
    (found,) = execute(lowered(dag, with_lengths(tensor_space(dag), rows=16, row_warps=1, columns=8)), [ones, small])
    np.testing.assert_array_equal(found, np.full((16, 8), 1 + 4095 / 4096, np.float32))


def program(depth: int, dtype: str = "float16", steps: int = 1) -> tuple[DeviceFunction, list[np.ndarray]]:
    """A product in at least four turns, in two warps that read each other's copies; and its inputs."""
    dag = product(64, 32, 64 * steps, dtype)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in dag.inputs]
    return lowered(dag, with_lengths(tensor_space(dag), depth=depth, steps=steps)), inputs


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("steps", [1, 2])
def test_every_wait_is_needed(depth: int, dtype: str, steps: int) -> None:
    function, inputs = program(depth, dtype, steps)
    waits = count_of(function, WaitGroup)
    assert waits == (2 if steps == 2 and depth > 1 else 1)  # fragments of the first turn are loaded before the loop
    for number in range(waits):
        with pytest.raises(
            KernelFaultError, match=r"is (read|written) by thread .* under way, which has not been waited for"
        ):
            execute(without(function, WaitGroup, number), inputs)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_waiting_for_fewer_copies_is_found(depth: int) -> None:
    function, inputs = program(depth)

    def later(stmt: Stmt) -> Stmt | None:
        return WaitGroup(stmt.pending + 1) if isinstance(stmt, WaitGroup) else None

    with pytest.raises(KernelFaultError, match="is under way, which has not been waited for"):
        execute(broken(function, later), inputs)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("steps", [1, 2])
def test_every_barrier_is_needed(depth: int, dtype: str, steps: int) -> None:
    function, inputs = program(depth, dtype, steps)
    barriers = count_of(function, Barrier)
    assert barriers == (2 if depth == 1 or steps == 2 else 1)
    for number in range(barriers):
        with pytest.raises(KernelFaultError, match="with no barrier between"):
            execute(without(function, Barrier, number), inputs)


def test_a_pipeline_that_is_one_copy_too_short_is_found() -> None:
    """Three turns under way in two copies of the buffers: one is overwritten while it is read, or twice at once."""
    function, inputs = program(3)

    def shorter(expr: Expr) -> Expr:
        if isinstance(expr, Binary) and expr.op is BinaryOp.FLOORMOD and expr.rhs == const(3):
            return Binary(BinaryOp.FLOORMOD, expr.lhs, const(2))
        return expr

    def slot(stmt: Stmt) -> Stmt | None:
        match stmt:
            case AsyncCopy():
                return replace(stmt, indices=(shorter(stmt.indices[0]), *stmt.indices[1:]))
            case LoadMatrix():
                return replace(stmt, source_indices=(shorter(stmt.source_indices[0]), *stmt.source_indices[1:]))
        return None

    with pytest.raises(KernelFaultError, match=r"with no barrier between|under way"):
        execute(broken(function, slot), inputs)


def test_a_wrong_lane_of_a_fragment_makes_a_wrong_result() -> None:
    function, inputs = program(2)
    wanted = inputs[0].astype(np.float32) @ inputs[1].astype(np.float32)
    assert largest_error(execute(function, inputs)[0], wanted) < 1e-5

    def turned(stmt: Stmt) -> Stmt | None:
        return replace(stmt, transposed=not stmt.transposed) if isinstance(stmt, LoadMatrix) else None

    def other_half(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and isinstance(stmt.value, Load) and stmt.value.buffer.name == "C.mma":
            row, column, element = stmt.value.indices
            return replace(stmt, value=Load(stmt.value.buffer, (row, column, 3 - element)))
        return None

    for rule in (turned, other_half):
        assert largest_error(execute(broken(function, rule), inputs)[0], wanted) > 0.1


HALVES = Buffer("s", (16, 16), "float16", "shared")
FRAGMENT = Buffer("f", (8,), "float16", "local")
OUT = Buffer("y", (32, 8), "float32")
IN = Buffer("x", (16, 16), "float16")


def warp(*statements: Stmt, threads: int = 32) -> DeviceFunction:
    """One block that copies x to shared memory, row by row, and then does the statements."""
    fill = If(LANE < 16, block(*(Store(HALVES, (LANE, const(e)), Load(IN, (LANE, const(e)))) for e in range(16))))
    write = [Store(OUT, (LANE, const(e)), cast("float32", Load(FRAGMENT, (const(e),)))) for e in range(8)]
    body = Allocate(HALVES, Allocate(FRAGMENT, block(fill, Barrier(), *statements, *write)))
    return DeviceFunction(
        "k", (IN, OUT), (), 1, (Kernel(LoopFunction("k", (IN, OUT), (), body, 1), (1, 1, 1), (threads, 1, 1)),)
    )


def load(row: Expr, column: Expr, *, transposed: bool = False) -> LoadMatrix:
    return LoadMatrix(FRAGMENT, (const(0),), HALVES, (row, column), 4, transposed)


X = np.arange(256, dtype=np.float16).reshape(16, 16)
ROW, COLUMN = LANE % 16, LANE // 16 * 8


def test_matrices_are_loaded_as_the_instruction_says() -> None:
    """Lane 4g + t has of matrix q, at rows 8 (q % 2) and columns 8 (q // 2), row g and columns 2t and 2t + 1."""
    (found,) = execute(warp(load(ROW, COLUMN)), [X])
    for lane in (0, 5, 18, 31):
        group, thread = divmod(lane, 4)
        wanted = [X[8 * (q % 2) + group, 8 * (q // 2) + 2 * thread + half] for q in range(4) for half in range(2)]
        np.testing.assert_array_equal(found[lane], np.array(wanted, np.float32))
    (found,) = execute(warp(load(ROW, COLUMN, transposed=True)), [X])
    for lane in (0, 5, 18, 31):
        group, thread = divmod(lane, 4)
        wanted = [X[8 * (q % 2) + 2 * thread + half, 8 * (q // 2) + group] for q in range(4) for half in range(2)]
        np.testing.assert_array_equal(found[lane], np.array(wanted, np.float32))


def test_matrices_of_float32_have_rows_of_four() -> None:
    """Lane 4g + t has of matrix q, at rows 8 (q % 2) and columns 4 (q // 2), row g and column t."""
    source, given = Buffer("s", (16, 8), "float32", "shared"), Buffer("x", (16, 8), "float32")
    target, out = Buffer("f", (4,), "float32", "local"), Buffer("y", (32, 4), "float32")
    fill = If(LANE < 16, block(*(Store(source, (LANE, const(e)), Load(given, (LANE, const(e)))) for e in range(8))))
    matrices = LoadMatrix(target, (const(0),), source, (ROW, LANE // 16 * 4), 4, False)
    write = [Store(out, (LANE, const(e)), Load(target, (const(e),))) for e in range(4)]
    body = Allocate(source, Allocate(target, block(fill, Barrier(), matrices, *write)))
    kernel = Kernel(LoopFunction("k", (given, out), (), body, 1), (1, 1, 1), (32, 1, 1))
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    (found,) = execute(DeviceFunction("k", (given, out), (), 1, (kernel,)), [x])
    for lane in range(32):
        group, thread = divmod(lane, 4)
        wanted = [x[8 * (q % 2) + group, 4 * (q // 2) + thread] for q in range(4)]
        np.testing.assert_array_equal(found[lane], wanted)


def test_a_row_that_is_not_aligned_is_found() -> None:
    with pytest.raises(
        KernelFaultError,
        match=re.escape("s[0, 4], accessed by thread 0 of block 0, does not start at a multiple of 16 bytes"),
    ):
        execute(warp(load(ROW, COLUMN // 2 + 4)), [X])


def test_a_row_that_ends_outside_is_found() -> None:
    with pytest.raises(KernelFaultError, match=r"8 elements from s\[15, 15\] on end outside of s\[16, 16\]"):
        execute(warp(load(const(15), const(15))), [X])


def test_part_of_a_warp_is_found() -> None:
    with pytest.raises(KernelFaultError, match="is for whole warps, but lane 9 of warp 0 does not come to it"):
        execute(warp(If(LANE < 9, load(ROW, COLUMN))), [X])
    with pytest.raises(KernelFaultError, match="is for whole warps of 32 threads, but a block has 16"):
        execute(warp(load(ROW, COLUMN), threads=16), [X])


def test_who_reads_a_matrix_is_the_lane_that_gets_it() -> None:
    """Every lane points to a row that it has written itself, but what it gets others have written."""
    own = Store(HALVES, (LANE % 16, const(0)), Load(IN, (LANE % 16, const(0))))
    with pytest.raises(KernelFaultError, match=r"s\[\d+, 0\] is written by thread \d+ of block 0 and read by thread"):
        execute(warp(If(LANE < 16, own), load(ROW, COLUMN)), [X])


def test_copies_of_an_empty_group_are_none() -> None:
    """A copy in the youngest group but one has arrived when one group may be under way."""
    copy = If(LANE < 16, AsyncCopy(HALVES, (LANE, const(0)), IN, (LANE, const(0)), 8))
    groups = block(Barrier(), copy, CommitGroup(), CommitGroup())
    found = execute(warp(groups, WaitGroup(1), Barrier(), load(ROW, COLUMN)), [X])
    assert found[0].shape == (32, 8)
    with pytest.raises(KernelFaultError, match="under way"):
        execute(warp(groups, WaitGroup(2), Barrier(), load(ROW, COLUMN)), [X])


def test_where_its_condition_fails_a_copy_writes_zeros() -> None:
    copy = If(LANE < 16, AsyncCopy(HALVES, (LANE, const(0)), IN, (LANE + 8, const(0)), 8, LANE < 8))
    (found,) = execute(warp(Barrier(), copy, CommitGroup(), WaitGroup(0), Barrier(), load(ROW, COLUMN)), [X])
    np.testing.assert_array_equal(found[0, :4], np.array([X[8, 0], X[8, 1], 0, 0], np.float32))
