"""Refuse kernels whose unrolled loops make too much code; an `unroll` is never dropped silently."""

from dataclasses import dataclass

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.rewrite import rewrite, unrolled_size
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind

MAX_STATEMENTS = 16384
"""Statements after unrolling: more take seconds to compile and leave the instruction cache."""


@dataclass(frozen=True, slots=True)
class LimitCode:
    """Refuses loops whose copies are more than `MAX_STATEMENTS` statements."""

    name: str = "limit-code"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The unchanged kernel.

        Raises: LoweringError naming the innermost unrolled loop that makes too much code.
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
