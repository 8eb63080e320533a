"""Gives loops over symbolic axes their extents: whole vectors, and what is left under a mask.

before: vector j in MOST: y[i, j] = f(x[i, j])
after:  for j.iteration in n // 64: vector j in 64: y[i, j.iteration * 64 + j] = f(…)
        for j.tail in (n % 64 + 15) // 16: vector j in 16: if n // 64 * 64 + j.tail * 16 + j < n: …

Strips of a product are cut alike. There only reads and writes of arguments are masked: the sums are in registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.expr import Expr, Load, Select, Var, cast, const, dim_expr
from retune.compiler.ir.rewrite import find_stmts, has_stmt, rewrite
from retune.compiler.ir.stmt import For, If, LoopKind, Stmt, Store, block, map_exprs
from retune.compiler.ir.visit import substitute, transform, uses
from retune.compiler.lower.passes.legalize_loops import runs_under_mask
from retune.compiler.schedule.axis_classes import AxisClass
from retune.compiler.schedule.blocks import MOST, class_in

_LANES = 64
"""Iterations that a vector loop makes together: a few vectors on every machine."""
_ITEM_BYTES = 4
"""The size of an element for which the lanes of a mask are a register."""


def bound_loop(loop: For, classes: Sequence[AxisClass], hardware: HardwareParams) -> Stmt | None:
    """A loop of `MOST` iterations over a class of axes, with the extent of the class; or such a loop cut into an outer
    loop and a loop over lanes, as of a reduction in vectors, or of the strips of a product. None for other loops, and
    where there is no such form.
    """
    axis = _axis_of(loop)
    known = class_in(axis, classes)
    if known is None or known.extent is None or known.is_parallel:
        return None
    if loop.extent == MOST and loop.kind in (LoopKind.SERIAL, LoopKind.PARALLEL):
        return replace(loop, extent=known.extent)
    if loop.extent == MOST and loop.kind is LoopKind.VECTOR:
        iteration = Var(f"{loop.var.name}.iteration")
        lanes = _with(replace(loop, extent=_LANES), loop.var, iteration * _LANES + loop.var)
        return _in_vectors(For(iteration, MOST // _LANES, LoopKind.SERIAL, lanes), lanes, known.extent, hardware)
    inside = [inner for inner in find_stmts(For, loop.body) if _axis_of(inner) == axis]
    widths = {(inner.var, inner.extent, inner.kind) for inner in inside}
    if loop.kind is LoopKind.SERIAL and len(widths) == 1 and inside[0].kind is LoopKind.VECTOR:
        return _in_vectors(loop, inside[0], known.extent, hardware) if loop.extent * inside[0].extent == MOST else None
    return None


def _axis_of(loop: For) -> str:
    """The name of the axis that a loop, or the outer or inner part of it, runs over."""
    return loop.var.name.partition(".")[0]


def _in_vectors(loop: For, lanes: For, extent: int, hardware: HardwareParams) -> Stmt | None:
    """Whole iterations of a loop around `lanes`, and the lanes that are left under masks; None where these depend on
    each other.
    """
    width = lanes.extent
    masked = min(width, max(1, hardware.vector_unit_bytes // _ITEM_BYTES))
    bodies = [inner.body for inner in find_stmts(For, loop) if inner.var == lanes.var]
    if width % masked or any(has_stmt(For, body) for body in bodies):
        return None
    tail, full = Var(f"{loop.var.name}.tail"), dim_expr(extent // width)
    # Of 32 bits, of which a register has as many lanes as of most elements.
    condition = cast("int32", lanes.var) < cast("int32", dim_expr(extent % width) - tail * masked)
    # Lanes of one sum take part under a mask. Those of a strip are sums of their own, in registers.
    cut = _Tail(loop.var, lanes.var, full, tail * masked, condition, masked, is_sum=loop.body is lanes)
    if not all(cut.is_legal(body) for body in bodies):
        return None
    tails = For(tail, (extent % width + masked - 1) // masked, LoopKind.SERIAL, cut.apply(loop.body))
    return block(replace(loop, extent=extent // width), tails)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last lanes of a loop over `outer` and vectors of `lane`: at `outer` = `full`, and `lane` from `start` on,
    `width` lanes under the mask `condition`.
    """

    outer: Var
    lane: Var
    full: Expr
    start: Expr
    condition: Expr
    width: int
    is_sum: bool

    def apply(self, stmt: Stmt) -> Stmt:
        """The statement with shorter vectors under masks."""
        return rewrite(self.move_lanes(stmt), {For: self._shorter})

    def is_legal(self, stmt: Stmt) -> bool:
        """Whether all stores that are under the mask can be."""
        stores = filter(self._is_under_mask, find_stmts(Store, self.move_lanes(stmt)))
        return all(runs_under_mask(If(self.condition, store), self.lane) for store in stores)

    def _is_under_mask(self, store: Store) -> bool:
        return store.buffer.scope == "global" or (self.is_sum and store.buffer.scope == "register")

    def move_lanes(self, stmt: Stmt) -> Stmt:
        """The statement at the last lanes, except in registers, whose first lanes are used."""
        inside = Var(f"{self.lane.name}.kept")
        kept: dict[Expr, Expr] = {self.lane: inside}
        places: dict[Expr, Expr] = {self.outer: self.full, self.lane: self.start + self.lane}

        def keep(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.buffer.scope != "register":
                return None
            return Load(node.buffer, tuple(substitute(index, kept) for index in node.indices))

        def move(expr: Expr) -> Expr:
            return substitute(substitute(transform(expr, keep), places), {inside: self.lane})

        def store(stmt: Store) -> Stmt:
            indices = stmt.indices if stmt.buffer.scope == "register" else tuple(map(move, stmt.indices))
            return replace(stmt, indices=indices, value=move(stmt.value))

        return rewrite(stmt, {Store: store})

    def _shorter(self, loop: For) -> Stmt | None:
        if loop.var != self.lane:
            return None
        return replace(loop, extent=self.width, body=rewrite(loop.body, {Store: self._mask_store}))

    def _mask_store(self, store: Store) -> Stmt:
        """A store under the mask, or one whose accesses of arguments are: rows on the stack have room for all lanes."""
        if self._is_under_mask(store):
            return If(self.condition, store)

        def mask(node: Expr) -> Expr | None:
            is_lane = isinstance(node, Load) and node.buffer.scope == "global" and uses(node, self.lane)
            return Select(self.condition, node, const(0, node.dtype)) if is_lane else None

        return replace(store, value=transform(store.value, mask))


def _with(loop: For, var: Var, value: Expr) -> For:
    """The loop with `value` for `var` in its body."""
    return replace(loop, body=map_exprs(loop.body, lambda expr: substitute(expr, {var: value})))
