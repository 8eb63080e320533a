"""Widen stores of tensor-core results of 16 bits: lanes of a quad exchange values so that each stores 16 bytes.

An instruction leaves each lane of a quad two of eight adjacent sums, so the quad would store 16 bytes together, half of
a memory sector. After the lanes have exchanged the values of four instructions, each stores 16 bytes, the quad 64.

    before: threadIdx.x t in 32: unroll f in 8: unroll e in 2: y[f * 8 + t % 4 * 2 + e] = c[f, e]
    after:  threadIdx.x t in 32: unroll g in 2: own[8], row[8]: unroll f in 4: unroll e in 2: own[f * 2 + e] =
            c[g * 4 + f, e]; row = pairs of a quad of own; vector v in 8: y[(g * 4 + t % 4) * 8 + v] = row[v]
"""

from dataclasses import dataclass, replace
from math import gcd

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Const, Expr, Load, Var, const
from retune.compiler.ir.rewrite import find_stmts, has_stmt, rewrite
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.stmt import Allocate, Block, For, Let, LoopFunction, LoopKind, Stmt, Store, block, map_inner
from retune.compiler.ir.tensor_core import COLUMNS, PAIR, QUAD, WARP, Mma, TransposeQuad, WarpgroupMma
from retune.compiler.ir.visit import find, substitute, uses

_HALF_BYTES = 2


def widen_stores(function: LoopFunction) -> LoopFunction:
    """Exchange halves among the lanes of quads before they are stored; kernels without tensor cores are unchanged."""
    lanes = [loop for loop in find_stmts(For, function.body) if loop.kind is LoopKind.THREAD_X]
    multiplies = has_stmt(Mma, function.body) or has_stmt(WarpgroupMma, function.body)
    if not multiplies or any(loop.extent != WARP for loop in lanes):
        return function

    def inside(loop: For) -> Stmt | None:
        if loop.kind is not LoopKind.THREAD_X:
            return None
        lanes = _Lanes(loop.var, None, frozenset({loop.var}))
        return replace(loop, body=_exchange_stores(loop.body, lanes))

    return replace(function, body=rewrite(function.body, {For: inside}))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes of a warp: the loop over them, the variable that is their number in their quad, once bound, and the
    variables that may differ within a quad.
    """

    lane: Var
    quad: Var | None
    apart: frozenset[Var]

    def inside(self, let: Let) -> "_Lanes":
        match let.value:
            case Binary(BinaryOp.FLOORMOD, lhs, Const(value=by)) if (lhs, by) == (self.lane, QUAD):
                return replace(self, quad=let.var, apart=self.apart | {let.var})
            case Binary(BinaryOp.FLOORDIV, lhs, Const(value=by)) if (lhs, by) == (self.lane, QUAD):
                return self
        return replace(self, apart=self.apart | {let.var}) if uses(let.value, *self.apart) else self


def _exchange_stores(stmt: Stmt, lanes: _Lanes) -> Stmt:
    """A statement that all lanes of a warp execute, with its stores exchanged."""
    match stmt:
        case For(kind=LoopKind.UNROLL, body=For(half, extent, LoopKind.UNROLL, Store() as store)):
            exchanged = None if extent != PAIR else _exchange_rows(stmt, half, store, lanes)
            return stmt if exchanged is None else exchanged
        case Let():
            return replace(stmt, body=_exchange_stores(stmt.body, lanes.inside(stmt)))
        case For() | Block() | Allocate():
            return map_inner(stmt, lambda inner: _exchange_stores(inner, lanes))
    # Under a condition some lanes of a warp may be missing.
    return stmt


def _exchange_rows(loop: For, half: Var, store: Store, lanes: _Lanes) -> Stmt | None:
    """The stores of a loop over instructions, of which each lane has the halves 2 × its number in its quad + `half`;
    None where they are not in rows of eight.
    """
    buffer, fragment, quad = store.buffer, loop.var, lanes.quad
    if quad is None or buffer.scope != "global" or item_bytes(buffer.dtype) != _HALF_BYTES or loop.extent % QUAD:
        return None
    if any(read.buffer == buffer for read in find(Load, store.value)):
        return None
    # The eight are neighbors along the last dimension.
    if any(uses(index, quad, half) for index in store.indices[:-1]):
        return None
    form = flat_index(buffer.shape, store.indices)
    moved = {fragment: COLUMNS, quad: PAIR, half: 1}
    others = {atom: coefficient for atom, coefficient in form.terms.items() if atom not in moved}
    if any(form.terms.get(var) != by for var, by in moved.items()):
        return None
    # All other terms must be the same for all lanes of a quad.
    if any(uses(atom, fragment, half, *lanes.apart) for atom in others):
        return None
    if gcd(form.const, *(coefficient * divisor(atom) for atom, coefficient in others.items())) % COLUMNS:
        return None
    group, number, element = (Var(f"{fragment.name}.{name}") for name in ("group", "number", "place"))
    first: Expr = group * QUAD if loop.extent > QUAD else const(0)
    sent, row = (Buffer(f"{buffer.name}.{name}", (COLUMNS,), buffer.dtype, "local") for name in ("own", "row"))
    value = substitute(store.value, {fragment: first + number})
    # A lane gets all eight elements of the fragment of its own number in the group.
    neighbors = (substitute(index, {quad: const(0), half: element}) for index in store.indices)
    indices = tuple(substitute(index, {fragment: first + quad}) for index in neighbors)
    keep = For(half, PAIR, LoopKind.UNROLL, Store(sent, (number * PAIR + half,), value))
    exchange = TransposeQuad(row, (const(0),), sent, (const(0),))
    write = For(element, COLUMNS, LoopKind.VECTOR, Store(buffer, indices, Load(row, (element,))))
    body = Allocate(sent, Allocate(row, block(For(number, QUAD, LoopKind.UNROLL, keep), exchange, write)))
    return For(group, loop.extent // QUAD, LoopKind.UNROLL, body) if loop.extent > QUAD else body
