"""Partition loops with guards, such as those of a split that does not divide: a hot part without guards, and its ends.

Remaining guards move as far out as possible; guards do not make the code grow beyond `MAX_COPIES` times.

    before: for i.0 in 4: for i.1 in 16: if i.0 * 16 + i.1 < 50: body(i.0, i.1)
    after:  for i.0 in 3: for i.1 in 16: body(i.0, i.1)
            for i.1 in 2: body(3, i.1)
A parallel loop stays whole: its iterations choose the part that they run. A vector loop or a sum is also split where
the stored value is chosen, as at the seams of a concatenation: choosing costs more than two loops.

    before: vector j in 96: y[j] = a[j] if j < 32 else b[j - 32]
    after:  vector j in 32: y[j] = a[j];  vector j in 64: y[j + 32] = b[j]
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from retune.compiler.ir.affine import Affine, IndexForm
from retune.compiler.ir.expr import Binary, BinaryOp, Expr, Load, Select, Var, binary, const, select
from retune.compiler.ir.interval import Ranges, conjuncts, decide_condition, limits, slack
from retune.compiler.ir.rewrite import has_stmt, perfect_nest, statements_of, walk_in_scope
from retune.compiler.ir.stmt import (
    LEAVES,
    Allocate,
    Block,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    Together,
    block,
    exprs_of,
    inner_stmts,
    map_exprs,
    range_of,
    ranges_inside,
    walk_stmt,
)
from retune.compiler.ir.visit import children, find, has, replace_nodes, substitute, uses, variables

MAX_COPIES = 16
"""Most copies of the innermost statement of a nest because of guards."""
MAX_STATEMENTS = 256
"""A nest is not copied beyond this many statements."""
_NOTHING = Block(())


def partition_loops(function: LoopFunction) -> LoopFunction:
    """Split loops where guards inside them are decided for a part of the iterations."""
    if not has_stmt(If, function.body) and not any(map(_stores_choice, walk_stmt(function.body))):
        return function

    def visit(top: Stmt, ranges: Ranges) -> Stmt:
        if isinstance(top, For) and top.kind is LoopKind.STEPS:
            inside = ranges_inside(top, ranges)
            return _around(top, block(*(visit(part, inside) for part in statements_of(top.body))))
        # Copies multiply code size and compile time: the budget shrinks with the statements of the nest.
        return _visit(top, ranges, min(MAX_COPIES, max(1, MAX_STATEMENTS // _leaves(top))))

    return replace(function, body=block(*(visit(top, {}) for top in statements_of(function.body))))


def _leaves(stmt: Stmt) -> int:
    return sum(type(inner) in LEAVES for inner in walk_stmt(stmt))


def _visit(stmt: Stmt, ranges: Ranges, budget: int) -> Stmt:
    """The statement without what `ranges` decide, and its loops split into at most `budget` copies of its leaves."""
    match stmt:
        case Block():
            return block(*(_visit(inner, ranges, budget) for inner in stmt.statements))
        case If():
            return _guard(stmt, ranges, budget)
        case For(kind=LoopKind.PARALLEL) | Let():
            return _around(stmt, _choose(stmt.body, stmt.var, range_of(stmt), ranges, budget))
        case For():
            return _split(stmt, ranges, budget)
        case Invoke() | Together():
            return stmt
        case Store():
            indices = tuple(_simpler(index, ranges) for index in stmt.indices)
            return replace(stmt, indices=indices, value=_simpler(stmt.value, ranges))
    return _around(stmt, _visit(stmt.body, ranges, budget))


def _around(stmt: For | Let | If | Allocate, body: Stmt) -> Stmt:
    """The statement with another body; no statement when the body is empty."""
    return body if body == _NOTHING else replace(stmt, body=body)


def _guard(stmt: If, ranges: Ranges, budget: int) -> Stmt:
    unknown = _unknown_parts(stmt.condition, ranges)
    if unknown is None:
        return _NOTHING
    body = _visit(stmt.body, ranges, budget)
    return body if body == _NOTHING or not unknown else If(_all(unknown), body)


def _unknown_parts(condition: Expr, ranges: Ranges) -> list[Expr] | None:
    """The parts of a condition that the ranges do not decide; None where one of them never holds."""
    decisions = {part: decide_condition(part, ranges) for part in conjuncts(condition)}
    return None if False in decisions.values() else [part for part, holds in decisions.items() if holds is None]


def _split(loop: For, ranges: Ranges, budget: int) -> Stmt:
    """A loop as several loops, or without the iterations that do nothing, or whole."""
    seams = _seams(loop, ranges)
    if seams:
        # The pieces of a concatenation need no budget: each is a copy of the statement with one choice.
        low, high = range_of(loop)
        starts = [low, *seams]
        pieces = zip(starts, [start - 1 for start in (*seams, high + 1)], strict=True)
        return block(*(_visit(_part_of(loop, first, last), ranges, budget) for first, last in pieces))
    parts = _parts(loop.body, loop.var, range_of(loop), ranges)
    if parts == [range_of(loop)]:
        match _visit(loop.body, ranges_inside(loop, ranges), budget):
            # Loop unswitching: a guard that does not depend on the loop moves out of it.
            case If(condition, guarded) if not uses(condition, loop.var) and not has(Load, condition):
                return If(condition, replace(loop, body=guarded))
            case body:
                return _around(loop, body)
    # Too many copies: the guards stay, and a budget of 0 keeps the inner loops whole as well.
    if len(parts) > max(1, budget):
        return _around(loop, _visit(loop.body, ranges_inside(loop, ranges), 0))
    return block(*(_visit(_part_of(loop, low, high), ranges, budget // len(parts)) for low, high in parts))


def _part_of(loop: For, low: int, high: int) -> Stmt:
    # A part of one iteration becomes a literal, which decides the guards inside.
    if high == low:
        return _at(loop.body, loop.var, low)
    return replace(loop, extent=high - low + 1, body=_with(loop.body, loop.var, loop.var + low))


def _choose(body: Stmt, var: Var, limit: tuple[int, int], ranges: Ranges, budget: int) -> Stmt:
    """The body for the values `limit` of a variable that is bound outside, which chooses between copies of it."""
    parts = _parts(body, var, limit, ranges)
    if parts == [limit] or len(parts) > max(1, budget):
        return _visit(body, {**ranges, var: limit}, budget if parts == [limit] else 0)
    done = []
    for low, high in parts:
        part = body if high > low or _divides_by(body, var) else _with(body, var, const(low))
        part = _choose(part, var, (low, high), ranges, budget // len(parts))
        tests = [const(low) <= var] if low > limit[0] else []
        tests += [var <= high] if high < limit[1] else []
        done.append(part if part == _NOTHING or not tests else If(_all(tests), part))
    return block(*done)


def _parts(body: Stmt, var: Var, limit: tuple[int, int], ranges: Ranges) -> list[tuple[int, int]]:
    """At most three parts of the values of `var`, one with the fewest guards; values without effect are left out."""
    low, high = limit
    for form, inside in _guards(body, {**ranges, var: limit}):
        slope = form.terms.get(var, 0)
        others = form.plus(Affine(0, {var: 1}), -slope)
        if not slope or any(uses(atom, var) for atom in others.terms):
            continue
        least, most = limits(others, inside)
        # The guard is linear in the variable: at the least value of the other terms it surely holds, at the greatest it
        # may.
        for worst in (least, most):  # where the guard always holds, or else where it may
            first, last = _solve(slope, worst, limit)
            if max(first, low) <= min(last, high):
                low, high = max(first, low), min(last, high)
                break
    parts = [(limit[0], low - 1), (low, high), (high + 1, limit[1])]
    return [part for part in parts if part[0] <= part[1] and _acts(body, {**ranges, var: part})]


def _solve(slope: int, rest: float, limit: tuple[int, int]) -> tuple[int, int]:
    """The values within `limit` for which `slope` times the value, plus `rest`, is at least 0."""
    # Without limits of the rest the guard holds for every value, or may fail for all.
    if not math.isfinite(rest):
        return limit if rest > 0 else (limit[1] + 1, limit[0])
    if slope > 0:
        return max(limit[0], math.ceil(-rest / slope)), limit[1]
    return limit[0], min(limit[1], math.floor(rest / -slope))


def _guards(stmt: Stmt, ranges: Ranges) -> Iterator[tuple[IndexForm, Ranges]]:
    """Every undecided guard inside, as a form that is at least 0 where it holds."""
    for inner, inside in walk_in_scope(stmt, ranges):
        match inner:
            case If(condition):
                yield from ((form, inside) for form in _undecided_forms(condition, inside))


def _undecided_forms(condition: Expr, ranges: Ranges) -> Iterator[IndexForm]:
    """The undecided parts of a condition, as forms that are at least 0 where they hold."""
    for part in conjuncts(condition):
        form = slack(part)
        if form is not None and decide_condition(part, ranges) is None:
            yield form


def _stores_choice(stmt: Stmt) -> bool:
    return isinstance(stmt, Store) and has(Select, stmt.value)


def _only_choice(value: Expr) -> Select | None:
    """The only choice in a value; None if there are several, or none."""
    if isinstance(value, Select):
        return value
    inner = [child for child in children(value) if has(Select, child)]
    return _only_choice(inner[0]) if len(inner) == 1 else None


def _seams(loop: For, ranges: Ranges) -> list[int]:
    """The iterations at which the value stored by a vector loop or a sum changes to another choice."""
    loops, leaf = perfect_nest(loop)
    if not isinstance(leaf, Store):
        return []
    moving = variables(*leaf.indices)
    if loop.var in moving and (loop.kind is not LoopKind.VECTOR or len(loops) > 1):
        return []
    deciding = {other_loop.var for other_loop in loops if other_loop is loop or other_loop.var not in moving}
    limit, inside = range_of(loop), {**ranges, **{other_loop.var: range_of(other_loop) for other_loop in loops}}
    seams: set[int] = set()
    choice: Expr | None = _only_choice(leaf.value)
    while isinstance(choice, Select):
        for form in _undecided_forms(choice.condition, inside):
            slope = form.terms.get(loop.var, 0)
            if slope and deciding.issuperset(form.terms):
                others = form.plus(Affine(0, {loop.var: 1}), -slope)
                # Between where it always holds and where it may, loops inside decide.
                for worst in limits(others, inside):
                    first, last = _solve(slope, worst, limit)
                    seams |= {first, last + 1}
        choice = choice.otherwise
    return sorted(seam for seam in seams if limit[0] < seam <= limit[1])


def _acts(stmt: Stmt, ranges: Ranges) -> bool:
    """Whether the statement may do anything."""
    match stmt:
        case If(condition) if any(decide_condition(part, ranges) is False for part in conjuncts(condition)):
            return False
    inside = ranges_inside(stmt, ranges)
    return type(stmt) in LEAVES or any(_acts(inner, inside) for inner in inner_stmts(stmt))


def _simpler(expr: Expr, ranges: Ranges) -> Expr:
    """The expression without the choices that are decided."""

    def rule(node: Select) -> Expr | None:
        unknown = _unknown_parts(node.condition, ranges)
        if unknown is None:
            return node.otherwise
        is_same = len(unknown) == len(set(conjuncts(node.condition)))
        return None if is_same else select(_all(unknown), node.then, node.otherwise)

    return replace_nodes(expr, Select, rule) if has(Select, expr) else expr


def _all(conditions: Sequence[Expr]) -> Expr:
    result: Expr = const(True)
    for condition in conditions:
        result = binary(BinaryOp.AND, result, condition)
    return result


def _at(stmt: Stmt, var: Var, value: int) -> Stmt:
    """The statement for one value of a variable that is unbound afterwards."""
    if _divides_by(stmt, var):
        return Let(var, const(value), value + 1, stmt)
    return _with(stmt, var, const(value))


def _divides_by(stmt: Stmt, var: Var) -> bool:
    """Whether a literal in place of the variable may make a division by a literal zero, in a choice not taken."""
    operations = (node for inner in walk_stmt(stmt) for node in find(Binary, *exprs_of(inner)))
    return any(node.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD) and uses(node.rhs, var) for node in operations)


def _with(stmt: Stmt, var: Var, value: Expr) -> Stmt:
    return map_exprs(stmt, lambda expr: substitute(expr, {var: value}))
