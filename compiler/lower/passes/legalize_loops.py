"""In: loops annotated by a schedule. Out: loops the code generator can run.

Always: a vector loop becomes a serial one where lanes would not be independent; a parallel loop is outermost.
"""

from dataclasses import dataclass, replace

from compiler.errors import LoweringError
from compiler.ir.expr import Expr, Var
from compiler.ir.stmt import Allocate, For, If, Let, LoopFunction, LoopKind, Stmt, Store, map_stmt, walk_stmt
from compiler.ir.visit import walk


@dataclass(frozen=True, slots=True)
class LegalizeLoops:
    """Checks parallel loops and demotes vector loops that guard, allocate, nest or write one element from several
    lanes.
    """

    name: str = "legalize-loops"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel with legal loop kinds.

        Raises: LoweringError for a parallel loop inside another loop.
        """
        body = map_stmt(function.body, _demote)
        tops = body.statements if hasattr(body, "statements") else (body,)
        for top in tops:
            for inner in walk_stmt(top):
                if inner is not top and isinstance(inner, For) and inner.kind is LoopKind.PARALLEL:
                    raise LoweringError(
                        f"{function.name}: the parallel loop {inner.var} lies inside another loop; "
                        "only an outermost loop can run in parallel"
                    )
        return replace(function, body=body)


def _demote(stmt: Stmt) -> Stmt | None:
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTOR and not _lanes_independent(stmt):
        return replace(stmt, kind=LoopKind.SERIAL)
    return None


def _lanes_independent(loop: For) -> bool:
    for inner in walk_stmt(loop.body):
        match inner:
            case Allocate() | For(kind=LoopKind.VECTOR | LoopKind.PARALLEL):
                return False
            case If() if _uses(inner.condition, loop.var):
                return False
            case Let() if _uses(inner.value, loop.var):
                return False
            case Store() if not any(_uses(index, loop.var) for index in inner.indices):
                return False
    return True


def _uses(expr: Expr, var: Var) -> bool:
    return any(node == var for node in walk(expr))
