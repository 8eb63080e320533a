"""Convert 16-bit factors of register tiles to float32 by vectors: the factor that all lanes share, for several steps.

    before: for k in 64: for i: vector j: acc[i, j] = acc[i, j] + float32(a[i, k]) * b[k, j]
    after:  for k.piece in 4: local wide: float32[.., 16]
              for i: vector l in 16: wide[i, l] = float32(a[i, 16 k.piece + l])
              for k.step in 16: for i: vector j: acc[i, j] = acc[i, j] + wide[i, k.step] * b[16 k.piece + k.step, j]
Without the pass each step would convert one number per row and broadcast it to all lanes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import HALVES
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Buffer, Cast, Expr, Load, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import allocate, nest, perfect_nest, rewrite_down
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.ir.visit import find, substitute, uses, variables

_LANES = 16
"""Neighbors that are converted together: a vector of AVX-512, or two of AVX2."""


@dataclass(frozen=True, slots=True)
class WidenFactors:
    """Converts the factors that the lanes of register tiles share in vectors."""

    name: str = "widen-factors"

    def apply(self, function: LoopFunction) -> LoopFunction:
        return replace(function, body=rewrite_down(function.body, {For: _Factors().on_loop}))


@dataclass(slots=True)
class _Factors:
    count: int = 0

    def on_loop(self, loop: For, _: Ranges) -> Stmt | None:
        """The innermost reduction loop around a register tile, a few steps at a time."""
        tile, leaf = perfect_nest(loop.body)
        if loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLL) or not isinstance(leaf, Store):
            return None
        point = variables(*leaf.indices)
        lanes = [inner.var for inner in tile if inner.kind is LoopKind.VECTOR]
        if leaf.buffer.scope != "register" or loop.var in point or len(lanes) != 1:
            return None
        if not all(inner.var in point for inner in tile):
            return None
        factors = {node for node in find(Cast, leaf.value) if _is_shared(node, loop.var, lanes[0])}
        return self._in_pieces(loop, tile, leaf, factors) if factors else None

    def _in_pieces(self, loop: For, tile: Sequence[For], leaf: Store, factors: Collection[Cast]) -> Stmt:
        pieces, remainder = divmod(loop.extent, _LANES)
        parts: list[Stmt] = []
        if pieces:
            piece = Var(f"{loop.var.name}.piece")
            first = piece * _LANES if pieces > 1 else None
            inside = self._piece(loop, tile, leaf, factors, first, _LANES)
            parts.append(For(piece, pieces, loop.kind, inside) if pieces > 1 else inside)
        if remainder:
            parts.append(self._piece(loop, tile, leaf, factors, pieces * _LANES, remainder))
        return block(*parts)

    def _piece(
        self,
        loop: For,
        tile: Sequence[For],
        leaf: Store,
        factors: Collection[Cast],
        first: Expr | int | None,
        size: int,
    ) -> Stmt:
        """The steps of a reduction from `first` on, after the conversion of what they share."""
        step, lane = Var(f"{loop.var.name}.step"), Var(f"{loop.var.name}.lane")
        offset = 0 if first is None else first
        copies: list[Stmt] = []
        buffers: list[Buffer] = []
        held: dict[Expr, Expr] = {}
        for factor in sorted(factors, key=str):
            rows = [inner for inner in tile if uses(factor, inner.var)]
            buffer = Buffer(f"wide{self.count}", (*(row.extent for row in rows), size), "float32", "local")
            self.count += 1
            point = tuple(row.var for row in rows)
            source = substitute(factor, {loop.var: lane + offset})
            copies.append(nest(rows, For(lane, size, LoopKind.VECTOR, Store(buffer, (*point, lane), source))))
            buffers.append(buffer)
            held[factor] = Load(buffer, (*point, step))
        value = substitute(substitute(leaf.value, held), {loop.var: step + offset})
        body = block(*copies, For(step, size, loop.kind, nest(tile, replace(leaf, value=value))))
        return allocate(buffers, body)


def _is_shared(node: Cast, step: Var, lane: Var) -> bool:
    """Whether a conversion to float32 is the same for all lanes and reads neighbors in successive steps."""
    if node.dtype != "float32" or node.value.dtype not in HALVES or uses(node, lane) or not uses(node, step):
        return False
    loads = list(find(Load, node))
    return bool(loads) and all(
        flat_index(load.buffer.shape, load.indices).terms.get(step) == 1 for load in loads if uses(load, step)
    )
