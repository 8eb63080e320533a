"""Drivers of rewrite rules over statements, and the searches that rules are made of.

A rule is a function of one type of statement that returns the new statement, or None to leave it as it is. A pass gives
its rules as a table indexed by that type. `rewrite` applies a table from the leaves up, `rewrite_down` from the root
down with the ranges of the variables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retune.compiler.ir.expr import Buffer, Expr, Load
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.stmt import (
    Allocate,
    Block,
    For,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    exprs_of,
    inner_stmts,
    map_exprs,
    map_inner,
    map_own,
    map_stmt,
    ranges_inside,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import AsyncCopy, Exprs, LoadMatrix, Mma, TransposeQuad, WarpgroupMma, WarpgroupWait
from retune.compiler.ir.visit import find, of_type, replace_nodes

Node = TypeVar("Node", bound=Stmt)
Rules = Mapping[type, Callable[[Any], Stmt | None]]
RulesInScope = Mapping[type, Callable[[Any, Ranges], Stmt | None]]

_ACCESS_FIELDS: Mapping[type[Stmt], tuple[tuple[str, str, bool], ...]] = {
    Store: (("buffer", "indices", True),),
    Shuffle: (("buffer", "indices", True),),
    AsyncCopy: (("target", "indices", True), ("source", "source_indices", False)),
    LoadMatrix: (("target", "indices", True), ("source", "source_indices", False)),
    TransposeQuad: (("target", "indices", True), ("source", "source_indices", False)),
    Mma: (("sums", "at", True), ("left", "left_at", False), ("right", "right_at", False)),
    WarpgroupMma: (("sums", "at", True), ("left", "left_at", False), ("right", "right_at", False)),
    WarpgroupWait: (("sums", "at", True),),
}
"""For each type of statement that accesses memory: the fields of buffer and indices, and whether it writes."""


def rewrite(stmt: Stmt, rules: Rules) -> Stmt:
    """Apply rules from the leaves up: to a statement after the statements inside it."""
    return map_stmt(stmt, lambda node: rules[type(node)](node) if type(node) in rules else None)


def rewrite_down(stmt: Stmt, rules: RulesInScope, ranges: Ranges | None = None) -> Stmt:
    """Apply rules from the root down, with the ranges of the variables that are bound around a statement. The result of
    a rule is final; where it returns None the statements inside come next.
    """
    outer = ranges or {}
    rule = rules.get(type(stmt))
    rewritten = None if rule is None else rule(stmt, outer)
    return rewrite_inside(stmt, rules, outer) if rewritten is None else rewritten


def rewrite_inside(stmt: Stmt, rules: RulesInScope, ranges: Ranges) -> Stmt:
    """Apply rules from the root down to the statements inside of `stmt`."""
    inside = ranges_inside(stmt, ranges)
    return map_inner(stmt, lambda inner: rewrite_down(inner, rules, inside))


def map_exprs_in_scope(stmt: Stmt, rule: Callable[[Expr, Ranges], Expr], ranges: Ranges) -> Stmt:
    """Apply `rule` to every whole expression, with the ranges of the variables that are bound around it."""
    inside = ranges_inside(stmt, ranges)
    own = map_own(stmt, lambda expr: rule(expr, ranges))
    return map_inner(own, lambda inner: map_exprs_in_scope(inner, rule, inside))


def walk_in_scope(stmt: Stmt, ranges: Ranges) -> Iterator[tuple[Stmt, Ranges]]:
    """The statement and everything below it, parents first, with the ranges of the variables bound around each."""
    yield stmt, ranges
    inside = ranges_inside(stmt, ranges)
    for inner in inner_stmts(stmt):
        yield from walk_in_scope(inner, inside)


def find_stmts(kind: type[Node], stmt: Stmt) -> Iterator[Node]:
    return of_type(kind, walk_stmt(stmt))


def has_stmt(kind: type, stmt: Stmt) -> bool:
    return next(find_stmts(kind, stmt), None) is not None


def statements_of(stmt: Stmt) -> Sequence[Stmt]:
    """The statements of a block; any other statement is a block of itself."""
    match stmt:
        case Block(statements):
            return statements
    return (stmt,)


def accesses_of(stmt: Stmt) -> Iterator[tuple[Buffer, Exprs, bool]]:
    """Every (buffer, indices, is it written) of `stmt` itself; an access of several neighbors gives the first."""
    for buffer, indices, written in _ACCESS_FIELDS.get(type(stmt), ()):
        yield getattr(stmt, buffer), getattr(stmt, indices), written
    for load in find(Load, *exprs_of(stmt)):
        yield load.buffer, load.indices, False


def accesses_in(stmt: Stmt) -> Iterator[tuple[Buffer, Exprs, bool]]:
    """The accesses of `stmt` and of every statement inside it."""
    return (access for inner in walk_stmt(stmt) for access in accesses_of(inner))


def redirect(stmt: Stmt, rule: Callable[[Buffer, Exprs], tuple[Buffer, Exprs] | None]) -> Stmt:
    """Replace the buffer and the indices of every access for which `rule` returns others."""

    def on_load(load: Load) -> Expr | None:
        access = rule(load.buffer, load.indices)
        return None if access is None else Load(*access)

    def on_stmt(node: Stmt) -> Stmt | None:
        changes: dict[str, object] = {}
        for buffer, indices, _ in _ACCESS_FIELDS.get(type(node), ()):
            access = rule(getattr(node, buffer), getattr(node, indices))
            if access is not None:
                changes.update(zip((buffer, indices), access, strict=True))
        return replace(node, **changes) if changes else None  # type: ignore[type-var] # with fields, all are dataclasses

    # Loads first: the results of `rule` are final, and loads in them are not redirected again.
    return map_stmt(map_exprs(stmt, lambda expr: replace_nodes(expr, Load, on_load)), on_stmt)


def perfect_nest(stmt: Stmt, *kinds: LoopKind) -> tuple[tuple[For, ...], Stmt]:
    """The perfectly nested loops, of `kinds` or of any kind, and the body of the innermost."""
    loops: list[For] = []
    while isinstance(stmt, For) and (not kinds or stmt.kind in kinds):
        loops.append(stmt)
        stmt = stmt.body
    return tuple(loops), stmt


def nest(loops: Sequence[For], body: Stmt) -> Stmt:
    """The loops around another body, outermost first."""
    for loop in reversed(loops):
        body = replace(loop, body=body)
    return body


def peel_allocations(stmt: Stmt, scope: str) -> tuple[tuple[Buffer, ...], Stmt]:
    """The buffers of a scope that a statement begins by allocating, and the statement in which they live."""
    match stmt:
        case Allocate(buffer, body) if buffer.scope == scope:
            buffers, inner = peel_allocations(body, scope)
            return (buffer, *buffers), inner
    return (), stmt


def allocate(buffers: Sequence[Buffer], stmt: Stmt) -> Stmt:
    """`stmt` inside allocations of `buffers`, the first outermost."""
    for buffer in reversed(buffers):
        stmt = Allocate(buffer, stmt)
    return stmt


def unrolled_size(stmt: Stmt) -> int:
    """The number of statements when all unrolled loops are written out."""
    match stmt:
        case For(kind=LoopKind.UNROLL):
            return stmt.extent * unrolled_size(stmt.body)
        case Block(statements):
            return sum(map(unrolled_size, statements))
    return sum(map(unrolled_size, inner_stmts(stmt))) or 1
