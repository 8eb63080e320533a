"""Group the steps of reductions over products of narrow numbers into dot products.

Only the grouping of the sum changes, so integers stay exact.

    before: for k in 64: for i: vector j: C[i, j] = C[i, j] + int32(a[i, k]) * int32(b[k, j])
    after:  for k.group in 16: for i: vector j: C[i, j] = C[i, j] + dot(k.lane in 4: a[i, ..] * b[.., j])
Four products of bytes summed in int32 (two where the target multiplies 16-bit numbers, to which bytes are widened), or
two of bfloat16 summed in float32. The pass runs before weights are packed, so that the steps of a dot product become
the innermost digit of their layout and are contiguous.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.dot import BYTES, WIDENED, Pair, are_widened, is_possible, products_per_sum
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Dot, Expr, Load, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import rewrite_down
from retune.compiler.ir.stmt import For, If, LoopFunction, LoopKind, Stmt, Store
from retune.compiler.ir.visit import find, of_type, substitute, uses, variables

SERIAL = (LoopKind.SERIAL, LoopKind.UNROLL)


def group_dot_products(function: LoopFunction, native: Collection[Pair]) -> LoopFunction:
    """Group steps into dot products of the factor types `native`, in order, of the target's instructions. Two signed or
    two unsigned bytes can be made of a mixed pair.
    """

    def on_loop(loop: For, _: Ranges) -> Stmt | None:
        grouped = _group(loop, native, in_vector=False)
        if grouped is None and loop.kind is LoopKind.VECTOR:
            return replace(loop, body=rewrite_down(loop.body, {For: on_inner_loop}))
        return grouped

    def on_inner_loop(loop: For, _: Ranges) -> Stmt | None:
        return _group(loop, native, in_vector=True)

    return replace(function, body=rewrite_down(function.body, {For: on_loop})) if native else function


def _group(outermost: For, native: Collection[Pair], *, in_vector: bool) -> Stmt | None:
    """A nest whose outermost loop belongs to the last group of reductions, with a loop of them grouped."""
    loops, leaf = _nest(outermost)
    factors = _factors(leaf, native)
    if factors is None:
        return None
    used = variables(*factors.update.indices)
    # Reduction loops around the points of a tile; inside the first point no loop may reduce.
    first = next((depth for depth, loop in enumerate(loops) if not _reduces(loop, used)), len(loops))
    inner = loops[first:]
    vectors = [loop for loop in of_type(For, inner) if loop.kind is LoopKind.VECTOR]
    if any(loop.var not in used for loop in of_type(For, inner)) or not (vectors or in_vector):
        return None
    guards = [guard.condition for guard in of_type(If, loops)]
    possible = [
        (_is_contiguous(loop, factors, vectors), number, loop)
        for number, loop in enumerate(of_type(For, loops[:first]))
        if loop.extent % factors.width == 0
        and loop.kind in SERIAL
        # A guard on the steps would hold for a part of a group.
        and not any(uses(guard, loop.var) for guard in guards)
    ]
    if not possible:
        return None
    # Contiguous steps first: they are one load and a broadcast; among equals the innermost loop.
    _, _, chosen = max(possible, key=lambda candidate: candidate[:2])
    return _with_groups(loops, chosen, factors)


def _factors(leaf: Stmt, native: Collection[Pair]) -> "_Factors | None":
    """The factors of `C = C + cast(a) * cast(b)`, if the target has a dot product of such types."""
    match leaf:
        case Store(
            value=Binary(BinaryOp.ADD, Load(old, indices), Binary(BinaryOp.MUL, Cast(value=lhs), Cast(value=rhs)))
        ) if (old, indices) == (leaf.buffer, leaf.indices):
            # The terms may depend on sums so far: then the order of the steps matters.
            if any(load.buffer == leaf.buffer for load in find(Load, lhs, rhs)):
                return None
            if not is_possible(native, lhs.dtype, rhs.dtype):
                return None
            width = products_per_sum(native, lhs.dtype, rhs.dtype)
            if leaf.value.dtype in ("int32", "uint32") and lhs.dtype in BYTES and rhs.dtype in BYTES:
                if are_widened(native, lhs.dtype, rhs.dtype):
                    lhs, rhs = Cast(WIDENED, lhs), Cast(WIDENED, rhs)
                return _Factors(leaf, lhs, rhs, width)
            if leaf.value.dtype == "float32" and lhs.dtype == rhs.dtype == BFLOAT16:
                return _Factors(leaf, lhs, rhs, width)
    return None


@dataclass(frozen=True, slots=True)
class _Factors:
    """An update, its two factors, and the number of their products in one dot product."""

    update: Store
    lhs: Expr
    rhs: Expr
    width: int


Nest = tuple[For | If, ...]


def _reduces(loop: For | If, used: set[Var]) -> bool:
    """Whether it is a loop that the result does not depend on."""
    match loop:
        case For(var):
            return var not in used
    return False


def _nest(outermost: For) -> tuple[Nest, Stmt]:
    """The loops and guards with a single statement each, and the innermost statement."""
    nest: list[For | If] = []
    stmt: Stmt = outermost
    while isinstance(stmt, (For, If)):
        nest.append(stmt)
        stmt = stmt.body
    return tuple(nest), stmt


def _is_contiguous(loop: For, factors: _Factors, vectors: Sequence[For]) -> bool:
    """Whether the factor that is the same for all lanes reads contiguous elements along the loop."""
    lanes = [vector.var for vector in vectors]
    for factor in (factors.lhs, factors.rhs):
        loads = list(find(Load, factor))
        strides = {flat_index(load.buffer.shape, load.indices).terms.get(loop.var) for load in loads}
        if not uses(factor, *lanes) and strides == {1}:
            return True
    return False


def _with_groups(loops: Nest, loop: For, factors: _Factors) -> Stmt:
    """The nest with one of its loops running over groups of steps."""
    update = factors.update
    lane = Var(f"{loop.var.name}.lane")
    groups = loop.extent // factors.width
    group = Var(f"{loop.var.name}.group")
    step = group * factors.width + lane if groups > 1 else lane
    lhs, rhs = (substitute(factor, {loop.var: step}) for factor in (factors.lhs, factors.rhs))
    dot = Dot(update.value.dtype, lane, factors.width, lhs, rhs)
    stmt: Stmt = replace(update, value=Binary(BinaryOp.ADD, Load(update.buffer, update.indices), dot))
    for outer in reversed(loops):
        if outer is not loop:
            stmt = replace(outer, body=stmt)
        elif groups > 1:
            stmt = For(group, groups, loop.kind, stmt)
    return stmt
