"""Make the loops that a schedule annotates legal for the code generator.

A vector loop becomes serial where lanes would not be independent; a parallel loop is outermost. A guard on the lanes
stays where the target has masks and the guarded statement reads and writes contiguous elements.
"""

from dataclasses import replace

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.affine import stride_of
from retune.compiler.ir.expr import Load, Select, Var
from retune.compiler.ir.rewrite import accesses_of, find_stmts, rewrite
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
    map_outermost,
    walk_stmt,
)
from retune.compiler.ir.visit import find, has, uses


def legalize_loops(function: LoopFunction, masks: bool = False) -> LoopFunction:
    """Check parallel loops; make vector loops serial that allocate, nest, write the same element from several lanes, or
    guard lanes without `masks`.

    Raises: LoweringError for a parallel loop inside another loop.
    """

    def demote(loop: For) -> Stmt | None:
        legal = loop.kind is not LoopKind.VECTOR or _lanes_independent(loop, masks)
        return None if legal else replace(loop, kind=LoopKind.SERIAL)

    body = rewrite(function.body, {For: demote})

    def check(top: Stmt) -> Stmt:
        for inner in find_stmts(For, top):
            if inner is not top and inner.kind is LoopKind.PARALLEL:
                raise LoweringError(
                    f"{function.name}: the parallel loop {inner.var} lies inside another loop; "
                    "only an outermost loop can run in parallel"
                )
        return top

    return replace(function, body=map_outermost(body, check))


def _lanes_independent(loop: For, masks: bool) -> bool:
    for inner in walk_stmt(loop.body):
        match inner:
            # A temporary becomes one value a lane.
            case Allocate() if is_temporary(inner.buffer):
                continue
            case Allocate() | Shuffle() | For(kind=LoopKind.VECTOR | LoopKind.PARALLEL):
                return False
            case If() if uses(inner.condition, loop.var) and not (masks and runs_under_mask(inner, loop.var)):
                return False
            # Code generation keeps the value of a `let` in a scalar register.
            case Let() if uses(inner.value, loop.var):
                return False
            case Store() if is_temporary(inner.buffer):
                continue
            # All lanes would write the same element.
            case Store() if not any(uses(index, loop.var) for index in inner.indices):
                return False
    return True


def runs_under_mask(guard: If, var: Var) -> bool:
    """Whether a guard tests only indices, and its body accesses contiguous or fixed elements along `var`."""
    if has(Load, guard.condition):
        return False
    for inner in walk_stmt(guard.body):
        for buffer, indices, written in accesses_of(inner):
            if stride_of(buffer, indices, var) not in ((1,) if written else (0, 1)):
                return False
        # A choice between lanes may need reads lane by lane, which no computed mask allows.
        if any(uses(choice.condition, var) for choice in find(Select, *exprs_of(inner))):
            return False
    return True
