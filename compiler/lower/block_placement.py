"""Puts the loops of a block in their place: loops over all blocks of a region, and absolute points in whole arrays.

before: parallel j.0 in 2: for i in 8: … x[i, k] … y[i, j.0 * 16 + j.1] …
after:  parallel t in 2 * (n // 8):
          let i.0 = t % (n // 8) * 8;  let j.0 = t // (n // 8)
          for i in 8: … x[i.0 + i, k] … y[i.0 + i, j.0 * 16 + j.1] …
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from retune.compiler.ir.expr import Buffer, Expr, Var, dim_expr
from retune.compiler.ir.rewrite import allocate, redirect, rewrite, statements_of
from retune.compiler.ir.stmt import For, If, Let, LoopFunction, LoopKind, Stmt, block
from retune.compiler.ir.tensor_core import Exprs
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import MARK, MOST, BlockSize, origin_of

_NO_LIMITS: Mapping[BlockSize, tuple[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Blocks of one size along a class: `count` of them, from point `start` on."""

    known: AxisClass
    size: BlockSize
    count: int
    start: int


def sizes_of(largest: int, ratio: int) -> Iterator[BlockSize]:
    """The sizes of blocks along a class: full blocks, and for what is left smaller blocks, each `ratio` times as small
    or a little more, down to single points.
    """
    yield BlockSize(largest)
    while largest > 1:
        # A power of two, as vectors and the parts of vectors are.
        yield BlockSize(largest := 1 << ((largest // ratio or 1).bit_length() - 1))


def regions_of(
    known: AxisClass, sizes: Iterable[BlockSize], most: Mapping[BlockSize, tuple[int, int]] = _NO_LIMITS
) -> list[Region]:
    """Regions that cover a class, each point once, by blocks of falling `sizes`. There are blocks of a size in `most`
    only while an extent is at most a number. Clamped blocks cover all points that are left.
    """
    assert known.extent is not None, "a parallel class has one extent"
    regions = []
    remaining = known.extent
    for size in sizes:
        extent, number = most.get(size, (0, 0))
        # Larger extents make the divisor larger than any extent.
        divisor = size.points + extent // (number + 1) * MOST
        count = (remaining + (size.points - 1 if size.is_clamped else 0)) // divisor
        regions.append(Region(known, size, count, known.extent - remaining))
        # Each remainder holds the one before once: a text that doubled for each of 14 sizes would have no end.
        remaining = remaining * (1 - fits(extent, number)) if size.is_clamped else remaining % divisor
    return regions


def fits(extent: int, most: int) -> int:
    """1 where an extent is at most `most`, else 0."""
    return 1 // (extent // (most + 1) + 1)


def with_shapes(function: LoopFunction, shapes: Mapping[str, tuple[int, ...]]) -> LoopFunction:
    """The kernel with other shapes of parameters, by name; packed parameters keep theirs."""
    packed = dict(function.packings)
    new = {param: replace(param, shape=shapes[param.name]) for param in function.params if param.name not in packed}
    body = redirect(function.body, lambda buffer, at: (new[buffer], at) if buffer in new else None)
    return replace(function, params=tuple(new.get(param, param) for param in function.params), body=body)


def place_block(
    part: LoopFunction, program: SymbolicProgram, sizes: Mapping[AxisClass, BlockSize], *, has_strips: bool
) -> tuple[For | None, Stmt]:
    """The body of a block of `sizes` with absolute points in whole arrays, and if it `has_strips` the parallel loop
    around it.
    """
    tops = statements_of(part.body)
    alone = tops[0] if len(tops) == 1 and has_strips else None
    strips = alone if isinstance(alone, For) and alone.kind is LoopKind.PARALLEL else None
    body = rewrite(part.body, {For: _serial}) if strips is None else strips.body
    local = {buffer: replace(buffer, scope="local") for buffer in part.workspace}
    views = _views(part, program)

    def absolute(buffer: Buffer, at: Exprs) -> tuple[Buffer, Exprs] | None:
        if buffer in local:
            return local[buffer], at
        if buffer not in views:
            return None
        return buffer, tuple(
            index if known is None else sizes[known].point(known, index)
            for known, index in zip(views[buffer], at, strict=True)
        )

    return strips, allocate(list(local.values()), redirect(body, absolute))


def _serial(loop: For) -> Stmt | None:
    return replace(loop, kind=LoopKind.SERIAL) if loop.kind is LoopKind.PARALLEL else None


def _views(part: LoopFunction, program: SymbolicProgram) -> dict[Buffer, tuple[AxisClass | None, ...]]:
    """The classes at whose points parameters are accessed, see `SymbolicProgram.views`; not for packed parameters."""
    packed, params = dict(part.packings), {param.name: param for param in part.params}
    known = {tensor.name: program.views(tensor) for tensor in program.tensors if tensor.name not in packed}
    return {params[name]: views for name, views in known.items() if any(views)}


def in_series(region: Region, body: Stmt, number: int) -> Stmt:
    """The blocks of a region in turn."""
    iteration = Var(f"iteration{MARK}{number}")
    placed_body = Let(origin_of(region.known), _origin(region, iteration), MOST, body)
    return For(iteration, region.count, LoopKind.SERIAL, placed_body)


def in_parallel(
    around: Sequence[Region], blocks: Sequence[tuple[Region, Stmt]], strips: For | None, number: int
) -> For:
    """All blocks in one parallel loop: for each block of the regions `around`, and each iteration of `strips`, the
    `blocks` of all regions of one class.
    """
    counts = [region.count for region in around] + [sum(region.count for region, _ in blocks)]
    total = prod(counts)
    iteration, index = Var(f"block{MARK}{number}"), Var(f"index{MARK}{number}")
    bindings: list[tuple[Var, Expr, int]] = []
    digit: Expr = iteration
    if strips is not None:
        # Strips outside, so that a strip of a factor stays in the cache while it meets all rows.
        bindings.append((strips.var, iteration // dim_expr(total), strips.extent))
        digit = iteration % dim_expr(total)
    bindings.append((index, digit % dim_expr(counts[-1]) if around else digit, MOST))
    for position in range(len(around) - 1, -1, -1):
        digit = digit // dim_expr(counts[position + 1])
        own = digit % dim_expr(counts[position]) if position else digit
        bindings.append((origin_of(around[position].known), _origin(around[position], own), MOST))
    body = block(*_choose(index, blocks))
    for var, value, extent in reversed(bindings):
        body = Let(var, value, extent, body)
    return For(iteration, total * (1 if strips is None else strips.extent), LoopKind.PARALLEL, body)


def _choose(index: Var, blocks: Sequence[tuple[Region, Stmt]]) -> Iterator[Stmt]:
    """The block number `index` of all regions."""
    before = 0
    for region, body in blocks:
        origin = _origin(region, index - dim_expr(before))
        chosen: Stmt = Let(origin_of(region.known), origin, MOST, body)
        if region is not blocks[0][0]:
            chosen = If(dim_expr(before) <= index, chosen)
        before = before + region.count
        yield chosen if region is blocks[-1][0] else If(index < dim_expr(before), chosen)


def _origin(region: Region, number: Expr) -> Expr:
    """The first point of block `number` of a region."""
    return number * region.size.points + dim_expr(region.start)
