"""Gives loops over symbolic axes their extents: whole vectors, and what is left under a mask.

before: vector j in MOST: y[i, j] = f(x[i, j])
after:  for j.iteration in n // 64: vector j in 64: y[i, j.iteration * 64 + j] = f(…)
        vector j in 64: if n // 64 * 64 + j < n: …
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.compiler.ir.expr import Expr, Var, dim_expr
from retune.compiler.ir.rewrite import has_stmt
from retune.compiler.ir.stmt import For, If, LoopKind, Stmt, block, map_exprs
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.passes.legalize_loops import runs_under_mask
from retune.compiler.schedule.axis_classes import AxisClass
from retune.compiler.schedule.blocks import MOST, class_in

_LANES = 64
"""Iterations that a vector loop makes together: a few vectors on every machine."""


def bounded(loop: For, classes: Sequence[AxisClass]) -> Stmt | None:
    """A loop of `MOST` iterations over a class of axes, with the extent of the class; or such a loop cut into an outer
    loop and one over lanes, as of a reduction in vectors. None for other loops, and where there is no such form.
    """
    axis = _axis_of(loop)
    known = class_in(axis, classes)
    if known is None or known.extent is None or known.is_parallel:
        return None
    inner = loop.body
    if loop.extent == MOST and loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
        return replace(loop, extent=known.extent)
    if loop.extent == MOST and loop.kind is LoopKind.VECTOR:
        iteration = Var(f"{loop.var.name}.iteration")
        lanes = _with(replace(loop, extent=_LANES), loop.var, iteration * _LANES + loop.var)
        return _in_vectors(iteration, lanes, known.extent)
    is_split = isinstance(inner, For) and _axis_of(inner) == axis and loop.extent * inner.extent == MOST
    if isinstance(inner, For) and is_split and inner.kind is LoopKind.VECTOR:
        return _in_vectors(loop.var, inner, known.extent)
    return None


def _axis_of(loop: For) -> str:
    """The name of the axis that a loop, or the outer or inner part of it, runs over."""
    return loop.var.name.partition(".")[0]


def _in_vectors(iteration: Var, lanes: For, extent: int) -> Stmt | None:
    """Whole iterations of `lanes`, and the lanes that are left under a mask; None where these depend on each other."""
    width = lanes.extent
    full = dim_expr(extent // width)
    remaining = If(full * width + lanes.var < dim_expr(extent), _with(lanes, iteration, full).body)
    if has_stmt(For, lanes.body) or not runs_under_mask(remaining, lanes.var):
        return None
    return block(For(iteration, extent // width, LoopKind.SERIAL, lanes), replace(lanes, body=remaining))


def _with(loop: For, var: Var, value: Expr) -> For:
    """The loop with `value` for `var` in its body."""
    return replace(loop, body=map_exprs(loop.body, lambda expr: substitute(expr, {var: value})))
