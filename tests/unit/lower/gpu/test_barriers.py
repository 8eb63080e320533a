"""Where barriers stand, and where none is needed."""

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.kernel import INDICES, Kernel
from retune.compiler.ir.stmt import Allocate, Barrier, For, If, LoopFunction, LoopKind, Stmt, Store, block, lines_of
from retune.compiler.lower.gpu.barriers import insert_barriers
from tests.support.gpu_buffers import S, X
from tests.support.small_computations import golden

Y = Buffer("y", (8, 32), "float32")
T, B = INDICES[LoopKind.THREAD_X], INDICES[LoopKind.BLOCK_X]
K = Var("k")


def kernel(*statements: Stmt, threads: int = 32) -> Kernel:
    """One of 2 blocks with a shared buffer."""
    body = LoopFunction("made", (X, Y), (), Allocate(S, block(*statements)), 1)
    return Kernel(body, (2, 1, 1), (threads, 1, 1))


def text(*statements: Stmt, threads: int = 32) -> str:
    """The statements with barriers."""
    body = insert_barriers(kernel(*statements, threads=threads)).body.body
    assert isinstance(body, Allocate)
    return "\n".join(lines_of(body.body, 0))


def fetch(index: Expr = T, row: Expr = B) -> Store:
    return Store(S, (index,), Load(X, (row, T)))


def use(index: Expr) -> Store:
    return Store(Y, (B, T), Load(S, (index,)))


def iterations(*statements: Stmt) -> For:
    return For(K, 4, LoopKind.SERIAL, block(*statements))


def test_what_another_thread_wrote_is_read_behind_a_barrier() -> None:
    assert text(fetch(), use(31 - T)) == golden(
        """
        s[threadIdx.x] = x[blockIdx.x, threadIdx.x]
        barrier
        y[blockIdx.x, threadIdx.x] = s[(31 - threadIdx.x)]
        """
    )


def test_a_thread_needs_no_barrier_for_what_it_wrote_itself() -> None:
    assert "barrier" not in text(fetch(), use(T), fetch())
    assert "barrier" not in text(fetch(T * 2 - 5), use(T * 2 - 5))
    assert "barrier" in text(fetch(T // 2), use(T // 2))
    assert "barrier" in text(fetch(const(0)), use(const(0)))


def test_one_thread_needs_none() -> None:
    assert "barrier" not in text(fetch(), use(31 - T), threads=1)


def test_the_first_thread_alone_needs_none() -> None:
    alone = [If(T < 1, each) for each in (fetch(const(3)), use(const(3)))]
    assert "barrier" not in text(*alone)
    assert text(*alone, use(const(3))).splitlines()[-2] == "barrier"


def test_a_turn_waits_for_the_one_before_it() -> None:
    assert text(iterations(fetch(row=K), use(31 - T))) == golden(
        """
        for k in 4:
          barrier
          s[threadIdx.x] = x[k, threadIdx.x]
          barrier
          y[blockIdx.x, threadIdx.x] = s[(31 - threadIdx.x)]
        """
    )


def test_an_element_of_another_turn_may_be_another_threads() -> None:
    moving = K * 8 + T
    assert "barrier" in text(iterations(fetch(moving), use(T)))
    assert "barrier" in text(iterations(fetch(moving), use(moving)))
    assert "barrier" in text(iterations(fetch(moving)), use(moving))


def test_what_a_loop_reads_is_waited_for_before_it() -> None:
    assert text(fetch(), iterations(use((T + K) % 32))) == golden(
        """
        s[threadIdx.x] = x[blockIdx.x, threadIdx.x]
        barrier
        for k in 4:
          y[blockIdx.x, threadIdx.x] = s[((threadIdx.x + k) % 32)]
        """
    )


def test_a_barrier_of_the_first_turn_alone_stands_before_the_loop() -> None:
    own = block(use(T), fetch())
    assert text(fetch(31 - T), iterations(own)) == golden(
        """
        s[(31 - threadIdx.x)] = x[blockIdx.x, threadIdx.x]
        barrier
        for k in 4:
          y[blockIdx.x, threadIdx.x] = s[threadIdx.x]
          s[threadIdx.x] = x[blockIdx.x, threadIdx.x]
        """
    )


TILES = Buffer("tiles", (3, 32), "float32", "shared")


def pipeline(written: int, first: int = 0) -> str:
    """Three tiles: each iteration writes number `written` after its own, meets the others and reads the next one; the
    tile `first` is read before the loop.
    """
    write = Store(TILES, ((K + written) % 3, T), Load(X, (B, T)))
    read = Store(Y, (B, T), Load(TILES, ((K + 1) % 3, 31 - T)))
    before = Store(Y, (B, T), Load(TILES, (const(first), 31 - T)))
    body = LoopFunction("made", (X, Y), (), Allocate(TILES, block(before, iterations(write, Barrier(), read))), 1)
    return "\n".join(lines_of(insert_barriers(Kernel(body, (2, 1, 1), (32, 1, 1))).body.body, 0))


@pytest.mark.parametrize("written", [1, 2, 3, 4])
def test_tiles_of_other_turns_need_no_barrier_but_the_one_that_is_there(written: int) -> None:
    """Behind the barrier of an iteration the tile of the next one has been read: only that is not to be written."""
    assert pipeline(written).count("barrier") == (1 if written % 3 else 2)
    assert pipeline(written, first=2).count("barrier") == (1 if written == 1 or written == 4 else 2)


def test_a_loop_without_a_barrier_does_not_hide_one_that_every_turn_has() -> None:
    """As above, with a loop over numbers of their own behind the barrier."""
    write = Store(TILES, ((K + 2) % 3, T), Load(X, (B, T)))
    read = Store(Y, (B, T), Load(TILES, ((K + 1) % 3, 31 - T)))
    alone = For(Var("a"), 4, LoopKind.SERIAL, Store(S, (T,), Load(X, (B, T))))
    body = LoopFunction("made", (X, Y), (), Allocate(TILES, Allocate(S, iterations(write, Barrier(), read, alone))), 1)
    made = insert_barriers(Kernel(body, (2, 1, 1), (32, 1, 1))).body.body
    assert "\n".join(lines_of(made, 0)).count("barrier") == 1


def test_several_elements_fetched_by_a_loop_need_none_among_themselves() -> None:
    assert "barrier" not in text(iterations(fetch(K * 32 + T)))


def test_a_branch_of_whole_blocks_may_hold_a_barrier() -> None:
    assert text(If(B < 1, block(fetch(), use(31 - T)))).splitlines()[2] == "  barrier"


def test_a_branch_of_some_threads_waits_outside() -> None:
    assert text(fetch(), If(T < 16, use(31 - T))).splitlines()[1] == "barrier"


def test_threads_cannot_wait_where_not_all_come_by() -> None:
    with pytest.raises(
        LoweringError, match=r"made: threads must wait for each other where \(threadIdx.x < 16\), where"
    ):
        insert_barriers(kernel(If(T < 16, block(fetch(), use(15 - T)))))


def test_a_barrier_that_is_there_already_is_kept() -> None:
    assert text(fetch(), Barrier(), use(31 - T)).count("barrier") == 1


def test_accesses_that_cannot_meet_need_none() -> None:
    halves = [If(T < 16, use(T + 16)), If(T < 16, fetch())]
    assert "barrier" not in text(*halves)
    assert "barrier" in text(halves[0], If(T < 17, fetch()))
