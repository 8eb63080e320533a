"""In: a kernel with a pipelined loop. Out: the same with what it fetches into shared memory copied asynchronously.

Always: only what lies side by side and starts at a multiple of its length is copied at once; what does not is copied in
shorter pieces, and what is no copy of whole words stays as it is. After the copies of a turn the thread waits for them.

    before: for k: (vector v in 8: s[t * 8 + v] = select(k < 9, x[k, t * 8 + v], 0); …)
    after:  for k: (copy s[t * 8] = x[k, t * 8] by 8 where k < 9; commit copies; wait for copies but 0; …)
"""

from dataclasses import dataclass, replace

from retune.compiler.dtype import item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import BinaryOp, Buffer, Const, Expr, Load, Select, Var, binary, const
from retune.compiler.ir.interval import Ranges, as_index, conjuncts, decided
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.stmt import (
    Allocate,
    Block,
    For,
    LoopFunction,
    LoopKind,
    Stmt,
    Store,
    block,
    map_inner,
    ranges_inside,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import COPY_BYTES, AsyncCopy, CommitGroup, WaitGroup
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.lanes import first_of, stride, uniform


@dataclass(frozen=True, slots=True)
class AsyncCopies:
    """Turns copies from global into shared memory inside pipelined loops into asynchronous ones."""

    name: str = "async-copies"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with asynchronous copies."""
        loops = frozenset(name for name, _ in function.pipelines)
        return replace(function, body=_visited(function.body, loops, {})) if loops else function


def _visited(stmt: Stmt, loops: frozenset[str], ranges: Ranges) -> Stmt:
    inside = ranges_inside(stmt, ranges)
    if isinstance(stmt, For) and stmt.var.name in loops:
        return replace(stmt, body=_waited(_copied(stmt.body, inside)))
    return map_inner(stmt, lambda inner: _visited(inner, loops, inside))


def _waited(body: Stmt) -> Stmt:
    """The body of a loop, with the shared buffers in it first, in which the thread waits after the last statement that
    copies.
    """
    buffers, parts = _flat(body)
    copying = [any(isinstance(inner, AsyncCopy) for inner in walk_stmt(part)) for part in parts]
    if not any(copying):
        return body
    last = len(parts) - copying[::-1].index(True)
    stmt = block(*parts[:last], CommitGroup(), WaitGroup(0), *parts[last:])
    for buffer in reversed(buffers):
        stmt = Allocate(buffer, stmt)
    return stmt


def _flat(stmt: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """The shared buffers of a loop's body, and its statements without their allocations."""
    if isinstance(stmt, Allocate) and stmt.buffer.scope == "shared":
        buffers, parts = _flat(stmt.body)
        return [stmt.buffer, *buffers], parts
    if not isinstance(stmt, Block):
        return [], [stmt]
    found = [_flat(inner) for inner in stmt.statements]
    return [buffer for buffers, _ in found for buffer in buffers], [part for _, parts in found for part in parts]


def _copied(stmt: Stmt, ranges: Ranges) -> Stmt:
    match stmt:
        case For(kind=LoopKind.VECTOR) if isinstance(stmt.body, Store):
            return _copy(stmt.body, ranges, stmt.var, stmt.extent) or _in_pieces(stmt, stmt.body, ranges) or stmt
        case Store():
            return _copy(stmt, ranges, Var("lane"), 1) or stmt
    inside = ranges_inside(stmt, ranges)
    made = map_inner(stmt, lambda inner: _copied(inner, inside))
    if isinstance(made, For) and made.kind is LoopKind.VECTOR and made is not stmt:
        return replace(made, kind=LoopKind.UNROLL)  # of copies, which are no lanes
    return made


def _in_pieces(loop: For, store: Store, ranges: Ranges) -> Stmt | None:
    """A vector loop as copies of fewer lanes, the most that can be copied at once."""
    width = loop.extent // 2
    while width and loop.extent % width == 0:
        piece, lane = Var(f"{loop.var.name}.piece"), Var(f"{loop.var.name}.lane")
        known: dict[Expr, Expr] = {loop.var: piece * width + lane}
        value, indices = substitute(store.value, known), tuple(substitute(each, known) for each in store.indices)
        inside = {**ranges, piece: (0, loop.extent // width - 1)}
        made = _copy(replace(store, value=value, indices=indices), inside, lane, width)
        if made is not None:
            return For(piece, loop.extent // width, LoopKind.UNROLL, made)
        width //= 2
    return None


def _copy(store: Store, ranges: Ranges, lane: Var, width: int) -> AsyncCopy | None:
    """The asynchronous copy that a store in `width` lanes is, if it is one."""
    conditions: list[Expr] = []
    value = store.value
    while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
        conditions.extend(conjuncts(value.condition))
        value = value.then
    if store.buffer.scope != "shared" or not isinstance(value, Load) or value.buffer.scope in ("shared", "local"):
        return None
    fits = width * item_bytes(store.buffer.dtype) in COPY_BYTES and value.dtype == store.buffer.dtype
    sides = (store.buffer, store.indices), (value.buffer, value.indices)
    if not fits or not all(_side_by_side(buffer, indices, lane, width) for buffer, indices in sides):
        return None
    wanted: Expr = const(True)
    everywhere = {**ranges, lane: (0, width - 1)}
    for condition in conditions:
        holds = decided(condition, everywhere)
        if holds is None and not uniform(condition, lane, width):
            return None
        if holds is not True:
            wanted = binary(BinaryOp.AND, wanted, first_of(condition, lane))
    places = tuple(first_of(index, lane) for index in store.indices)
    sources = tuple(first_of(index, lane) for index in value.indices)
    return AsyncCopy(store.buffer, places, value.buffer, sources, width, wanted)


def _side_by_side(buffer: Buffer, indices: tuple[Expr, ...], lane: Var, width: int) -> bool:
    """Whether the lanes access neighbours, from a multiple of their number on."""
    if width == 1:
        return True
    position = as_index(flat_index(buffer.shape, indices))
    return stride(position, lane, width) == 1 and divisor(first_of(position, lane)) % width == 0
