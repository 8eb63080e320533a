"""In: loops to be written out. Out: the same kernel.

Always: its code has a bearable length; an `unroll` that asks for more is refused by name, never dropped silently.
"""

from dataclasses import dataclass

from retune.compiler.errors import LoweringError
from retune.compiler.ir.stmt import LEAVES, For, LoopFunction, LoopKind, Stmt, inner_stmts

MAX_STATEMENTS = 16384
"""Statements after unrolling: seconds of compiling, and more code than the instruction cache holds."""


@dataclass(frozen=True, slots=True)
class LimitCode:
    """Refuses loops whose copies are more than `MAX_STATEMENTS` statements."""

    name: str = "limit-code"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel as it is.

        Raises: LoweringError naming the innermost unrolled loop that makes too much code.
        """
        _statements(function.name, function.body)
        return function


def _statements(kernel: str, stmt: Stmt) -> int:
    count = 1 if isinstance(stmt, LEAVES) else sum(_statements(kernel, inner) for inner in inner_stmts(stmt))
    if isinstance(stmt, For) and stmt.kind is LoopKind.UNROLL:
        count *= stmt.extent
        if count > MAX_STATEMENTS:
            raise LoweringError(
                f"{kernel}: unrolling {stmt.var} makes {count} statements, more than {MAX_STATEMENTS}; "
                "unroll an inner loop only, or split the loop and unroll the inner part"
            )
    return count
