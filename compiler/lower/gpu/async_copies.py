"""Make the copies into shared memory of pipelined loops asynchronous.

A vector store becomes one copy if its elements are contiguous and aligned to their total size, else several shorter
copies; a store that cannot be copied in units of 4 bytes is unchanged. After the copies of an iteration the thread
waits for them. Warpgroup instructions need no fence if asynchronous copies write all their factors.

    before: for k: (vector v in 8: s[t * 8 + v] = select(k < 9, x[k, t * 8 + v], 0); …)
    after:  for k: (copy s[t * 8] = x[k, t * 8] by 8 where k < 9; commit copies; wait for copies but 0; …)
"""

from dataclasses import replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import BinaryOp, Buffer, Const, Expr, Load, Select, Var, binary, const
from retune.compiler.ir.interval import Ranges, as_index, conjuncts, decide_condition
from retune.compiler.ir.rewrite import RulesInScope, allocate, has_stmt, peel_allocations, rewrite_down, statements_of
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store, block, ranges_inside
from retune.compiler.ir.tensor_core import COPY_BYTES, AsyncCopy, CommitGroup, ProxyFence, WaitGroup
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.lanes import first_of, stride, uniform


def copy_asynchronously(function: LoopFunction) -> LoopFunction:
    """Turn copies from global into shared memory inside pipelined loops into asynchronous copies."""
    loops = frozenset(name for name, _ in function.pipelines)

    def on_loop(loop: For, ranges: Ranges) -> Stmt | None:
        if loop.var.name not in loops:
            return None
        copied = rewrite_down(loop.body, _COPIES, ranges_inside(loop, ranges))
        return replace(loop, body=_wait_for_copies(copied))

    return replace(function, body=rewrite_down(function.body, {For: on_loop})) if loops else function


def _wait_for_copies(body: Stmt) -> Stmt:
    """The body of a loop with the allocations of its shared buffers outermost, and a wait after its last copy."""
    buffers, parts = _split_allocations(body)
    copying = [has_stmt(AsyncCopy, part) for part in parts]
    if not any(copying):
        return body
    last = len(parts) - copying[::-1].index(True)
    copies, others = parts[:last], parts[last:]
    if not any(has_stmt(Store, part) for part in parts):
        # Warpgroups see asynchronous copies that were waited for, as NVIDIA's own kernels assume (CUTLASS); a fence
        # would also wait for the copies of later iterations.
        others = [part for part in others if not isinstance(part, ProxyFence)]
    return allocate(buffers, block(*copies, CommitGroup(), WaitGroup(0), *others))


def _split_allocations(stmt: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """The shared buffers of a loop's body, and its statements without their allocations."""
    buffers, inner = peel_allocations(stmt, "shared")
    parts = statements_of(inner)
    if not buffers and len(parts) == 1:
        return [], [stmt]
    flattened = [_split_allocations(part) for part in parts]
    return [*buffers, *(buffer for buffers, _ in flattened for buffer in buffers)], [
        part for _, parts in flattened for part in parts
    ]


def _copy_vector(loop: For, ranges: Ranges) -> Stmt | None:
    match loop:
        case For(var=lane, kind=LoopKind.VECTOR, body=Store() as store):
            return _copy(store, ranges, lane, loop.extent) or _in_pieces(loop, store, ranges) or loop
        case For(kind=LoopKind.VECTOR):
            body = rewrite_down(loop.body, _COPIES, ranges_inside(loop, ranges))
            # Each iteration issues a copy of its own: the loop can no longer be one vector instruction.
            return loop if body is loop.body else replace(loop, kind=LoopKind.UNROLL, body=body)
    return None


_COPIES: RulesInScope = {Store: lambda store, ranges: _copy(store, ranges, Var("lane"), 1), For: _copy_vector}


def _in_pieces(loop: For, store: Store, ranges: Ranges) -> Stmt | None:
    """A vector loop as copies of fewer lanes, of the longest length that can be copied."""
    # Halved until alignment allows it: cp.async takes 4, 8 or 16 bytes.
    width = loop.extent // 2
    while width and loop.extent % width == 0:
        piece, lane = Var(f"{loop.var.name}.piece"), Var(f"{loop.var.name}.lane")
        mapping: dict[Expr, Expr] = {loop.var: piece * width + lane}
        value, indices = substitute(store.value, mapping), tuple(substitute(index, mapping) for index in store.indices)
        inside = {**ranges, piece: (0, loop.extent // width - 1)}
        copy = _copy(replace(store, value=value, indices=indices), inside, lane, width)
        if copy is not None:
            return For(piece, loop.extent // width, LoopKind.UNROLL, copy)
        width //= 2
    return None


def _copy(store: Store, ranges: Ranges, lane: Var, width: int) -> AsyncCopy | None:
    """The asynchronous copy that a store in `width` lanes is equivalent to, if any."""
    conditions: list[Expr] = []
    value = store.value
    while True:
        match value:
            # cp.async fills what it does not read with zeros: only a choice between a load and 0 fits.
            case Select(condition, then, Const(value=0)):
                conditions.extend(conjuncts(condition))
                value = then
            case Load(buffer=source) if store.buffer.scope == "shared" and source.scope not in ("shared", "local"):
                break
            case _:
                return None
    fits = width * item_bytes(store.buffer.dtype) in COPY_BYTES and value.dtype == store.buffer.dtype
    sides = (store.buffer, store.indices), (value.buffer, value.indices)
    if not fits or not all(_is_contiguous(buffer, indices, lane, width) for buffer, indices in sides):
        return None
    condition_all: Expr = const(True)
    everywhere = {**ranges, lane: (0, width - 1)}
    for condition in conditions:
        # One size operand serves all lanes of a copy, so that a condition must not change among them.
        holds = decide_condition(condition, everywhere)
        if holds is None and not uniform(condition, lane, width):
            return None
        if holds is not True:
            condition_all = binary(BinaryOp.AND, condition_all, first_of(condition, lane))
    targets = tuple(first_of(index, lane) for index in store.indices)
    sources = tuple(first_of(index, lane) for index in value.indices)
    return AsyncCopy(store.buffer, targets, value.buffer, sources, width, condition_all)


def _is_contiguous(buffer: Buffer, indices: tuple[Expr, ...], lane: Var, width: int) -> bool:
    """Whether the lanes access contiguous elements, the first at a multiple of their number."""
    if width == 1:
        return True
    position = as_index(flat_index(buffer.shape, indices))
    return stride(position, lane, width) == 1 and divisor(first_of(position, lane)) % width == 0
