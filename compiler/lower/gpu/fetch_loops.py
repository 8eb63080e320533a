"""In: the body of a kernel as one thread runs it, with barriers. Out: one that fetches into shared memory with less
around it: only the last turn asks which threads still have something to fetch, and few turns are written out, so that
where each of them fetches is worked out in front of the loops around.

Always: the same elements are fetched by the same threads; only guards that hold in all other turns are left out there.

    before: for n in 3: if n * 32 + threadIdx.x < 80: s[n * 32 + threadIdx.x] = x[n * 32 + threadIdx.x]
    after:  unroll n in 2: s[n * 32 + threadIdx.x] = x[n * 32 + threadIdx.x]
            if threadIdx.x < 16: s[64 + threadIdx.x] = x[64 + threadIdx.x]
"""

from dataclasses import replace
from functools import reduce

from retune.compiler.ir.expr import BinaryOp, Expr, Var, binary, const
from retune.compiler.ir.interval import Ranges, conjuncts, decided
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.stmt import (
    For,
    If,
    Let,
    LoopKind,
    Stmt,
    Store,
    block,
    map_exprs,
    map_inner,
    ranges_inside,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import AsyncCopy
from retune.compiler.ir.visit import substitute, walk

_FETCH = (Store, AsyncCopy)


_MOST_TURNS = 16
"""More turns are not written out: their places would take the registers."""


def fetch_loops(kernel: Kernel) -> Kernel:
    """The kernel with the last turn split off loops that fetch into shared memory, where it alone needs a guard, and
    with short ones of these loops written out.
    """
    return replace(kernel, body=replace(kernel.body, body=_visited(kernel.body.body, kernel.ranges)))


def _visited(stmt: Stmt, ranges: Ranges) -> Stmt:
    if isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and stmt.extent > 1 and _fetches(stmt):
        inner = any(isinstance(one, For) and one.kind is LoopKind.SERIAL for one in walk_stmt(stmt.body))
        if stmt.extent <= _MOST_TURNS and not inner:
            stmt = replace(stmt, kind=LoopKind.UNROLL)
        before = {**ranges, stmt.var: (0, stmt.extent - 2)}
        body = _freed(stmt.body, stmt.var, before)
        if body is not None and body is not stmt.body:
            last: dict[Expr, Expr] = {stmt.var: const(stmt.extent - 1)}
            return block(
                replace(stmt, extent=stmt.extent - 1, body=body),
                map_exprs(stmt.body, lambda expr: substitute(expr, last)),
            )
    inside = ranges_inside(stmt, ranges)
    return map_inner(stmt, lambda inner: _visited(inner, inside))


def _fetches(stmt: Stmt) -> bool:
    """Whether nothing is in a statement but what writes shared memory, loops and guards."""
    found = list(walk_stmt(stmt))
    fetches = [inner for inner in found if isinstance(inner, _FETCH)]
    shared = all((one.buffer if isinstance(one, Store) else one.target).scope == "shared" for one in fetches)
    only = all(isinstance(inner, (For, If, Let, *_FETCH)) for inner in found)
    return shared and only


def _freed(stmt: Stmt, var: Var, ranges: Ranges) -> Stmt | None:
    """The statement without the guards on `var`, which all hold; None where one may not."""
    if isinstance(stmt, _FETCH):
        return stmt
    body = stmt.body if isinstance(stmt, (For, If, Let)) else None
    freed = None if body is None else _freed(body, var, ranges_inside(stmt, ranges))
    if freed is None:
        return None
    parts = conjuncts(stmt.condition) if isinstance(stmt, If) else ()
    named = [part for part in parts if var in walk(part)]
    if not named:
        return map_inner(stmt, lambda _: freed)
    if not all(decided(part, ranges) is True for part in named):
        return None
    kept = [part for part in parts if part not in named]
    return If(reduce(lambda one, other: binary(BinaryOp.AND, one, other), kept), freed) if kept else freed
