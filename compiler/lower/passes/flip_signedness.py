"""Flip the signedness of a factor of register tiles of dot products, where the target has no instruction for the types.

It is exact. Flipping moves the factor by 128 (see `retune.compiler.ir.dot`). The excess in the sums is accumulated next
to the tile, once for all its rows, and subtracted where the tile is stored.

    before: for k: for i: vector j: acc[i, j] = acc[i, j] + dot(a[i, ..] * b[.., j])                      int8 * int8
    after:  for k: vector j: extra[j] = extra[j] + dot(128 * b[.., j])
                   for i: vector j: acc[i, j] = acc[i, j] + dot((uint8(a[i, ..]) ^ 128) * b[.., j])      uint8 * int8
            ... C[i, j] = acc[i, j] - extra[j]
The code generator handles dot products outside of tiles, and tiles without rows that share a factor.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.dot import OTHER_SIGN, Pair, in_order
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Cast, Const, Dot, Expr, Load, const
from retune.compiler.ir.rewrite import nest, perfect_nest, rewrite, statements_of
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, block, map_exprs
from retune.compiler.ir.visit import substitute, variables
from retune.compiler.lower.passes.register_tiles import vectors_of

_TURNED = {"uint8": 128, "int8": -128}
"""The highest bit alone, in each type."""


def flip_signedness(function: LoopFunction, native: Collection[Pair], vector_bytes: int) -> LoopFunction:
    """Flip factors where `native`, the factor types of the target's instructions, have only the other sign."""
    flip = _Flip(native, vector_bytes)
    return replace(function, body=rewrite(function.body, {Allocate: flip.on_tile})) if native else function


@dataclass(frozen=True, slots=True)
class _Flip:
    """`flip_signedness` for a target."""

    native: Collection[Pair]
    vector_bytes: int

    def on_tile(self, stmt: Allocate) -> Stmt | None:
        match stmt.buffer.scope, statements_of(stmt.body):
            case "register", (begin, work, end):
                match perfect_nest(work):
                    case loops, Store(buffer, value=Binary(rhs=Dot() as dot)) as update if buffer == stmt.buffer:
                        return self._flip(stmt, begin, loops, update, dot, end)
        return None

    def _flip(
        self, stmt: Allocate, begin: Stmt, loops: Sequence[For], update: Store, dot: Dot, end: Stmt
    ) -> Stmt | None:
        """A tile that `begin` initializes, `update` accumulates and `end` stores."""
        if in_order(self.native, dot.lhs.dtype, dot.rhs.dtype) is not None:
            return None
        point_vars = variables(*update.indices)
        first = next((depth for depth, loop in enumerate(loops) if loop.var in point_vars), len(loops))
        reductions, spatial = loops[:first], loops[first:]
        chosen = self._choose(dot, spatial, stmt.buffer.dtype)
        if chosen is None:
            return None
        flipped, kept, shared = chosen
        sign = OTHER_SIGN[flipped.dtype]
        bit = Const(_TURNED[sign], sign)
        room = dict(zip(update.indices, stmt.buffer.shape, strict=True))
        shape = tuple(room.get(loop.var, loop.extent) for loop in shared)
        extra = Buffer(f"{stmt.buffer.name}.extra", shape, stmt.buffer.dtype, "register")
        extra_index = tuple(loop.var for loop in shared)
        extra_sum = Binary(BinaryOp.ADD, Load(extra, extra_index), replace(dot, lhs=bit, rhs=kept))
        # Flipping the highest bit adds 128 modulo 256, which is exact; the extra sum removes 128 times the other
        # factor.
        flipped_dot = replace(dot, lhs=Binary(BinaryOp.BIT_XOR, Cast(sign, flipped), bit), rhs=kept)
        step = block(
            nest(shared, Store(extra, extra_index, extra_sum)),
            nest(spatial, replace(update, value=substitute(update.value, {dot: flipped_dot}))),
        )
        start = nest(shared, Store(extra, extra_index, const(0, extra.dtype)))
        old = Load(stmt.buffer, update.indices)
        corrected = Binary(BinaryOp.SUB, old, Load(extra, extra_index))
        finish = map_exprs(end, lambda expr: substitute(expr, {old: corrected}))
        return replace(stmt, body=Allocate(extra, block(begin, start, nest(reductions, step), finish)))

    def _choose(self, dot: Dot, spatial: Sequence[For], dtype: str) -> tuple[Expr, Expr, tuple[For, ...]] | None:
        """The factor to flip, the other factor, and the loops of the tile that the other moves with, including the
        lanes: the choice with the fewest vectors, at most half of the tile's.
        """
        best = None
        lanes = {loop for loop in spatial if loop.kind is LoopKind.VECTOR}
        # More than half as many extra products would cost what the wider instruction saves.
        least = self._vectors(spatial, dtype) // 2
        for flipped, kept in ((dot.lhs, dot.rhs), (dot.rhs, dot.lhs)):
            used = variables(kept)
            shared = tuple(loop for loop in spatial if loop.var in used)
            sign = OTHER_SIGN.get(flipped.dtype, flipped.dtype)
            if in_order(self.native, sign, kept.dtype) is None or not lanes <= set(shared):
                continue
            if self._vectors(shared, dtype) <= least:
                least = self._vectors(shared, dtype)
                best = (flipped, kept, shared)
        return best

    def _vectors(self, loops: Sequence[For], dtype: str) -> int:
        return vectors_of(loops, max(1, self.vector_bytes // item_bytes(dtype)))
