"""Convert narrow factors of register tiles by vectors: the factor that all lanes share, for several steps.

    before: for k in 64: for i: vector j: acc[i, j] = acc[i, j] + float32(a[i, k]) * b[k, j]
    after:  for k.piece in 4: local wide: float32[.., 16]
              for i: vector l in 16: wide[i, l] = float32(a[i, 16 k.piece + l])
              for k.step in 16: for i: vector j: acc[i, j] = acc[i, j] + wide[i, k.step] * b[16 k.piece + k.step, j]
16-bit floats become float32, bytes of dot products 16-bit numbers; a step of a dot product has several elements.
Without the pass each step would convert one number per row and broadcast it to all lanes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import HALVES
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.dot import BYTES, WIDENED
from retune.compiler.ir.expr import INDEX, Buffer, Cast, Dot, Expr, Load, Var, const
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import allocate, nest, perfect_nest, rewrite_down
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.ir.visit import find, substitute, uses, variables

_STEPS = 16
"""Steps whose factors are converted together: a vector of AVX-512, or two of AVX2."""
_NARROW = {"float32": HALVES, WIDENED: BYTES}
"""The types that are converted, by that which they become."""


def widen_factors(function: LoopFunction) -> LoopFunction:
    """Convert the factors that the lanes of register tiles share in vectors."""
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
        dot = next(find(Dot, leaf.value), None)
        factors = {node for node in find(Cast, leaf.value) if _is_shared(node, loop.var, lanes[0], dot)}
        return self._in_pieces(loop, tile, leaf, factors, dot) if factors else None

    def _in_pieces(
        self, loop: For, tile: Sequence[For], leaf: Store, factors: Collection[Cast], dot: Dot | None
    ) -> Stmt:
        pieces, remainder = divmod(loop.extent, _STEPS)
        parts: list[Stmt] = []
        if pieces:
            piece = Var(f"{loop.var.name}.piece")
            first = piece * _STEPS if pieces > 1 else const(0, INDEX)
            inside = self._piece(loop, tile, leaf, factors, dot, first, _STEPS)
            parts.append(For(piece, pieces, loop.kind, inside) if pieces > 1 else inside)
        if remainder:
            first = const(pieces * _STEPS, INDEX)
            parts.append(self._piece(loop, tile, leaf, factors, dot, first, remainder))
        return block(*parts)

    def _piece(
        self,
        loop: For,
        tile: Sequence[For],
        leaf: Store,
        factors: Collection[Cast],
        dot: Dot | None,
        first: Expr,
        size: int,
    ) -> Stmt:
        """The steps of a reduction from `first` on, after the conversion of what they share."""
        step, lane = Var(f"{loop.var.name}.step"), Var(f"{loop.var.name}.lane")
        copies: list[Stmt] = []
        buffers: list[Buffer] = []
        held: dict[Expr, Expr] = {}
        # Elements of a step of a dot product are neighbors, and so are the steps.
        elements = size if dot is None else size * dot.width
        element = step if dot is None else step * dot.width + dot.var
        neighbor: dict[Expr, Expr] = {loop.var: lane + first} if dot is None else {loop.var: first, dot.var: lane}
        for factor in sorted(factors, key=str):
            rows = [inner for inner in tile if uses(factor, inner.var)]
            buffer = Buffer(f"wide{self.count}", (*(row.extent for row in rows), elements), factor.dtype, "local")
            self.count += 1
            point = tuple(row.var for row in rows)
            copy = Store(buffer, (*point, lane), substitute(factor, neighbor))
            copies.append(nest(rows, For(lane, elements, LoopKind.VECTOR, copy)))
            buffers.append(buffer)
            held[factor] = Load(buffer, (*point, element))
        value = substitute(substitute(leaf.value, held), {loop.var: step + first})
        body = block(*copies, For(step, size, loop.kind, nest(tile, replace(leaf, value=value))))
        return allocate(buffers, body)


def _is_shared(node: Cast, step: Var, lane: Var, dot: Dot | None) -> bool:
    """Whether a conversion is the same for all lanes and reads neighbors in successive steps."""
    if node.value.dtype not in _NARROW.get(node.dtype, ()) or uses(node, lane) or not uses(node, step):
        return False
    strides = {step: 1} if dot is None else {step: dot.width, dot.var: 1}
    forms = [flat_index(load.buffer.shape, load.indices).terms for load in find(Load, node) if uses(load, step)]
    return bool(forms) and all(terms.get(var) == stride for terms in forms for var, stride in strides.items())
