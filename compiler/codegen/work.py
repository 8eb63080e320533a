"""Estimates the time of a loop, to tell which parallel loops justify starting threads."""

from retune.compiler.codegen.intrinsics import FLOAT32
from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Binary, BinaryOp, Call, Const, Expr, Load
from retune.compiler.ir.stmt import Allocate, Block, For, If, Let, LoopKind, Stmt, Store
from retune.compiler.ir.visit import children

# Measured on Zen 3: 2.3 µs where the threads still spin, and 57 µs where they have gone to sleep.
_FORK_CYCLES = 7_000
"""The cost of handing a loop to waiting threads, and of waiting for them."""
BARRIER_CYCLES = 1_500
"""The cost of a barrier among threads that spin, with the skew of their shares."""
_LOAD, _STORE, _OPERATION, _DIVISION, _CALL = 0.5, 1.5, 0.25, 5.0, 10.0
"""Cycles per vector of each."""
_WHOLE_DIVISION, _LIBRARY_CALL = 40.0, 100.0
"""Cycles per element: of integers divided by a variable, and of a function of the C library."""
_SIMPLE = frozenset({"sqrt", "rsqrt", "floor", "ceil", "round", "trunc", "abs", "fma", "isnan", "bits", "clz"})
"""Functions of a few instructions."""


_USUAL_EXTENT = 64
"""Iterations of a loop with a symbolic extent that an estimate counts."""


def is_worth_threads(loop: For, vector_bytes: int) -> bool:
    """Whether two threads finish a loop earlier than a single thread, including the cost of handing over its share."""
    return cycles_of(loop, vector_bytes) >= 2 * _FORK_CYCLES


def least_iterations(loop: For, vector_bytes: int) -> int:
    """The number of iterations from which on a loop is worth threads."""
    return max(2, int(2 * _FORK_CYCLES / max(1.0, cycles_of(loop.body, vector_bytes))))


def cycles_of(stmt: Stmt, vector_bytes: int) -> float:
    """The cycles of a core, within a factor of about two where the caches hold the data; infinite where unknown."""
    match stmt:
        case For(kind=LoopKind.VECTOR, body=Store(buffer=buffer) as store):
            lanes = max(1, vector_bytes // item_bytes(buffer.dtype))
            return -(-stmt.extent // lanes) * _cycles_of_store(store, lanes)
        case For():
            extent = _USUAL_EXTENT if isinstance(stmt.extent, Dim) else stmt.extent
            return extent * cycles_of(stmt.body, vector_bytes)
        case Let() | If() | Allocate():
            return cycles_of(stmt.body, vector_bytes)
        case Block(statements=statements):
            # Of several conditional statements one runs, such as that for the rows of a tile that are left.
            choices = [cycles_of(choice, vector_bytes) for choice in statements if isinstance(choice, If)]
            others = (cycles_of(other, vector_bytes) for other in statements if not isinstance(other, If))
            return max(choices, default=0.0) + sum(others)
        case Store():
            return _cycles_of_store(stmt, 1)
    return float("inf")


def _cycles_of_store(store: Store, lanes: int) -> float:
    return (0.0 if store.buffer.scope == "register" else _STORE) + _cycles_of(store.value, lanes)


def _cycles_of(expr: Expr, lanes: int) -> float:
    match expr:
        # The indices of a load cost little in comparison.
        case Load():
            return 0.0 if expr.buffer.scope == "register" else _LOAD
        case Binary(op=BinaryOp.DIV):
            cost = _DIVISION
        case Binary(op=BinaryOp.FLOORDIV | BinaryOp.FLOORMOD, rhs=rhs) if not isinstance(rhs, Const):
            cost = _WHOLE_DIVISION * lanes
        case Call(name=name, dtype=dtype):
            is_vector = name in _SIMPLE or (name in (*FLOAT32, "sigmoid") and dtype != "float64")
            cost = _CALL if is_vector else _LIBRARY_CALL * lanes
        case _:
            cost = _OPERATION
    inner = children(expr)
    return cost + sum(_cycles_of(operand, lanes) for operand in inner) if inner else 0.0
