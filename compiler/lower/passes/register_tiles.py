"""In: a reduction over a small spatial tile. Out: the tile held in registers while the innermost reduction loops run.

Always: loaded (or initialised) before them, stored after. Floats of two bytes are accumulated in float32 and rounded
when they are stored.

    before: C[..] = 0 over i3 j3;  for k1: for i3: for j3: C[..] = C[..] + a * b
    after:  acc = 0 over i3 j3;    for k1: for i3: for j3: acc[..] = acc[..] + a * b;    C[..] = acc[..] over i3 j3
The spatial loops of the tile are unrolled, so every index into the accumulators is a literal and the compiler keeps
them in registers. A reduction of several values, which writes through temporaries, has an accumulator for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.dtype import accumulated, item_bytes
from retune.compiler.ir.expr import Binary, Buffer, Const, Expr, Load, Var, binary, cast
from retune.compiler.ir.stmt import (
    Allocate,
    Block,
    For,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    block,
    is_temporary,
    map_exprs,
    map_inner,
    map_stmt,
)
from retune.compiler.ir.visit import substitute, walk

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

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return self.visit_block(stmt.statements)
        tile = self.match(stmt) if isinstance(stmt, For) else None
        return map_inner(stmt, self.visit) if tile is None else _rebuilt(tile.outer, self.tiled(tile, None))

    def visit_block(self, statements: Sequence[Stmt]) -> Stmt:
        done: list[Stmt] = []
        for statement in statements:
            tile = self.match(statement) if isinstance(statement, For) else None
            start = _initial_values(done, tile) if tile is not None and not tile.outer else None
            if tile is None or start is None:
                done.append(self.visit(statement))
                continue
            del done[-_initial_statements(tile) :]
            done.append(self.tiled(tile, start))
        return block(*done)

    def match(self, loop: For) -> _Tile | None:
        """The parts of a perfect nest that ends in an update over a small enough tile."""
        chain = [loop]
        while isinstance(chain[-1].body, For):
            chain.append(chain[-1].body)
        leaf = chain[-1].body
        stores = _updates(leaf)
        if not stores:
            return None
        used = {node for index in stores[0].indices for node in walk(index) if isinstance(node, Var)}
        first_spatial = len(chain)
        while first_spatial and chain[first_spatial - 1].var in used:
            first_spatial -= 1
        first_reduce = first_spatial
        while first_reduce and chain[first_reduce - 1].var not in used:
            first_reduce -= 1
        if first_reduce == first_spatial:
            return None
        spatial = tuple(chain[first_spatial:])
        if self.vectors(spatial, stores) > MAX_TILE_VECTORS:
            return None
        return _Tile(tuple(chain[:first_reduce]), tuple(chain[first_reduce:first_spatial]), spatial, leaf, stores)

    def vectors(self, spatial: Sequence[For], stores: Sequence[Store]) -> int:
        lanes = self.lanes(stores)
        count = len(stores)
        for loop in spatial:
            count *= -(-loop.extent // lanes) if loop.kind is LoopKind.VECTOR else loop.extent
        return count

    def whole_vectors(self, extent: int, stores: Sequence[Store]) -> int:
        """Room for a row of accumulators whose last vector may be in part: up to the next power of two."""
        rest = extent % self.lanes(stores)
        return extent if rest.bit_count() < 2 else extent - rest + (1 << rest.bit_length())

    def lanes(self, stores: Sequence[Store]) -> int:
        """Lanes of a vector of the widest type that is held."""
        return max(1, self.vector_bytes // max(item_bytes(accumulated(store.buffer.dtype)) for store in stores))

    def tiled(self, tile: _Tile, start: Sequence[Expr] | None) -> Stmt:
        """The reduction with its accumulators; `start` are their first values, None to load them."""
        shape = tuple(loop.extent for loop in tile.spatial)
        if shape and tile.spatial[-1].kind is LoopKind.VECTOR:
            shape = (*shape[:-1], self.whole_vectors(shape[-1], tile.stores))
        accs = [
            Buffer(f"{store.buffer.name}.acc{self.count}", shape, _held(store, tile), "register")
            for store in tile.stores
        ]
        self.count += 1
        place = tuple(loop.var for loop in tile.spatial)
        held: dict[Expr, Load] = {
            Load(store.buffer, store.indices): Load(acc, place) for store, acc in zip(tile.stores, accs, strict=True)
        }
        unrolled = tuple(
            loop if loop.kind is LoopKind.VECTOR else replace(loop, kind=LoopKind.UNROLL) for loop in tile.spatial
        )
        first = tuple(held) if start is None else start
        pairs = zip(accs, first, strict=True)
        begin = _rebuilt(unrolled, block(*(Store(acc, place, cast(acc.dtype, value)) for acc, value in pairs)))
        step = _rebuilt(unrolled, _moved(tile.update, held))
        results = zip(tile.stores, held.values(), strict=True)
        end = _rebuilt(
            unrolled, block(*(replace(store, value=cast(store.buffer.dtype, acc)) for store, acc in results))
        )
        work = self.vectors(tile.spatial, tile.stores)
        reduce = self.unrolled(tile.reduce, work, tile.stores[0].buffer.name)
        result = block(begin, _rebuilt(reduce, step), end)
        for acc in reversed(accs):
            result = Allocate(acc, result)
        return result

    def unrolled(self, loops: Sequence[For], work: int, name: str) -> tuple[For, ...]:
        """Reduction loops, unrolled from the innermost outwards while the straight-line work stays within the limit."""
        limit = self.limits.get(name, 0)
        result: list[For] = []
        for loop in reversed(loops):
            work *= loop.extent
            result.append(replace(loop, kind=LoopKind.UNROLL) if work <= limit else loop)
        return tuple(reversed(result))


def _updates(leaf: Stmt) -> tuple[Store, ...]:
    """The writes of a statement that joins values to one element of each of its buffers; none if it is no such one.

    It may hold values in temporaries, but neither read nor write other elements of these buffers. Without temporaries
    it is one store of its element, joined with what does not depend on it.
    """
    if isinstance(leaf, Store):
        return (leaf,) if _is_update(leaf) else ()
    while isinstance(leaf, Allocate) and is_temporary(leaf.buffer):
        leaf = leaf.body
    statements = leaf.statements if isinstance(leaf, Block) else (leaf,)
    writes = [statement for statement in statements if isinstance(statement, Store)]
    stores = tuple(store for store in writes if not is_temporary(store.buffer))
    buffers = {store.buffer for store in stores}
    if len(writes) < len(statements) or not stores or len(buffers) < len(stores):
        return ()
    reads = {
        node for store in writes for node in walk(store.value) if isinstance(node, Load) and node.buffer in buffers
    }
    same = reads == {Load(store.buffer, stores[0].indices) for store in stores}
    return stores if same and all(store.indices == stores[0].indices for store in stores) else ()


def _is_update(store: Store) -> bool:
    value = store.value
    if not isinstance(value, Binary) or value.lhs != Load(store.buffer, store.indices):
        return False
    return not any(isinstance(node, Load) and node.buffer == store.buffer for node in walk(value.rhs))


def _held(store: Store, tile: _Tile) -> str:
    """The type of the accumulators: wider than the elements where they are joined with nothing but values."""
    return accumulated(store.buffer.dtype) if isinstance(tile.update, Store) else store.buffer.dtype


def _moved(update: Stmt, held: Mapping[Expr, Load]) -> Stmt:
    """The update of accumulators instead of elements."""
    if isinstance(update, Store) and isinstance(update.value, Binary):
        acc = held[Load(update.buffer, update.indices)]
        return Store(acc.buffer, acc.indices, binary(update.value.op, acc, cast(acc.dtype, update.value.rhs)))

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Store):
            return None
        acc = held.get(Load(stmt.buffer, stmt.indices))
        return None if acc is None else replace(stmt, buffer=acc.buffer, indices=acc.indices)

    return map_stmt(map_exprs(update, lambda expr: substitute(expr, held)), rule)


def _rebuilt(loops: Sequence[For], leaf: Stmt) -> Stmt:
    for loop in reversed(loops):
        leaf = replace(loop, body=leaf)
    return leaf


def _initial_statements(tile: _Tile) -> int:
    """How many statements give a tile its first values: one nest of loops, or without loops one a buffer."""
    return 1 if tile.spatial else len(tile.stores)


def _initial_values(before: Sequence[Stmt], tile: _Tile) -> tuple[Expr, ...] | None:
    """The literals that the last statements write to exactly the tile's elements, if that is all that they do."""
    inner = block(*before[-_initial_statements(tile) :])
    for loop in tile.spatial:
        if not isinstance(inner, For) or inner.var != loop.var or inner.extent != loop.extent:
            return None
        inner = inner.body
    found = inner.statements if isinstance(inner, Block) else (inner,)
    if len(found) != len(tile.stores):
        return None
    values = []
    for statement, store in zip(found, tile.stores, strict=True):
        if not isinstance(statement, Store) or not isinstance(statement.value, Const):
            return None
        if statement.buffer != store.buffer or statement.indices != store.indices:
            return None
        values.append(statement.value)
    return tuple(values)
