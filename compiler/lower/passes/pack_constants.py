"""Pack packable constant inputs in the order of the loops that read them.

An index of a weight is a sum of loop variables with their strides: `co = co.0 × 32 + co.3`. Packed with one dimension
for each of these loops, in loop order, the weight is read from one end to the other, which suits the prefetcher and the
TLB. Where the last iterations of a loop are past the weight's end, as in its last strip, the weight is padded.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from retune.compiler.core.packing import Packing, most_padded
from retune.compiler.ir.affine import IndexForm, affine
from retune.compiler.ir.expr import INDEX, Buffer, Dot, Expr, Load, const
from retune.compiler.ir.rewrite import walk_in_scope
from retune.compiler.ir.stmt import LoopFunction, Stmt, exprs_of, map_exprs
from retune.compiler.ir.visit import of_type, parts, replace_nodes


def pack_constants(function: LoopFunction, pads: bool = True) -> LoopFunction:
    """Pack layout-free inputs that are read once through loops in mixed radix; pad them only if `pads`."""
    for param in function.params:
        if param.name in function.layout_free:
            function = _pack(function, param, pads)
    return function


def _pack(function: LoopFunction, param: Buffer, pads: bool) -> LoopFunction:
    reads = list(_reads(function.body, param))
    # One order cannot suit two ways of reading.
    if len({load for load, _ in reads}) != 1:
        return function
    load, extents = reads[0]
    order_of: dict[Expr, int] = {var: position for position, var in enumerate(extents)}
    dims: list[tuple[Expr | None, int]] = []
    padded: list[int] = []
    for extent, index in zip(param.shape, load.indices, strict=True):
        loops = _loops_of(affine(index), extent, extents, pads)
        if loops is None:
            return function
        dims.extend(loops)
        padded.append(math.prod(count for _, count in loops))
    if math.prod(padded) > most_padded(param.size):
        return function
    # Dimensions of one element go first, where they change nothing.
    order = sorted(range(len(dims)), key=lambda number: -1 if (var := dims[number][0]) is None else order_of[var])
    position: Expr = const(0, INDEX)
    for number in order:
        var, extent = dims[number]
        position = position * extent + (const(0, INDEX) if var is None else var)
    packing = Packing(
        tuple(extent for _, extent in dims), tuple(order), () if tuple(padded) == param.shape else param.shape
    )
    packed = Buffer(param.name, (packing.size,), param.dtype, param.scope)
    read = Load(packed, (position,))
    body = map_exprs(function.body, lambda expr: replace_nodes(expr, Load, lambda node: read if node == load else None))
    return replace(
        function,
        body=body,
        params=tuple(packed if original == param else original for original in function.params),
        packings=(*function.packings, (param.name, packing)),
    )


def _reads(body: Stmt, param: Buffer) -> Iterator[tuple[Load, dict[Expr, int]]]:
    """Every load of `param` with its loops and their extents, outermost first, steps of a dot product last."""
    for stmt, ranges in walk_in_scope(body, {}):
        nodes = [node for expr in exprs_of(stmt) for node in parts(expr)]
        extents: dict[Expr, int] = {var: high + 1 for var, (_, high) in ranges.items()}
        extents.update((dot.var, dot.width) for dot in of_type(Dot, nodes))
        yield from ((load, extents) for load in of_type(Load, nodes) if load.buffer == param)


def _loops_of(
    index: IndexForm, size: int, extents: Mapping[Expr, int], pads: bool
) -> list[tuple[Expr | None, int]] | None:
    """The loops whose mixed-radix number `index` is, or None. If it `pads`, the outermost may run past `size`."""
    if index.const:
        return None
    if not index.terms:
        return [(None, 1)] if size == 1 else None
    dims: list[tuple[Expr | None, int]] = []
    stride = 0
    # Mixed radix: every stride is the next inner one times its extent. A gap or an overlap is no permutation.
    for atom, coefficient in sorted(index.terms.items(), key=lambda term: -term[1]):
        extent = extents.get(atom)
        if extent is None or coefficient <= 0:
            return None
        span = coefficient * extent
        fits = span == stride if dims else span == size or (pads and span - coefficient < size < span)
        if not fits:
            return None
        dims.append((atom, extent))
        stride = coefficient
    return dims if stride == 1 else None
