"""Keep small spatial tiles of reductions in registers while the innermost reduction loops run.

A tile is loaded (or initialized) before them and stored after. 16-bit floats are accumulated in float32 and rounded
when they are stored.

    before: C[..] = 0 over i3 j3;  for k1: for i3: for j3: C[..] = C[..] + a * b
    after:  acc = 0 over i3 j3;    for k1: for i3: for j3: acc[..] = acc[..] + a * b;    C[..] = acc[..] over i3 j3
The spatial loops of the tile are unrolled, so every index into the accumulators is a literal and the compiler keeps
them in registers. A reduction of several values, which writes through temporaries, has an accumulator for each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.compiler.core.dtype import item_bytes, sum_type
from retune.compiler.ir.expr import Binary, Buffer, Const, Expr, Load, binary, cast
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import RulesInScope, allocate, nest, perfect_nest, redirect, rewrite_down, statements_of
from retune.compiler.ir.stmt import Allocate, Block, For, LoopFunction, LoopKind, Stmt, Store, block, is_temporary
from retune.compiler.ir.visit import find, of_type, variables

MAX_TILE_VECTORS = 64
"""Tiles of more vectors stay in memory: twice the number of registers, so that a slight overflow is only spilled."""


def vectors_of(loops: Iterable[For], lanes: int) -> int:
    """Vectors of `lanes` that the iterations of the loops compute."""
    return prod(-(-loop.extent // lanes) if loop.kind is LoopKind.VECTOR else loop.extent for loop in loops)


def form_register_tiles(function: LoopFunction, vector_bytes: int) -> LoopFunction:
    """Keep tiles of reductions in registers of `vector_bytes`."""
    rewriter = _Rewriter(dict(function.unroll_limits), vector_bytes)
    return replace(function, body=rewrite_down(function.body, rewriter.rules))


@dataclass(frozen=True, slots=True)
class _Tile:
    """`outer`, then reductions `reduce`, then the tile's loops `spatial`, then the `update` of one element, or of one
    element of several buffers; `stores` are its writes.
    """

    outer: tuple[For, ...]
    reduce: tuple[For, ...]
    spatial: tuple[For, ...]
    update: Stmt
    stores: tuple[Store, ...]


class _Rewriter:
    def __init__(self, limits: dict[str, int], vector_bytes: int) -> None:
        self.limits = limits
        self.vector_bytes = vector_bytes
        self.count = 0
        self.rules: RulesInScope = {For: self.on_loop, Block: self.on_block}

    def on_loop(self, loop: For, _: Ranges) -> Stmt | None:
        tile = self.match(loop)
        return None if tile is None else nest(tile.outer, self.tile_reduction(tile, None))

    def on_block(self, statements: Block, _: Ranges) -> Stmt:
        done: list[Stmt] = []
        for statement in statements.statements:
            tile = self.match(statement)
            start = _initial_values(done, tile) if tile is not None and not tile.outer else None
            if tile is None or start is None:
                done.append(rewrite_down(statement, self.rules))
                continue
            # These values initialize the accumulators; nothing else reads them in memory.
            del done[-_initial_statements(tile) :]
            done.append(self.tile_reduction(tile, start))
        return block(*done)

    def match(self, stmt: Stmt) -> _Tile | None:
        """The parts of a perfect nest that ends in an update over a small enough tile."""
        chain, leaf = perfect_nest(stmt)
        stores = _updates(leaf) if chain else ()
        if not stores:
            return None
        used = variables(*stores[0].indices)
        first_spatial = len(chain)
        # Scanned from the innermost loop outwards: the tile's loops, then the reduction loops around them.
        while first_spatial and chain[first_spatial - 1].var in used:
            first_spatial -= 1
        first_reduce = first_spatial
        while first_reduce and chain[first_reduce - 1].var not in used:
            first_reduce -= 1
        if first_reduce == first_spatial:
            return None
        spatial = chain[first_spatial:]
        if self.vectors(spatial, stores) > MAX_TILE_VECTORS:
            return None
        return _Tile(chain[:first_reduce], chain[first_reduce:first_spatial], spatial, leaf, stores)

    def vectors(self, spatial: Sequence[For], stores: Sequence[Store]) -> int:
        return len(stores) * vectors_of(spatial, self.lanes(stores))

    def whole_vectors(self, extent: int, stores: Sequence[Store]) -> int:
        """Room for a row of accumulators whose last vector may be partial: up to the next power of two."""
        remainder = extent % self.lanes(stores)
        # A remainder that is a power of two is one shorter vector; any other is rounded up to such a
        # vector, so that it needs no second.
        return extent if remainder.bit_count() < 2 else extent - remainder + (1 << remainder.bit_length())

    def lanes(self, stores: Sequence[Store]) -> int:
        """Lanes of a vector of the widest accumulator type."""
        return max(1, self.vector_bytes // max(item_bytes(sum_type(store.buffer.dtype)) for store in stores))

    def tile_reduction(self, tile: _Tile, start: Sequence[Expr] | None) -> Stmt:
        """The reduction with its accumulators; `start` are their first values, None to load them."""
        shape = tuple(loop.extent for loop in tile.spatial)
        if shape and tile.spatial[-1].kind is LoopKind.VECTOR:
            # A masked vector at the end of a row needs room for all of its lanes.
            shape = (*shape[:-1], self.whole_vectors(shape[-1], tile.stores))
        accs = [
            Buffer(f"{store.buffer.name}.acc{self.count}", shape, _accumulator_type(store, tile), "register")
            for store in tile.stores
        ]
        self.count += 1
        point = tuple(loop.var for loop in tile.spatial)
        accumulators: dict[Expr, Load] = {
            Load(store.buffer, store.indices): Load(acc, point) for store, acc in zip(tile.stores, accs, strict=True)
        }
        unrolled = tuple(
            loop if loop.kind is LoopKind.VECTOR else replace(loop, kind=LoopKind.UNROLL) for loop in tile.spatial
        )
        first = tuple(accumulators) if start is None else start
        pairs = zip(accs, first, strict=True)
        begin = nest(unrolled, block(*(Store(acc, point, cast(acc.dtype, value)) for acc, value in pairs)))
        step = nest(unrolled, _move(tile.update, accumulators))
        results = zip(tile.stores, accumulators.values(), strict=True)
        end = nest(unrolled, block(*(replace(store, value=cast(store.buffer.dtype, acc)) for store, acc in results)))
        work = self.vectors(tile.spatial, tile.stores)
        reduce = self.unroll(tile.reduce, work, tile.stores[0].buffer.name)
        return allocate(accs, block(begin, nest(reduce, step), end))

    def unroll(self, loops: Sequence[For], work: int, name: str) -> tuple[For, ...]:
        """Reduction loops, unrolled from the innermost outwards while the straight-line work stays within the limit."""
        limit = self.limits.get(name, 0)
        result: list[For] = []
        for loop in reversed(loops):
            work *= loop.extent
            # `work` counts straight-line statements: an outer loop stays rolled once the product exceeds the limit.
            result.append(replace(loop, kind=LoopKind.UNROLL) if work <= limit else loop)
        return tuple(reversed(result))


def _updates(leaf: Stmt) -> tuple[Store, ...]:
    """The writes of a statement that joins values to one element of each of its buffers; none for other statements.

    It may use temporaries, but neither read nor write other elements of these buffers. Without temporaries it is one
    store of its element, joined with a value that does not depend on it.
    """
    match leaf:
        case Store():
            return (leaf,) if _is_update(leaf) else ()
        case Allocate(buffer, body) if is_temporary(buffer):
            return _updates_of_several(body)
        case Block():
            return _updates_of_several(leaf)
    return ()


def _updates_of_several(leaf: Stmt) -> tuple[Store, ...]:
    match leaf:
        case Allocate(buffer, body) if is_temporary(buffer):
            return _updates_of_several(body)
    statements = statements_of(leaf)
    writes = list(of_type(Store, statements))
    stores = tuple(store for store in writes if not is_temporary(store.buffer))
    buffers = {store.buffer for store in stores}
    if len(writes) < len(statements) or not stores or len(buffers) < len(stores):
        return ()
    reads = {load for load in find(Load, *(store.value for store in writes)) if load.buffer in buffers}
    reads_only_targets = reads == {Load(store.buffer, stores[0].indices) for store in stores}
    return stores if reads_only_targets and all(store.indices == stores[0].indices for store in stores) else ()


def _is_update(store: Store) -> bool:
    match store.value:
        case Binary(lhs=old, rhs=new) if old == Load(store.buffer, store.indices):
            return not any(load.buffer == store.buffer for load in find(Load, new))
    return False


def _accumulator_type(store: Store, tile: _Tile) -> str:
    """The type of the accumulators: wider than the elements if they are only joined with values."""
    return sum_type(store.buffer.dtype) if tile.update is store else store.buffer.dtype


def _move(update: Stmt, accumulators: Mapping[Expr, Load]) -> Stmt:
    """The update of accumulators instead of elements."""
    match update:
        case Store(buffer, indices, Binary(op, rhs=new)):
            acc = accumulators[Load(buffer, indices)]
            return Store(acc.buffer, acc.indices, binary(op, acc, cast(acc.dtype, new)))

    def rule(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]] | None:
        acc = accumulators.get(Load(buffer, indices))
        return None if acc is None else (acc.buffer, acc.indices)

    return redirect(update, rule)


def _initial_statements(tile: _Tile) -> int:
    """The number of statements that initialize a tile: one nest of loops, or without loops a statement a buffer."""
    return 1 if tile.spatial else len(tile.stores)


def _initial_values(before: Sequence[Stmt], tile: _Tile) -> tuple[Expr, ...] | None:
    """The literals that the last statements write to exactly the tile's elements, if they do nothing else."""
    loops, leaf = perfect_nest(block(*before[-_initial_statements(tile) :]))
    if [(loop.var, loop.extent) for loop in loops] != [(loop.var, loop.extent) for loop in tile.spatial]:
        return None
    initial = {(store.buffer, store.indices): store.value for store in of_type(Store, statements_of(leaf))}
    values = tuple(of_type(Const, (initial.get((store.buffer, store.indices)) for store in tile.stores)))
    return values if len(values) == len(statements_of(leaf)) == len(tile.stores) else None
