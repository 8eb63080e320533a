"""Refuse kernels whose unrolled loops make too much code; an `unroll` is never dropped silently."""

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.rewrite import rewrite, unrolled_size
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind

MAX_STATEMENTS = 16384
"""Statements after unrolling: more take seconds to compile and leave the instruction cache."""


def limit_code(function: LoopFunction) -> LoopFunction:
    """Return the kernel unchanged.

    Raises: LoweringError for the innermost unrolled loop whose copies are more than `MAX_STATEMENTS` statements.
    """

    def check(loop: For) -> None:
        count = unrolled_size(loop) if loop.kind is LoopKind.UNROLL else 0
        if count > MAX_STATEMENTS:
            raise LoweringError(
                f"{function.name}: unrolling {loop.var} makes {count} statements, more than {MAX_STATEMENTS}; "
                "unroll an inner loop only, or split the loop and unroll the inner part"
            )

    rewrite(function.body, {For: check})
    return function
