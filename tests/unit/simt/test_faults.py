"""Faults that are put into kernels on purpose: each is found, and named by element, threads and statement."""

import re
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.gpu_facts import STATIC_SHARED
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Expr, Load, Var, const, select
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    Block,
    For,
    If,
    LoopFunction,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    block,
    map_stmt,
    walk_stmt,
)
from retune.compiler.lower.gpu.barriers import insert_barriers
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from tests.support.simt import vectors
from tests.support.simt.execute import execute
from tests.support.simt.fault import KernelFaultError
from tests.support.small_computations import fetched_product
from tests.support.workloads import GPU

X = Buffer("x", (64,), "float32")
Y = Buffer("y", (64,), "float32")
S = Buffer("s", (32,), "float32", "shared")
L = Buffer("l", (2,), "float32", "local")
T, B = INDICES[LoopKind.THREAD_X], INDICES[LoopKind.BLOCK_X]
PLACE = B * 32 + T


def kernel_of(*statements: Stmt) -> DeviceFunction:
    """y of x in two blocks of 32 threads, with s shared among these."""
    body = LoopFunction("k", (X, Y), (), Allocate(S, block(*statements)), 1)
    return DeviceFunction("k", (X, Y), (), 1, (Kernel(body, (2, 1, 1), (32, 1, 1)),))


def run(*statements: Stmt) -> np.ndarray:
    """What the statements make of 0, 1, 2, …"""
    (found,) = execute(kernel_of(*statements), [np.arange(64, dtype="float32")])
    return found


def fetch(index: Expr = T) -> Store:
    """s[index] = x[block * 32 + thread]"""
    return Store(S, (index,), Load(X, (PLACE,)))


def result(value: Expr) -> Store:
    """y[block * 32 + thread] = value"""
    return Store(Y, (PLACE,), value)


def other_end() -> Expr:
    """What thread 31 - t has left in s."""
    return Load(S, (31 - T,))


def fault(text: str) -> str:
    """A pattern for the whole message."""
    return f"^{re.escape(text)}$"


def test_threads_read_what_others_wrote_behind_a_barrier() -> None:
    found = run(fetch(), Barrier(), result(other_end()))
    np.testing.assert_array_equal(found.reshape(2, 32), np.arange(64).reshape(2, 32)[:, ::-1])


