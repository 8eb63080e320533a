"""Store a row of halves that tensor cores have summed in pieces of 16 bytes.

Of eight neighbors that an instruction sums each lane of a quad has two, so that the quad would write 16 bytes together,
half of what memory moves at once. Where the lanes first hand each other what they have of four instructions, each of
them writes 16 bytes, and the quad 64.

    before: threadIdx.x t in 32: unroll f in 8: unroll e in 2: y[f * 8 + t % 4 * 2 + e] = c[f, e]
    after:  threadIdx.x t in 32: unroll g in 2: mine[8], theirs[8]: unroll f in 4: unroll e in 2: mine[f * 2 + e] =
            c[g * 4 + f, e]; theirs = pairs of a quad of mine; vector v in 8: y[(g * 4 + t % 4) * 8 + v] = theirs[v]
"""

from dataclasses import dataclass, replace
from math import gcd

from retune.compiler.dtype import item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Const, Expr, Load, Var, const
from retune.compiler.ir.rewrite import find_stmts, has_stmt, rewrite
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.stmt import Allocate, Block, For, Let, LoopFunction, LoopKind, Stmt, Store, block, map_inner
from retune.compiler.ir.tensor_core import COLUMNS, PAIR, QUAD, WARP, Mma, TransposeQuad, WarpgroupMma
from retune.compiler.ir.visit import find, substitute, uses

_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class QuadStores:
    """Exchanges halves among the lanes of quads before they are stored."""

    name: str = "quad-stores"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with longer stores; one without tensor cores stays as it is."""
        lanes = [loop for loop in find_stmts(For, function.body) if loop.kind is LoopKind.THREAD_X]
        multiplies = has_stmt(Mma, function.body) or has_stmt(WarpgroupMma, function.body)
        if not multiplies or any(loop.extent != WARP for loop in lanes):
            return function

        def inside(loop: For) -> Stmt | None:
            return replace(loop, body=_stored(loop.body, loop.var, None)) if loop.kind is LoopKind.THREAD_X else None

        return replace(function, body=rewrite(function.body, {For: inside}))


def _stored(stmt: Stmt, lane: Var, quad: Var | None) -> Stmt:
    """A statement that all lanes of a warp do, with its stores exchanged; `quad` is the lane's number in its quad."""
    match stmt:
        case Let(var=var, value=Binary(op=BinaryOp.FLOORMOD, lhs=lhs, rhs=Const(value=by))) if (lhs, by) == (
            lane,
            QUAD,
        ):
            return replace(stmt, body=_stored(stmt.body, lane, var))
        case For(kind=LoopKind.UNROLL, body=For(half, extent, LoopKind.UNROLL, Store() as store)):
            exchanged = None if quad is None or extent != PAIR else _exchanged(stmt, half, store, quad)
            return stmt if exchanged is None else exchanged
        case Let() | For() | Block() | Allocate():
            return map_inner(stmt, lambda inner: _stored(inner, lane, quad))
    # Under a condition some lanes of a warp may be missing.
    return stmt


def _exchanged(loop: For, half: Var, store: Store, quad: Var) -> Stmt | None:
    """The stores of a loop over instructions, of which each lane has the halves number 2 `quad` + `half`; None where
    these do not lie in rows of eight.
    """
    buffer, row = store.buffer, loop.var
    if buffer.scope != "global" or item_bytes(buffer.dtype) != _HALF_BYTES or loop.extent % QUAD:
        return None
    if any(read.buffer == buffer for read in find(Load, store.value)):
        return None
    form = flat_index(buffer.shape, store.indices)
    moved = {row: COLUMNS, quad: PAIR, half: 1}
    rest = {atom: coefficient for atom, coefficient in form.terms.items() if atom not in moved}
    if any(form.terms.get(var) != by for var, by in moved.items()):
        return None
    if any(uses(atom, var) for atom in rest for var in moved):
        return None
    if gcd(form.const, *(coefficient * divisor(atom) for atom, coefficient in rest.items())) % COLUMNS:
        return None
    group, number, place = (Var(f"{row.name}.{name}") for name in ("group", "number", "place"))
    first: Expr = group * QUAD if loop.extent > QUAD else const(0)
    mine, theirs = (Buffer(f"{buffer.name}.{name}", (COLUMNS,), buffer.dtype, "local") for name in ("mine", "theirs"))
    value = substitute(store.value, {row: first + number})
    # Of the row of its own number in the group a lane has all eight.
    whole = (substitute(index, {quad: const(0), half: place}) for index in store.indices)
    indices = tuple(substitute(index, {row: first + quad}) for index in whole)
    own = For(half, PAIR, LoopKind.UNROLL, Store(mine, (number * PAIR + half,), value))
    exchange = TransposeQuad(theirs, (const(0),), mine, (const(0),))
    stored = For(place, COLUMNS, LoopKind.VECTOR, Store(buffer, indices, Load(theirs, (place,))))
    body = Allocate(mine, Allocate(theirs, block(For(number, QUAD, LoopKind.UNROLL, own), exchange, stored)))
    return For(group, loop.extent // QUAD, LoopKind.UNROLL, body) if loop.extent > QUAD else body
