"""In: loops annotated by a schedule. Out: loops the code generator can run.

Always: a vector loop becomes a serial one where lanes would not be independent; a parallel loop is outermost. A guard
on the lanes stays where the target has masks and what is guarded reads and writes neighbouring elements.
"""

from dataclasses import dataclass, replace

from retune.compiler.errors import LoweringError
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Buffer, Expr, Load, Select, Var
from retune.compiler.ir.stmt import (
    Allocate,
    For,
    If,
    Let,
    LoopFunction,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    exprs_of,
    is_temporary,
    map_stmt,
    walk_stmt,
)
from retune.compiler.ir.visit import walk


@dataclass(frozen=True, slots=True)
class LegalizeLoops:
    """Checks parallel loops and demotes vector loops that allocate, nest or write one element from several lanes, or
    guard them without `masks`.
    """

    masks: bool = False
    name: str = "legalize-loops"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with legal loop kinds.

        Raises: LoweringError for a parallel loop inside another loop.
        """
        body = map_stmt(function.body, self._demote)
        tops = body.statements if hasattr(body, "statements") else (body,)
        for top in tops:
            for inner in walk_stmt(top):
                if inner is not top and isinstance(inner, For) and inner.kind is LoopKind.PARALLEL:
                    raise LoweringError(
                        f"{function.name}: the parallel loop {inner.var} lies inside another loop; "
                        "only an outermost loop can run in parallel"
                    )
        return replace(function, body=body)

    def _demote(self, stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR and not _lanes_independent(stmt, self.masks):
            return replace(stmt, kind=LoopKind.SERIAL)
        return None


def _lanes_independent(loop: For, masks: bool) -> bool:
    for inner in walk_stmt(loop.body):
        match inner:
            case Allocate() if is_temporary(inner.buffer):
                continue
            case Allocate() | Shuffle() | For(kind=LoopKind.VECTOR | LoopKind.PARALLEL):
                return False
            case If() if _uses(inner.condition, loop.var) and not (masks and _runs_under_mask(inner, loop.var)):
                return False
            case Let() if _uses(inner.value, loop.var):
                return False
            case Store() if is_temporary(inner.buffer):
                continue
            case Store() if not any(_uses(index, loop.var) for index in inner.indices):
                return False
    return True


def _runs_under_mask(guard: If, var: Var) -> bool:
    """Whether a guard tests indices alone, and what it guards touches neighbouring elements as `var` runs, or the same
    one.
    """
    if any(isinstance(node, Load) for node in walk(guard.condition)):
        return False
    for inner in walk_stmt(guard.body):
        if isinstance(inner, Store) and _stride(inner.buffer, inner.indices, var) != 1:
            return False
        for node in (node for expr in exprs_of(inner) for node in walk(expr)):
            if isinstance(node, Select) and _uses(node.condition, var):
                return False
            if isinstance(node, Load) and _stride(node.buffer, node.indices, var) not in (0, 1):
                return False
    return True


def _stride(buffer: Buffer, indices: tuple[Expr, ...], var: Var) -> int | None:
    """How many elements one turn of `var` moves on; None where that differs from turn to turn."""
    form = flat_index(buffer.shape, indices)
    if any(atom != var and _uses(atom, var) for atom in form.terms):
        return None
    return form.terms.get(var, 0)


def _uses(expr: Expr, var: Var) -> bool:
    return any(node == var for node in walk(expr))
