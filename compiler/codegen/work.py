"""Estimates how long a loop takes, to tell which parallel loops are worth starting threads for."""

from retune.compiler.dtype import item_bytes
from retune.compiler.ir.expr import Binary, BinaryOp, Call, Expr, Load
from retune.compiler.ir.stmt import Allocate, Block, For, If, Let, LoopKind, Stmt, Store
from retune.compiler.ir.visit import children

# Measured on Zen 3: 2.3 µs where the threads still wait for work, and 57 µs where they have gone to sleep.
_FORK_CYCLES = 7_000
"""What it takes to hand a loop to waiting threads, and to wait for them."""
_LOAD, _STORE, _OPERATION, _DIVISION, _CALL = 0.5, 1.5, 0.25, 5.0, 10.0
"""Cycles of a vector of each."""


def is_worth_threads(loop: For, vector_bytes: int) -> bool:
    """Whether two threads finish a loop earlier than one, which needs none to be started."""
    return cycles_of(loop, vector_bytes) >= 2 * _FORK_CYCLES


def cycles_of(stmt: Stmt, vector_bytes: int) -> float:
    """The cycles of a core, within a factor of about two where the caches hold the data; infinite where it is not
    known.
    """
    match stmt:
        case For(kind=LoopKind.VECTOR, body=Store(buffer=buffer) as store):
            lanes = max(1, vector_bytes // item_bytes(buffer.dtype))
            return -(-stmt.extent // lanes) * _cycles_of_store(store)
        case For():
            return stmt.extent * cycles_of(stmt.body, vector_bytes)
        case Let() | If() | Allocate():
            return cycles_of(stmt.body, vector_bytes)
        case Block():
            return sum(cycles_of(one, vector_bytes) for one in stmt.statements)
        case Store():
            return _cycles_of_store(stmt)
    return float("inf")


def _cycles_of_store(store: Store) -> float:
    return (0.0 if store.buffer.scope == "register" else _STORE) + _cycles_of(store.value)


def _cycles_of(expr: Expr) -> float:
    match expr:
        # What its indices take is nothing beside it.
        case Load():
            return 0.0 if expr.buffer.scope == "register" else _LOAD
        case Binary(op=BinaryOp.DIV):
            own = _DIVISION
        case Call():
            own = _CALL
        case _:
            own = _OPERATION
    inner = children(expr)
    return own + sum(map(_cycles_of, inner)) if inner else 0.0
