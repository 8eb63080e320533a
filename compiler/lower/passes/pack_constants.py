"""In: a kernel with constant inputs of free layout. Out: one that reads them in the order of its loops.

Always: each packed input says how to lay it out.

A weight is read through loop variables that are the digits of its indices: `co = co.0 × 32 + co.3`. Laid out with
these digits in loop order the
innermost loops read it from one end to the other, which is what the prefetcher and the TLB like best.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from retune.compiler.ir.affine import IndexForm, affine
from retune.compiler.ir.expr import INDEX, Buffer, Dot, Expr, Load, Var, const
from retune.compiler.ir.stmt import LEAVES, Block, For, Let, LoopFunction, Stmt, exprs_of, map_exprs
from retune.compiler.ir.visit import parts, transform
from retune.compiler.packing import Packing


@dataclass(frozen=True, slots=True)
class PackConstants:
    """Packs every layout-free input that is read in one place, through indices whose digits are loops."""

    name: str = "pack-constants"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with `packings` filled in."""
        for param in function.params:
            if param.name in function.layout_free:
                function = _packed(function, param)
        return function


def _packed(function: LoopFunction, param: Buffer) -> LoopFunction:
    reads = list(_reads(function.body, param, {}))
    if len({load for load, _ in reads}) != 1:
        return function
    load, extents = reads[0]
    order_of = {var: position for position, var in enumerate(extents)}
    digits: list[tuple[Var | None, int]] = []
    for extent, index in zip(param.shape, load.indices, strict=True):
        found = _digits(affine(index), extent, extents)
        if found is None:
            return function
        digits.extend(found)
    order = sorted(range(len(digits)), key=lambda place: -1 if (var := digits[place][0]) is None else order_of[var])
    position: Expr = const(0, INDEX)
    for place in order:
        var, extent = digits[place]
        position = position * extent + (const(0, INDEX) if var is None else var)
    packed = Buffer(param.name, (param.size,), param.dtype, param.scope)
    read = Load(packed, (position,))
    body = map_exprs(function.body, lambda expr: transform(expr, lambda node: read if node == load else None))
    packing = Packing(tuple(extent for _, extent in digits), tuple(order))
    return replace(
        function,
        body=body,
        params=tuple(packed if other == param else other for other in function.params),
        packings=(*function.packings, (param.name, packing)),
    )


def _reads(stmt: Stmt, param: Buffer, around: dict[Var, int]) -> Iterator[tuple[Load, dict[Var, int]]]:
    """Every load of `param` with the loops around it and their extents, outermost first; the few values that a dot
    product is summed over are the innermost.
    """
    for expr in exprs_of(stmt):
        nodes = list(parts(expr))
        inside = around | {node.var: node.width for node in nodes if isinstance(node, Dot)}
        for node in nodes:
            if isinstance(node, Load) and node.buffer == param:
                yield node, inside
    if isinstance(stmt, Block):
        for inner in stmt.statements:
            yield from _reads(inner, param, around)
    elif not isinstance(stmt, LEAVES):
        inside = {**around, stmt.var: stmt.extent} if isinstance(stmt, (For, Let)) else around
        yield from _reads(stmt.body, param, inside)


def _digits(index: IndexForm, size: int, extents: dict[Var, int]) -> list[tuple[Var | None, int]] | None:
    """The loops whose values are the digits of `index`, most significant first, or None when they are not."""
    if index.const:
        return None
    if not index.terms:
        return [(None, 1)] if size == 1 else None
    digits: list[tuple[Var | None, int]] = []
    stride = size
    for atom, coefficient in sorted(index.terms.items(), key=lambda term: -term[1]):
        if not isinstance(atom, Var) or atom not in extents or coefficient * extents[atom] != stride:
            return None
        digits.append((atom, extents[atom]))
        stride = coefficient
    return digits if stride == 1 else None
