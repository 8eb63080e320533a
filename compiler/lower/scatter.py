"""Reductions that scatter: each term joins at most one element, which an equality in its condition names.

    before: for i: for r: out[i] = out[i] + (1 if index[r] == i else 0) * update[r]
    after:  for r: if 0 <= index[r] < extent: out[index[r]] = out[index[r]] + update[r]

The terms of an element are joined in the same order, so the results are the same; the time grows with the number of
terms, not with its product with the number of elements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Cast, Expr, Select, Var, const
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, block
from retune.compiler.ir.visit import variables
from retune.compiler.lower.nests import join_into, stores, wrap_in_guards
from retune.compiler.te.reduction import Axis, Reduce, as_body, values_of

_FEWEST_TERMS = 8
"""With fewer terms, testing each of them for each element is cheap, and runs in parallel."""
_PARALLEL = 1 << 16
"""Elements whose initial values justify several threads."""


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
    leaf = wrap_in_guards([guard for guard in guards if variables(guard) & named.keys()],
                   join_into(replace(body, source=source), buffers, target))  # fmt: skip
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
    start = _loop_over(axes[1:], variable, stores(buffers, target, starts))
    size = prod(axis.extent for axis in axes)
    kind = LoopKind.PARALLEL if size >= _PARALLEL and axes[0].extent > 1 else LoopKind.SERIAL
    return block(For(variable[axes[0]], axes[0].extent, kind, start), update)


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
