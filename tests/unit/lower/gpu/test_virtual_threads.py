"""What a thread does for its virtual ones, and what it does once."""

from retune.compiler.ir.expr import Buffer, Load, Var
from retune.compiler.ir.stmt import Allocate, For, If, Let, LoopFunction, LoopKind, Stmt, Store, block, lines_of
from retune.compiler.lower.gpu.virtual_threads import expand_virtual_threads
from tests.support.small_computations import golden

X, Y = Buffer("x", (8,), "float32"), Buffer("y", (8,), "float32")
L, S = Buffer("l", (4,), "float32", "local"), Buffer("s", (4,), "float32", "shared")
V, K = Var("v"), Var("i")


def text(*statements: Stmt, extent: int = 2) -> str:
    """What becomes of the statements in virtual threads."""
    loop = For(V, extent, LoopKind.VTHREAD, block(*statements))
    return "\n".join(lines_of(expand_virtual_threads(LoopFunction("k", (X, Y), (), loop, 1)).body, 0))


def each(stmt: Stmt) -> For:
    return For(K, 4, LoopKind.SERIAL, stmt)


def test_every_virtual_thread_has_its_own_part_of_a_buffer() -> None:
    fill = each(Store(L, (K,), Load(X, (V * 4 + K,))))
    copy = each(Store(Y, (V * 4 + K,), Load(L, (K,))))
    assert text(Allocate(L, block(fill, copy))) == golden(
        """
        local l: float32[2, 4]
        for i in 4:
          unroll v in 2:
            l[v, i] = x[((v * 4) + i)]
        for i in 4:
          unroll v in 2:
            y[((v * 4) + i)] = l[v, i]
        """
    )


def test_what_is_the_same_for_all_is_done_once() -> None:
    fetch = each(Store(S, (K,), Load(X, (K,))))
    copy = each(Store(Y, (V * 4 + K,), Load(S, (K,))))
    assert text(Allocate(S, block(fetch, copy))) == golden(
        """
        shared s: float32[4]
        for i in 4:
          s[i] = x[i]
        for i in 4:
          unroll v in 2:
            y[((v * 4) + i)] = s[i]
        """
    )


def test_what_depends_on_such_a_part_or_branch_does_too() -> None:
    first = each(If(V < 1, Store(L, (K,), Load(X, (K,)))))
    then = Allocate(S, each(block(Store(S, (K,), Load(L, (K,))), Store(Y, (K,), Load(S, (K,))))))
    assert text(Allocate(L, block(first, then))) == golden(
        """
        local l: float32[2, 4]
        for i in 4:
          unroll v in 2:
            if (v < 1):
              l[v, i] = x[i]
        shared s: float32[2, 4]
        for i in 4:
          unroll v in 2:
            s[v, i] = l[v, i]
          unroll v in 2:
            y[i] = s[v, i]
        """
    )


def test_names_of_parts_of_the_virtual_thread_are_written_out() -> None:
    row, column = Var("row"), Var("column")
    store = Store(Y, (row * 4 + column * 2,), Load(X, (column,)))
    assert text(Let(row, V // 2, 2, Let(column, V % 2, 2, store)), extent=4) == golden(
        """
        unroll v in 4:
          y[(((v // 2) * 4) + ((v % 2) * 2))] = x[(v % 2)]
        """
    )


def test_a_kernel_without_them_stays_as_it_is() -> None:
    function = LoopFunction("k", (X, Y), (), each(Store(Y, (K,), Load(X, (K,)))), 1)
    assert expand_virtual_threads(function) == function
