"""Reductions that scatter: each term joins at most one element, which an equality in its condition names.

    before: for i: for r: out[i] = out[i] + (1 if index[r] == i else 0) * update[r]
    after:  for r: if 0 <= index[r] < extent: out[index[r]] = out[index[r]] + update[r]

The terms of an element are joined in the same order, so the results are the same; the time grows with the number of
terms, not with its product with the number of elements. Threads share elements along an axis that no index names: each
visits all terms, in order, for its own elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Cast, Expr, Select, Var, const
from retune.compiler.ir.rewrite import rewrite
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, block, map_exprs
from retune.compiler.ir.visit import substitute, variables
from retune.compiler.lower.nests import join_into, stores, wrap_in_guards
from retune.compiler.te.reduction import Axis, Reduce, as_body, values_of

_FEWEST_TERMS = 8
"""With fewer terms, testing each of them for each element is cheap, and runs in parallel."""
_PARALLEL = 1 << 16
"""Elements, or terms, that justify several threads."""
_LEAST_PART = 256
"""Bytes of a row that a thread joins: fewer cost as much as the lookup of the row's index."""
_MOST_PARTS = 16


def scatter(
    body: Reduce, axes: Sequence[Axis], variable: Mapping[Axis, Var], buffers: Sequence[Buffer], starts: Sequence[Expr]
) -> Stmt | None:
    """The loops of a reduction that scatters into `buffers`, None for other reductions. `body` is written over the
    variables of the `axes` of the result and of its own axes.
    """
    chosen = [value for value in values_of(body.source) if isinstance(value, Select)]
    if prod(axis.extent for axis in body.axes) < _FEWEST_TERMS or len(chosen) < len(starts):
        return None
    for value, neutral in zip(chosen, body.identities, strict=True):
        if value.condition != chosen[0].condition or value.otherwise != const(neutral, value.dtype):
            return None
    tests = _conjuncts(chosen[0].condition)
    spatial = {variable[axis]: axis for axis in axes}
    named: dict[Var, Expr] = {}
    for test in tests:
        for var, index in _equal(test):
            if var in spatial and var not in named and not variables(index) & {var}:
                named[var] = index
                break
    if not named or any(variables(index) & named.keys() for index in named.values()):
        return None
    # The first test is the outermost: later tests may be evaluated only where it holds.
    guards = [test for test in reversed(tests) if not any((var, index) in named.items() for var, index in _equal(test))]
    target = tuple(variable[axis] for axis in axes)
    source = as_body([value.then for value in chosen])
    leaf = wrap_in_guards(
        [guard for guard in guards if variables(guard) & named.keys()],
        join_into(replace(body, source=source), buffers, target),
    )
    first = min(dim for dim, axis in enumerate(axes) if variable[axis] in named)
    after = [axis for axis in axes[first:] if variable[axis] not in named]
    outside = [guard for guard in guards if not variables(guard) & named.keys()]
    # The loops after the named axis stay innermost, in memory order.
    if not any(variables(expr) & {variable[axis] for axis in after} for expr in (*outside, *named.values())):
        leaf, after = _loop_over(after, variable, leaf), []
    for var, index in named.items():
        extent = spatial[var].extent
        leaf = If(index >= 0, If(index < extent, Let(var, index, extent, leaf)))
    update = _loop_over([*axes[:first], *body.axes, *after], variable, wrap_in_guards(outside, leaf))
    free = [axis for axis in axes if variable[axis] not in named]
    if prod(axis.extent for axis in (*free, *body.axes)) >= _PARALLEL and free:
        update = _in_parts(update, variable[free[0]], free[0].extent, prod(axis.extent for axis in free), buffers[0])
    start = _loop_over(axes, variable, stores(buffers, target, starts))
    if prod(axis.extent for axis in axes) >= _PARALLEL and axes[0].extent > 1 and isinstance(start, For):
        start = replace(start, kind=LoopKind.PARALLEL)
    return block(start, update)


def _in_parts(stmt: Stmt, var: Var, extent: int, row: int, buffer: Buffer) -> Stmt:
    """The loops of `stmt` with the loop over `var`, along rows of `row` elements, cut into parts for threads.

    before: for r: for i: body                after: parallel p: for r: for i in width: body at p * width + i
    """
    if isinstance(stmt, For) and stmt.var == var:
        return replace(stmt, kind=LoopKind.PARALLEL) if extent > 1 else stmt
    least = -(-_LEAST_PART * extent // (row * item_bytes(buffer.dtype)))
    width = min(
        width
        for width in range(1, extent + 1)
        if extent % width == 0 and (width == extent or (width >= least and extent // width <= _MOST_PARTS))
    )
    if width == extent:
        return stmt
    part = Var(f"{var.name}.part")
    point = part * width + var

    def narrow(loop: For) -> Stmt | None:
        if loop.var != var:
            return None
        return replace(loop, extent=width, body=map_exprs(loop.body, lambda expr: substitute(expr, {var: point})))

    return For(part, extent // width, LoopKind.PARALLEL, rewrite(stmt, {For: narrow}))


def _loop_over(axes: Sequence[Axis], variable: Mapping[Axis, Var], stmt: Stmt) -> Stmt:
    for axis in reversed(axes):
        stmt = For(variable[axis], axis.extent, LoopKind.SERIAL, stmt)
    return stmt


def _conjuncts(condition: Expr) -> list[Expr]:
    """Conditions that must all hold, each of which may be evaluated once the earlier conditions do."""
    if isinstance(condition, Binary) and condition.op is BinaryOp.AND:
        return [*_conjuncts(condition.lhs), *_conjuncts(condition.rhs)]
    if isinstance(condition, Select) and condition.otherwise == const(False):
        return [*_conjuncts(condition.condition), *_conjuncts(condition.then)]
    return [] if condition == const(True) else [condition]


def _equal(test: Expr) -> list[tuple[Var, Expr]]:
    """The variables that a test requires to equal a value, with that value."""
    if not isinstance(test, Binary) or test.op is not BinaryOp.EQ:
        return []
    pairs = ((_bare(test.lhs), test.rhs), (_bare(test.rhs), test.lhs))
    return [(var, index) for var, index in pairs if isinstance(var, Var)]


def _bare(value: Expr) -> Expr:
    return value.value if isinstance(value, Cast) and value.dtype.startswith("int") else value
