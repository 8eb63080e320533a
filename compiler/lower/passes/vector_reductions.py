"""In: an innermost reduction over neighbouring elements, outside every vector loop. Out: one that runs in lanes.

Always: integers come out exactly the same; floats are joined in another order, and those of two bytes in float32.

    before: for k in 4096: s[i] = s[i] + x[i, k]
    after:  part = 0 over 64 lanes;  for t in 64: part[l] = part[l] + x[i, 64 t + l] over 64 lanes
            part[l] = part[l] + part[l + 32] over 32 lanes; … over 16, 8, 4, 2;  s[i] = s[i] + (part[0] + part[1])
Several vectors a turn are independent chains, which hide the latency of the joining operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.dtype import accumulated, item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import (
    BOOL,
    Binary,
    BinaryOp,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    cast,
    const,
    is_float,
)
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, block, map_inner
from retune.compiler.ir.visit import substitute, transform, walk

CHAINS = 4
"""Vectors of partial results that a long reduction has: the latency of an addition."""
MIN_EXTENT = 8
"""A shorter reduction costs less in its own order."""


@dataclass(frozen=True, slots=True)
class VectorReductions:
    """`vector_bytes` is the width of a vector register."""

    vector_bytes: int = 64
    name: str = "vector-reductions"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with partial results in lanes."""
        return replace(function, body=_Rewriter(self.vector_bytes).visit(function.body))


class _Rewriter:
    def __init__(self, vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.count = 0

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            if stmt.kind is LoopKind.VECTOR:
                return stmt
            found = _reduction(stmt)
            if found is not None:
                return self.in_lanes(*found)
        return map_inner(stmt, self.visit)

    def in_lanes(self, loops: Sequence[For], update: Store, value: Binary) -> Stmt:
        """The reduction `loops`, the innermost of them over lanes."""
        buffer, inner = update.buffer, loops[-1]
        dtype = accumulated(buffer.dtype)
        lanes = max(1, self.vector_bytes // item_bytes(dtype))
        width = min(lanes * CHAINS, 1 << (inner.extent.bit_length() - 1))
        part = Buffer(f"{buffer.name}.part{self.count}", (width,), dtype, "register")
        self.count += 1
        lane, turn = Var(f"{inner.var.name}.lane"), Var(f"{inner.var.name}.turn")

        def over(extent: int, right: Expr) -> Stmt:
            joined = Store(part, (lane,), binary(value.op, Load(part, (lane,)), cast(dtype, right)))
            return For(lane, extent, LoopKind.VECTOR, joined)

        turns, rest = divmod(inner.extent, width)
        at = (turn if turns > 1 else const(0)) * width + lane
        body: list[Stmt] = [over(width, substitute(value.rhs, {inner.var: at}))]
        if turns > 1:
            body = [For(turn, turns, LoopKind.SERIAL, body[0])]
        if rest:
            body.append(over(rest, substitute(value.rhs, {inner.var: lane + turns * width})))
        work = block(*body)
        for loop in reversed(loops[:-1]):
            work = replace(loop, body=work)
        start = For(lane, width, LoopKind.VECTOR, Store(part, (lane,), _identity(value.op, dtype)))
        folds = []
        while width > 2:
            width //= 2
            folds.append(over(width, Load(part, (lane + width,))))
        first, second = (Load(part, (const(number),)) for number in range(2))
        total = binary(value.op, cast(dtype, value.lhs), binary(value.op, first, second))
        return Allocate(part, block(start, work, *folds, replace(update, value=cast(buffer.dtype, total))))


def _reduction(loop: For) -> tuple[list[For], Store, Binary] | None:
    """The loops, the update and its value, of a perfect nest that reduces neighbouring elements into one."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    update = loops[-1].body
    if not isinstance(update, Store) or not isinstance(update.value, Binary):
        return None
    used = {node for index in update.indices for node in walk(index)}
    if any(each.var in used or each.kind not in (LoopKind.SERIAL, LoopKind.UNROLL) for each in loops):
        return None
    loops, value = _collapsed(loops, update.value)
    inner = loops[-1]
    if inner.extent < MIN_EXTENT or value.op not in _IDENTITIES or value.lhs != Load(update.buffer, update.indices):
        return None
    return (loops, update, value) if _neighbours(value.rhs, update.buffer, inner.var) else None


def _collapsed(loops: list[For], value: Binary) -> tuple[list[For], Binary]:
    """The innermost loops as one where they walk through memory without a step between, as a window that is whole rows
    does. The index of the last dimension then runs on into the next rows.
    """
    while len(loops) > 1 and _runs_on(value.rhs, loops[-2], loops[-1]):
        outer, inner = loops[-2:]
        value = replace(value, rhs=substitute(value.rhs, {outer.var: const(0)}))
        loops = [*loops[:-2], replace(inner, extent=outer.extent * inner.extent)]
    return loops, value


def _runs_on(source: Expr, outer: For, inner: For) -> bool:
    """Whether every read moves as far in a turn of `outer` as in all of `inner`, and nothing else depends on them."""
    if any(isinstance(node, Select) for node in walk(source)):
        return False
    rest = transform(source, lambda node: Var("read", node.dtype) if isinstance(node, Load) else None)
    if any(node in (outer.var, inner.var) for node in walk(rest)):
        return False
    for node in walk(source):
        if isinstance(node, Load):
            form = flat_index(node.buffer.shape, node.indices)
            if any(not isinstance(atom, Var) for atom in form.terms):
                return False
            if form.terms.get(outer.var, 0) != form.terms.get(inner.var, 0) * inner.extent:
                return False
    return True


def _neighbours(source: Expr, result: Buffer, var: Var) -> bool:
    """Whether `source` reads neighbouring elements, or the same ones, as `var` runs, and does not read the result."""
    side_by_side = False
    for node in walk(source):
        if isinstance(node, Select) and any(part == var for part in walk(node.condition)):
            return False
        if isinstance(node, Load):
            form = flat_index(node.buffer.shape, node.indices)
            stride = form.terms.get(var, 0)
            inside = any(part == var for atom in form.terms if atom != var for part in walk(atom))
            if node.buffer == result or inside or stride not in (0, 1):
                return False
            side_by_side = side_by_side or stride == 1
    return side_by_side


_IDENTITIES = {BinaryOp.ADD: 0, BinaryOp.MUL: 1, BinaryOp.MAX: -np.inf, BinaryOp.MIN: np.inf}


def _identity(op: BinaryOp, dtype: str) -> Const:
    """The value that leaves every value of the type as it is."""
    value = _IDENTITIES[op]
    if np.isfinite(value) or is_float(dtype):
        return const(value, dtype)
    if dtype == BOOL:
        return const(op is BinaryOp.MIN)
    limits = np.iinfo(dtype)
    return const(int(limits.min if op is BinaryOp.MAX else limits.max), dtype)
