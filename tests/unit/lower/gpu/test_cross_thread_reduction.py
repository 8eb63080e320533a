"""Reductions over threads: shuffles where warps are whole, shared memory else and from warp to warp, the right sums."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.stmt import (
    Allocate,
    Barrier,
    For,
    If,
    LoopFunction,
    LoopKind,
    Shuffle,
    Store,
    block,
    walk_stmt,
)
from retune.compiler.lower.gpu.barriers import insert_barriers
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Split
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.small_computations import sum_and_peak
from tests.support.workloads import GPU

BLOCK, THREAD, THREAD_Y = Annotation.BLOCK_X, Annotation.THREAD_X, Annotation.THREAD_Y


def rows(n: int, m: int, threads: int, together: int = 1) -> State:
    """The sum and the peak of every row, joined over so many threads; `together` rows in a block."""
    steps = (Split(1, 0, n, (together,)), Split(1, 2, m, (threads,)), Annotate(1, 3, THREAD))
    return replay(sum_and_peak(n, m), (*steps, Annotate(1, 0, BLOCK), Annotate(1, 1, THREAD_Y)))


def right(state: State) -> DeviceFunction:
    """The kernels of a state, which compute the definition."""
    function = lower_for_gpu(state, "k", GPU, check=True)
    values = inputs_of(state.dag, np.random.default_rng(0))
    found = execute(function, [values[tensor] for tensor in state.dag.inputs])
    for one, other in zip(found, evaluate(state.dag.outputs, values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return function


def counted(function: DeviceFunction, kind: type) -> int:
    """Statements of a kind in the kernels."""
    return sum(isinstance(stmt, kind) for kernel in function.kernels for stmt in walk_stmt(kernel.body.body))


def shared(function: DeviceFunction) -> list[Buffer]:
    """The shared buffers of the kernels."""
    every = (stmt for kernel in function.kernels for stmt in walk_stmt(kernel.body.body))
    return [stmt.buffer for stmt in every if isinstance(stmt, Allocate) and stmt.buffer.scope == "shared"]


@pytest.mark.parametrize(
    ("threads", "together"), [(32, 1), (32, 4), (16, 2), (8, 4), (4, 2), (2, 16), (12, 1), (31, 1), (8, 3)]
)
def test_in_one_warp_there_is_neither_shared_memory_nor_a_barrier(threads: int, together: int) -> None:
    function = right(rows(2 * together, 70, threads, together))
    assert function.kernels[0].block == (threads, together, 1)
    assert counted(function, Shuffle) == 2 * (threads - 1).bit_length()
    assert (shared(function), counted(function, Barrier)) == ([], 0)


@pytest.mark.parametrize(("threads", "together"), [(64, 1), (96, 1), (64, 3), (256, 2), (1024, 1), (992, 1)])
def test_warps_leave_one_result_each_to_the_first(threads: int, together: int) -> None:
    function = right(rows(2 * together, 2100, threads, together))
    warps = threads // 32
    assert [buffer.shape for buffer in shared(function)] == [(together, warps) if together > 1 else (warps,)] * 2
    assert counted(function, Shuffle) == 2 * (5 + (warps - 1).bit_length())
    assert counted(function, Barrier) == 1


@pytest.mark.parametrize(("threads", "together"), [(48, 1), (12, 2), (24, 4), (40, 2), (16, 3)])
def test_threads_that_fill_no_warps_join_in_shared_memory(threads: int, together: int) -> None:
    function = right(rows(2 * together, 100, threads, together))
    whole = threads * together <= 32 and threads in (16,)
    assert counted(function, Shuffle) == (8 if whole else 0)
    assert bool(shared(function)) is not whole


def test_fewer_threads_than_another_stage_of_the_block_join_in_shared_memory() -> None:
    """The sum of every row over 8 threads, where 16 threads divide by it."""
    x, k = te.placeholder((3, 32), name="x"), te.reduce_axis(32, "k")
    total = te.compute((3,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((3, 32), lambda i, j: x[i, j] / total[i], "share")])

    def spread(threads: int) -> DeviceFunction:
        own = (Split(1, 1, 32, (threads,)), Annotate(1, 2, THREAD), ComputeAt(1, 2, 0))
        return right(replay(dag, (Split(2, 1, 32, (16,)), Annotate(2, 2, THREAD), Annotate(2, 0, BLOCK), *own)))

    assert counted(spread(8), Shuffle) == 0
    assert counted(spread(16), Shuffle) == 4


@pytest.mark.parametrize("threads", [8, 12, 32, 64, 96])
def test_every_thread_that_goes_on_with_a_sum_has_it(threads: int) -> None:
    """A sum inside a loop over threads along y belongs to each of the threads along x."""
    x, k = te.placeholder((4, 96), name="x"), te.reduce_axis(96, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((4, 96), lambda i, j: x[i, j] - total[i], "rest")])
    steps = (
        Split(2, 1, 96, (threads,)),
        Annotate(2, 2, THREAD),
        Annotate(2, 0, THREAD_Y),
        Split(1, 1, 96, (threads,)),
        Annotate(1, 2, THREAD),
        ComputeAt(1, 2, 0),
    )
    function = right(replay(dag, steps))
    assert function.kernels[0].block == (threads, 4, 1)
    if threads != 12:
        assert counted(function, Shuffle) == sum(
            (size - 1).bit_length() for size in (min(threads, 32), threads // 32) if size
        ) + (threads <= 32)


def test_a_result_with_points_of_its_own_is_joined_point_by_point() -> None:
    """The reduction stands around a loop over 3 columns."""
    x, k = te.placeholder((2, 64, 3), name="x"), te.reduce_axis(64, "k")
    dag = ComputeDAG([x, te.compute((2, 3), lambda i, j: te.sum(x[i, k, j], k), "y")])
    steps = (Split(1, 2, 64, (64,)), Reorder(1, (0, 2, 3, 1)), Annotate(1, 0, BLOCK), Annotate(1, 2, THREAD))
    function = right(replay(dag, steps))
    assert counted(function, Shuffle) == 6
    assert counted(function, Barrier) == 2  # what one point left is read before the next one's is written


def test_what_is_whole_numbers_halves_or_doubles_is_handed_on_as_it_is() -> None:
    for dtype in ("float64", "int64", "int32", "int8", "float16"):
        x, k = te.placeholder((3, 64), name="x", dtype=dtype), te.reduce_axis(64, "k")
        dag = ComputeDAG([x, te.compute((3,), lambda i, x=x, k=k: te.max(x[i, k], k), "y")])
        steps = (Split(1, 1, 64, (32,)), Annotate(1, 2, THREAD), Annotate(1, 0, BLOCK))
        assert counted(right(replay(dag, steps)), Shuffle) == 5


def test_a_shuffle_that_not_all_threads_come_to_is_refused() -> None:
    y, one = Buffer("y", (32,), "float32"), Buffer("one", (), "float32", "local")
    iteration, place = Var("turn"), INDICES[LoopKind.THREAD_X]
    heard = block(Store(one, (), const(1.0)), Shuffle(one, (), Load(one, ()), 1, 32), Store(y, (place,), Load(one, ())))

    def kernel(condition: Expr) -> Kernel:
        some = For(iteration, 4, LoopKind.SERIAL, Allocate(one, If(condition, heard)))
        return Kernel(LoopFunction("k", (y,), (), some, 1), (1, 1, 1), (32, 1, 1))

    assert insert_barriers(kernel(iteration < 2)) == kernel(iteration < 2)
    with pytest.raises(LoweringError, match=r"k: threads hand each other values where \(threadIdx.x < 16\), where not"):
        insert_barriers(kernel(place < 16))
