"""In: a reduction of products of narrow numbers. Out: the same with a few of its steps as one dot product.

Always: nothing but the grouping of the sum changes, so whole numbers stay exact.

    before: for k in 64: for i: vector j: C[i, j] = C[i, j] + int32(a[i, k]) * int32(b[k, j])
    after:  for k.group in 16: for i: vector j: C[i, j] = C[i, j] + dot(k.lane in 4: a[i, ..] * b[.., j])
Four products of bytes summed in int32, or two of bfloat16 summed in float32. It happens before weights are packed, so
that the steps of a dot product become the innermost digit of their layout and lie side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.dtype import BFLOAT16
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.dot import BYTES, is_possible
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Dot, Expr, Load, Var
from retune.compiler.ir.stmt import For, If, LoopFunction, LoopKind, Stmt, Store, map_inner
from retune.compiler.ir.visit import substitute, walk

SERIAL = (LoopKind.SERIAL, LoopKind.UNROLL)


@dataclass(frozen=True, slots=True)
class DotProducts:
    """`native` are the pairs of factor types, the first or the second given first, that the target has instructions
    for. Two signed or two unsigned bytes can be made of a mixed pair.
    """

    native: frozenset[tuple[str, str]]
    name: str = "dot-products"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with dot products where its innermost reductions allow them."""
        return replace(function, body=_Rewriter(self.native).visit(function.body, False)) if self.native else function


@dataclass(frozen=True, slots=True)
class _Factors:
    """The two factors of an update and how many products of them one dot product sums."""

    lhs: Expr
    rhs: Expr
    width: int


Nest = tuple[For | If, ...]


class _Rewriter:
    def __init__(self, native: frozenset[tuple[str, str]]) -> None:
        self.native = native

    def visit(self, stmt: Stmt, in_vector: bool) -> Stmt:
        """The statement with dot products; `in_vector` inside a vector loop."""
        found = self.rewritten(stmt, in_vector) if isinstance(stmt, For) else None
        if found is not None:
            return found
        inside = in_vector or (isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR)
        return map_inner(stmt, lambda inner: self.visit(inner, inside))

    def rewritten(self, outermost: For, in_vector: bool) -> Stmt | None:
        """A nest whose outermost loop belongs to the last group of reductions, with one of them grouped."""
        nest, leaf = _nest(outermost)
        factors = self.factors(leaf)
        if factors is None or not isinstance(leaf, Store):
            return None
        used = {node for index in leaf.indices for node in walk(index) if isinstance(node, Var)}
        first = next((place for place, loop in enumerate(nest) if isinstance(loop, If) or loop.var in used), len(nest))
        inner = nest[first:]
        vectors = [loop for loop in inner if isinstance(loop, For) and loop.kind is LoopKind.VECTOR]
        if any(isinstance(loop, For) and loop.var not in used for loop in inner) or not (vectors or in_vector):
            return None
        possible = [place for place in range(first) if self.divides(nest, place, factors.width)]
        if not possible:
            return None
        place = max(possible, key=lambda place: (_side_by_side(nest[place], factors, vectors), place))
        return _grouped(nest, place, leaf, factors)

    def factors(self, leaf: Stmt) -> _Factors | None:
        """What is multiplied in `C = C + cast(a) * cast(b)`, if the target has a dot product of such types."""
        if not isinstance(leaf, Store) or not isinstance(leaf.value, Binary) or leaf.value.op is not BinaryOp.ADD:
            return None
        old, product = leaf.value.lhs, leaf.value.rhs
        if old != Load(leaf.buffer, leaf.indices) or not isinstance(product, Binary):
            return None
        if product.op is not BinaryOp.MUL or any(
            isinstance(node, Load) and node.buffer == leaf.buffer for node in walk(product)
        ):
            return None
        if not isinstance(product.lhs, Cast) or not isinstance(product.rhs, Cast):
            return None
        lhs, rhs = product.lhs.value, product.rhs.value
        if product.dtype in ("int32", "uint32") and lhs.dtype in BYTES and rhs.dtype in BYTES:
            return _Factors(lhs, rhs, 4) if is_possible(self.native, lhs.dtype, rhs.dtype) else None
        if product.dtype == "float32" and lhs.dtype == rhs.dtype == BFLOAT16:
            return _Factors(lhs, rhs, 2) if is_possible(self.native, BFLOAT16, BFLOAT16) else None
        return None

    @staticmethod
    def divides(nest: Nest, place: int, width: int) -> bool:
        """Whether the loop at `place` can be cut into groups."""
        loop = nest[place]
        if not isinstance(loop, For) or loop.extent % width or loop.kind not in SERIAL:
            return False
        conditions = [inner.condition for inner in nest if isinstance(inner, If)]
        return not any(node == loop.var for condition in conditions for node in walk(condition))


def _nest(outermost: For) -> tuple[Nest, Stmt]:
    """The loops and guards that hold one statement each, and the innermost statement."""
    nest: list[For | If] = []
    stmt: Stmt = outermost
    while isinstance(stmt, (For, If)):
        nest.append(stmt)
        stmt = stmt.body
    return tuple(nest), stmt


def _side_by_side(loop: For | If, factors: _Factors, vectors: Sequence[For]) -> bool:
    """Whether the factor that is the same for all lanes reads the steps of the loop from neighbouring places."""
    assert isinstance(loop, For)
    lanes = {vector.var for vector in vectors}
    for factor in (factors.lhs, factors.rhs):
        if any(node in lanes for node in walk(factor) if isinstance(node, Var)):
            continue
        loads = [node for node in walk(factor) if isinstance(node, Load)]
        if loads and all(flat_index(load.buffer.shape, load.indices).terms.get(loop.var) == 1 for load in loads):
            return True
    return False


def _grouped(nest: Nest, place: int, leaf: Store, factors: _Factors) -> Stmt:
    """The nest with the loop at `place` running over groups of steps."""
    loop = nest[place]
    assert isinstance(loop, For)
    assert isinstance(leaf.value, Binary)
    lane = Var(f"{loop.var.name}.lane")
    groups = loop.extent // factors.width
    group = Var(f"{loop.var.name}.group")
    step = group * factors.width + lane if groups > 1 else lane
    lhs, rhs = (substitute(factor, {loop.var: step}) for factor in (factors.lhs, factors.rhs))
    dot = Dot(leaf.value.dtype, lane, factors.width, lhs, rhs)
    stmt: Stmt = replace(leaf, value=replace(leaf.value, rhs=dot))
    for depth in reversed(range(len(nest))):
        if depth != place:
            stmt = replace(nest[depth], body=stmt)
        elif groups > 1:
            stmt = For(group, groups, loop.kind, stmt)
    return stmt