def test_a_missing_barrier_is_a_race_of_a_reader_with_a_writer() -> None:
    message = (
        "k: s[31] is written by thread 31 of block 0 and read by thread 0 of block 0 with no barrier between: in "
        "`s[threadIdx.x] = x[((blockIdx.x * 32) + threadIdx.x)]` and in "
        "`y[((blockIdx.x * 32) + threadIdx.x)] = s[(31 - threadIdx.x)]`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(fetch(), result(other_end()))


def test_overwriting_what_others_still_read_is_a_race() -> None:
    again = Store(S, (T,), const(0.0))
    with pytest.raises(KernelFaultError, match=r"s\[0\] is read by thread 31 of block 0 and written by thread 0 of bl"):
        run(fetch(), Barrier(), result(other_end()), again)
    run(fetch(), Barrier(), result(other_end()), Barrier(), again)


def test_a_writer_races_with_any_of_several_readers() -> None:
    """Thread 0 reads what it writes itself; that others read it too is not forgotten."""
    own = If(T < 1, Store(S, (const(0),), const(1.0)))
    with pytest.raises(KernelFaultError, match=r"s\[0\] is read by thread \d+ of block 0 and written by thread 0 of"):
        run(fetch(), Barrier(), result(Load(S, (const(0),))), own)


def test_two_threads_that_write_one_element_race() -> None:
    message = (
        r"k: s\[0\] is written by thread (1 of block 0 and written by thread 0|0 of block 0 and written by thread 1)"
    )
    with pytest.raises(KernelFaultError, match=message):
        run(fetch(T // 2), Barrier(), result(Load(S, (T // 2,))))


def test_threads_are_not_taken_to_run_in_step() -> None:
    shifted = If(T < 31, Store(S, (T,), Load(S, (T + 1,))))
    with pytest.raises(
        KernelFaultError, match=r"s\[1\] is read by thread 0 of block 0 and written by thread 1 of bloc"
    ):
        run(fetch(), Barrier(), shifted, Barrier(), result(Load(S, (T,))))


def test_threads_of_a_warp_hand_each_other_values() -> None:
    """From 2 further on in groups of 8; the last two of a group have nobody there, and get their own."""
    heard = Allocate(L, block(Shuffle(L, (const(0),), Load(X, (PLACE,)), 2, 8), result(Load(L, (const(0),)))))
    lane = np.arange(64)
    np.testing.assert_array_equal(run(heard), np.where(lane % 8 < 6, lane + 2, lane))
    first = Allocate(L, block(Shuffle(L, (const(1),), Load(X, (PLACE,)), None, 16), result(Load(L, (const(1),)))))
    np.testing.assert_array_equal(run(first), lane - lane % 16)


def test_a_shuffle_that_some_threads_of_a_warp_do_not_come_to() -> None:
    heard = Shuffle(L, (const(0),), const(1.0), 1, 32)
    message = (
        "k: thread 0 of block 0 comes to a shuffle that thread 16 of block 0, of the same warp, does not come to: "
        "`l[0] = shuffle 1.0 of 1 further in 32`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(Allocate(L, block(If(T < 16, heard), result(Load(L, (const(0),))))))


def test_shuffle_from_a_missing_thread_is_undefined() -> None:
    """20 threads: what the last 4 hear from 4 further on is nobody's."""
    heard = Allocate(L, block(Shuffle(L, (const(0),), Load(X, (T,)), 4, 32), If(T < 17, result(Load(L, (const(0),))))))
    body = LoopFunction("k", (X, Y), (), heard, 1)
    short = DeviceFunction("k", (X, Y), (), 1, (Kernel(body, (1, 1, 1), (20, 1, 1)),))
    with pytest.raises(KernelFaultError, match=r"l\[0\] is read by thread 16 of block 0 before anything is written"):
        execute(short, [np.arange(64, dtype="float32")])


def test_a_vector_that_does_not_lie_where_its_indices_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread moves 2 neighbors, from an odd place on; a wrong proof says that they lie at even ones."""
    v = Var("v")
    pair = For(v, 2, LoopKind.VECTOR, Store(Y, (T * 2 + v,), Load(X, (T * 2 + v + 1,))))
    near = If(B < 1, If(T < 16, pair))
    with pytest.raises(KernelFaultError, match="is never written"):
        run(near)
    monkeypatch.setattr(vectors, "first_alignment", lambda *_: 8)
    message = (
        "k: thread 0 of block 0 moves a vector of x that does not start at a multiple of 2 elements, in "
        "`y[((threadIdx.x * 2) + v)] = x[(((threadIdx.x * 2) + v) + 1)]`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(near)


def test_blocks_race_in_global_memory_whatever_the_barriers() -> None:
    with pytest.raises(KernelFaultError, match=r"y\[0\] is written by thread 0 of block \d and written by thread 0 of"):
        run(Store(Y, (T,), const(1.0)), Barrier(), Store(Y, (T + 32,), const(1.0)))


@pytest.mark.parametrize(("offset", "element"), [(1, "x[64]"), (-1, "x[-1]")])
def test_an_access_outside_of_a_buffer_is_found(offset: int, element: str) -> None:
    thread = "thread 31 of block 1" if offset > 0 else "thread 0 of block 0"
    message = (
        f"k: {element} lies outside of x[64]: accessed by {thread}, in "
        f"`y[((blockIdx.x * 32) + threadIdx.x)] = x[(((blockIdx.x * 32) + threadIdx.x) + {offset})]`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(result(Load(X, (PLACE + offset,))))


def test_a_write_outside_of_shared_memory_is_found() -> None:
    with pytest.raises(KernelFaultError, match=r"s\[32\] lies outside of s\[32\]: accessed by thread 31 of block 0"):
        run(fetch(T + 1), Barrier(), result(const(0.0)))


def test_memory_that_the_launch_does_not_give_is_not_accessed() -> None:
    """Beyond 48 KiB a block has what it is launched with."""
    large = Buffer("large", (STATIC_SHARED // 4,), "float32", "shared")
    last = (const(large.size - 1),)
    body = block(If(T < 1, Store(large, last, const(3.0))), Barrier(), result(Load(large, last)))
    function, x = kernel_of(Allocate(large, body)), np.zeros(64, "float32")
    nbytes = function.kernels[0].dynamic_shared
    assert nbytes == STATIC_SHARED + S.nbytes
    np.testing.assert_array_equal(execute(function, [x], {"k": nbytes})[0], np.full(64, 3.0))
    message = "k: large[12287] lies outside of the shared memory that the launch gives a block: accessed by thread 0 of"
    with pytest.raises(KernelFaultError, match=re.escape(message)):
        execute(function, [x], {"k": STATIC_SHARED - 1})


def test_what_a_thread_does_not_choose_it_does_not_read() -> None:
    inside = Binary(BinaryOp.LT, PLACE, const(63))
    found = run(result(select(inside, Load(X, (PLACE + 1,)), 0.0)))
    np.testing.assert_array_equal(found, [*range(1, 64), 0])


def test_reading_unwritten_shared_memory_is_a_fault() -> None:
    message = (
        "k: s[31] is read by thread 0 of block 0 before anything is written to it, in "
        "`y[((blockIdx.x * 32) + threadIdx.x)] = s[(31 - threadIdx.x)]`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(If(T < 31, fetch()), Barrier(), result(other_end()))


def test_memory_of_a_turn_before_counts_as_never_written() -> None:
    k = Var("k")
    once = If(Binary(BinaryOp.LT, k, const(1)), Store(L, (const(0),), const(1.0)))
    iterations = For(k, 2, LoopKind.SERIAL, Allocate(L, block(once, result(Load(L, (const(0),))))))
    with pytest.raises(KernelFaultError, match=r"l\[0\] is read by thread 0 of block 0 before anything is written to"):
        run(iterations)


def test_a_barrier_that_not_all_threads_come_to_is_found() -> None:
    message = (
        "k: thread 0 of block 0 comes to a barrier that thread 16 of block 0 does not come to, inside "
        "`if (threadIdx.x < 16)`"
    )
    with pytest.raises(KernelFaultError, match=fault(message)):
        run(fetch(), If(T < 16, block(Barrier(), result(other_end()))))


def test_a_barrier_may_be_left_out_by_whole_blocks() -> None:
    found = run(result(const(0.0)), If(B < 1, block(fetch(), Barrier(), result(other_end()))))
    np.testing.assert_array_equal(found, [*range(31, -1, -1), *([0] * 32)])


def test_an_output_that_is_not_written_whole_is_found() -> None:
    with pytest.raises(KernelFaultError, match="element 32 of the output y is never written"):
        run(If(B < 1, result(const(0.0))))


@pytest.mark.parametrize(("op", "wanted"), [(BinaryOp.MAX, np.nan), (BinaryOp.FMAX, -1)])
def test_maximum_keeps_nan_and_fmax_leaves_it_out(op: BinaryOp, wanted: float) -> None:
    start, last = Store(L, (const(0),), const(-1.0)), Load(L, (const(0),))
    join = Store(L, (const(0),), Binary(op, last, Load(X, (PLACE,))))
    function = kernel_of(Allocate(L, block(start, join, result(last))))
    given = np.full(64, np.nan, "float32")
    given[0] = 3
    np.testing.assert_array_equal(execute(function, [given])[0], [3, *([wanted] * 63)])


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"k: the inputs must be x: float32\[64\]"):
        execute(kernel_of(result(const(0.0))), [np.zeros(63, "float32")])


@pytest.mark.parametrize("given", [[[0.0] * 64], [None], [], [np.zeros(64, "float32"), 1.0], None, {"x": 1.0}])
def test_inputs_that_are_no_arrays_are_refused(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"k: the inputs must be x: float32\[64\], as arrays of NumPy"):
        execute(kernel_of(result(const(0.0))), given)


def without_barrier(stmt: Stmt, number: int) -> Stmt:
    """The statement without its barrier of that number."""
    numbers = iter(range(sum(isinstance(each, Barrier) for each in walk_stmt(stmt))))
    return map_stmt(stmt, lambda each: Block(()) if isinstance(each, Barrier) and next(numbers) == number else None)


def test_every_barrier_that_lowering_puts_is_needed() -> None:
    function = lower_for_gpu(fetched_product(), "k", GPU, check=True)
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 8), "float32"), rng.random((8, 16), "float32")
    np.testing.assert_allclose(execute(function, [a, b])[0], a @ b, rtol=1e-5)
    (kernel,) = function.kernels
    count = sum(isinstance(stmt, Barrier) for stmt in walk_stmt(kernel.body.body))
    assert count == 2
    for left_out in range(count):
        body = LoopFunction("k", kernel.body.params, (), without_barrier(kernel.body.body, left_out), 1)
        broken = DeviceFunction("k", function.params, (), 1, (Kernel(body, kernel.grid, kernel.block),))
        with pytest.raises(KernelFaultError, match=r"A.shared\[0, \d\] is .* with no barrier between"):
            execute(broken, [a, b])


def test_barriers_that_are_inserted_make_a_racing_kernel_right() -> None:
    racing = kernel_of(fetch(), result(other_end())).kernels[0]
    function = DeviceFunction("k", (X, Y), (), 1, (insert_barriers(racing),))
    (found,) = execute(function, [np.arange(64, dtype="float32")])
    np.testing.assert_array_equal(found.reshape(2, 32), np.arange(64).reshape(2, 32)[:, ::-1])
