"""Conservative analysis of index expressions over the lanes of a warp: strides, uniform conditions, multiples."""

from retune.compiler.ir.expr import Binary, BinaryOp, Const, Expr, Not, Var, const
from retune.compiler.ir.interval import as_index, slack
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.visit import substitute, uses

_COMPARED = (BinaryOp.AND, BinaryOp.OR)


def stride(expr: Expr, lane: Var, width: int) -> int | None:
    """The step of an index with every value of `lane` in 0 .. width-1, a power of two; None when it may vary."""
    if not uses(expr, lane):
        return 0
    match expr:
        case Var():
            return 1
        case Binary(op=BinaryOp.ADD | BinaryOp.SUB | BinaryOp.MUL | BinaryOp.FLOORDIV | BinaryOp.FLOORMOD):
            lhs, rhs = stride(expr.lhs, lane, width), stride(expr.rhs, lane, width)
            return None if lhs is None or rhs is None else _join(expr, lhs, rhs, lane, width)
    return None


def _join(expr: Binary, lhs: int, rhs: int, lane: Var, width: int) -> int | None:
    if expr.op is BinaryOp.ADD:
        return lhs + rhs
    if expr.op is BinaryOp.SUB:
        return lhs - rhs
    if expr.op is BinaryOp.MUL:
        if isinstance(expr.rhs, Const):
            return lhs * int(expr.rhs.value)
        return int(expr.lhs.value) * rhs if isinstance(expr.lhs, Const) else None
    if lhs == rhs == 0:
        return 0
    by = int(expr.rhs.value) if isinstance(expr.rhs, Const) else 0
    # Lanes that start at a multiple of their number never cross a multiple of it.
    if lhs != 1 or by <= 0 or by % width or divisor(first_of(expr.lhs, lane)) % width:
        return None
    return 0 if expr.op is BinaryOp.FLOORDIV else 1


def first_of(expr: Expr, lane: Var) -> Expr:
    return substitute(expr, {lane: const(0)})


def uniform(condition: Expr, lane: Var, width: int) -> bool:
    """Whether a condition surely holds in all lanes or in none."""
    if not uses(condition, lane):
        return True
    if isinstance(condition, Not):
        return uniform(condition.value, lane, width)
    if isinstance(condition, Binary) and condition.op in _COMPARED:
        return uniform(condition.lhs, lane, width) and uniform(condition.rhs, lane, width)
    form = slack(condition)
    if form is None:
        return False
    room = as_index(form)
    moves = stride(room, lane, width)
    first = first_of(room, lane)
    # At a multiple of the number of lanes the room is below 0 in all of them, or in none.
    if moves == 1:
        return divisor(first) % width == 0
    return moves == 0 or (moves == -1 and divisor(first + 1) % width == 0)
