"""In: a reduction over a small spatial tile. Out: the tile held in registers while the innermost reduction loops run.

Always: loaded (or initialised) before them, stored after.

    before: C[..] = 0 over i3 j3;  for k1: for i3: for j3: C[..] = C[..] + a * b
    after:  acc = 0 over i3 j3;    for k1: for i3: for j3: acc[..] = acc[..] + a * b;    C[..] = acc[..] over i3 j3
The spatial loops of the tile are unrolled, so every index into the accumulators is a literal and the compiler keeps
them in registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.ir.expr import Binary, Buffer, Const, Expr, Load, Var
from compiler.ir.stmt import Allocate, Block, For, LoopFunction, LoopKind, Stmt, Store, block
from compiler.ir.visit import walk

MAX_TILE_VECTORS = 64
"""A tile of more vectors than this stays in memory: twice the registers there are, so that a slight overflow is only
spilled.
"""


@dataclass(frozen=True, slots=True)
class RegisterTiles:
    """`vector_bytes` is the width of a vector register."""

    vector_bytes: int = 64
    name: str = "register-tiles"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with accumulators where they fit."""
        limits = dict(function.unroll_limits)
        return replace(function, body=_Rewriter(limits, self.vector_bytes).visit(function.body))


@dataclass(frozen=True, slots=True)
class _Tile:
    """`outer`, then reductions `reduce`, then the tile's loops `spatial`, then the update of one element."""

    outer: tuple[For, ...]
    reduce: tuple[For, ...]
    spatial: tuple[For, ...]
    update: Store


class _Rewriter:
    def __init__(self, limits: dict[str, int], vector_bytes: int) -> None:
        self.limits = limits
        self.vector_bytes = vector_bytes
        self.count = 0

    def visit(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Block():
                return self.visit_block(stmt.statements)
            case For():
                tile = self.match(stmt)
                if tile is None:
                    return replace(stmt, body=self.visit(stmt.body))
                return _rebuilt(tile.outer, self.tiled(tile, None))
            case Store():
                return stmt
        return replace(stmt, body=self.visit(stmt.body))

    def visit_block(self, statements: Sequence[Stmt]) -> Stmt:
        done: list[Stmt] = []
        for statement in statements:
            tile = self.match(statement) if isinstance(statement, For) else None
            if tile is not None and not tile.outer and done and (start := _initial_value(done[-1], tile)) is not None:
                done[-1] = self.tiled(tile, start)
            else:
                done.append(self.visit(statement))
        return block(*done)

    def match(self, loop: For) -> _Tile | None:
        """The parts of a perfect nest that ends in an update over a small enough tile."""
        chain = [loop]
        while isinstance(chain[-1].body, For):
            chain.append(chain[-1].body)
        leaf = chain[-1].body
        if not isinstance(leaf, Store) or not _is_update(leaf):
            return None
        used = {node for index in leaf.indices for node in walk(index) if isinstance(node, Var)}
        first_spatial = len(chain)
        while first_spatial and chain[first_spatial - 1].var in used:
            first_spatial -= 1
        first_reduce = first_spatial
        while first_reduce and chain[first_reduce - 1].var not in used:
            first_reduce -= 1
        if first_reduce == first_spatial:
            return None
        spatial = tuple(chain[first_spatial:])
        if self.vectors(spatial, leaf.buffer) > MAX_TILE_VECTORS:
            return None
        return _Tile(tuple(chain[:first_reduce]), tuple(chain[first_reduce:first_spatial]), spatial, leaf)

    def vectors(self, spatial: Sequence[For], buffer: Buffer) -> int:
        lanes = max(1, self.vector_bytes // np.dtype(buffer.dtype).itemsize)
        count = 1
        for loop in spatial:
            count *= -(-loop.extent // lanes) if loop.kind is LoopKind.VECTOR else loop.extent
        return count

    def whole_vectors(self, extent: int, buffer: Buffer) -> int:
        """Room for a row of accumulators whose last vector may be in part: up to the next power of two."""
        rest = extent % max(1, self.vector_bytes // np.dtype(buffer.dtype).itemsize)
        return extent if rest.bit_count() < 2 else extent - rest + (1 << rest.bit_length())

    def tiled(self, tile: _Tile, start: Expr | None) -> Stmt:
        """The reduction with its accumulators; `start` is their first value, None to load it."""
        target = tile.update
        shape = tuple(loop.extent for loop in tile.spatial)
        if shape and tile.spatial[-1].kind is LoopKind.VECTOR:
            shape = (*shape[:-1], self.whole_vectors(shape[-1], target.buffer))
        acc = Buffer(f"{target.buffer.name}.acc{self.count}", shape, target.buffer.dtype, "register")
        self.count += 1
        place = tuple(loop.var for loop in tile.spatial)
        unrolled = tuple(
            loop if loop.kind is LoopKind.VECTOR else replace(loop, kind=LoopKind.UNROLL) for loop in tile.spatial
        )
        here = Load(target.buffer, target.indices)
        value = target.value
        if not isinstance(value, Binary):
            return _rebuilt((*tile.reduce, *tile.spatial), target)
        begin = _rebuilt(unrolled, Store(acc, place, here if start is None else start))
        step = _rebuilt(unrolled, Store(acc, place, replace(value, lhs=Load(acc, place))))
        end = _rebuilt(unrolled, Store(target.buffer, target.indices, Load(acc, place)))
        work = self.vectors(tile.spatial, target.buffer)
        return Allocate(acc, block(begin, _rebuilt(self.unrolled(tile.reduce, work, target.buffer.name), step), end))

    def unrolled(self, loops: Sequence[For], work: int, name: str) -> tuple[For, ...]:
        """Reduction loops, unrolled from the innermost outwards while the straight-line work stays within the limit."""
        limit = self.limits.get(name, 0)
        result: list[For] = []
        for loop in reversed(loops):
            work *= loop.extent
            result.append(replace(loop, kind=LoopKind.UNROLL) if work <= limit else loop)
        return tuple(reversed(result))


def _is_update(store: Store) -> bool:
    """Whether the store joins one value to its element, which the value does not depend on."""
    value = store.value
    if not isinstance(value, Binary) or value.lhs != Load(store.buffer, store.indices):
        return False
    return not any(isinstance(node, Load) and node.buffer == store.buffer for node in walk(value.rhs))


def _rebuilt(loops: Sequence[For], leaf: Stmt) -> Stmt:
    for loop in reversed(loops):
        leaf = replace(loop, body=leaf)
    return leaf


def _initial_value(stmt: Stmt, tile: _Tile) -> Expr | None:
    """The literal that `stmt` writes to exactly the tile's elements, if that is all it does."""
    for loop in tile.spatial:
        if not isinstance(stmt, For) or stmt.var != loop.var or stmt.extent != loop.extent:
            return None
        stmt = stmt.body
    same = isinstance(stmt, Store) and stmt.buffer == tile.update.buffer and stmt.indices == tile.update.indices
    return stmt.value if same and isinstance(stmt, Store) and isinstance(stmt.value, Const) else None
