"""Multi-buffering: several copies of a buffer, of which statements access a single copy.

The number of the copy becomes the first index; nothing else changes.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.rewrite import redirect
from retune.compiler.ir.stmt import Stmt
from retune.compiler.ir.tensor_core import Exprs


def copies_of(buffer: Buffer, count: int) -> Buffer:
    """`count` copies of `buffer` in one buffer."""
    return replace(buffer, shape=(count, *buffer.shape))


def select_copy(stmt: Stmt, buffers: Sequence[Buffer], copy: Expr, count: int) -> Stmt:
    """The statement with copy number `copy` of the `count` copies of each of the buffers."""

    def rule(buffer: Buffer, indices: Exprs) -> tuple[Buffer, Exprs] | None:
        return (copies_of(buffer, count), (copy, *indices)) if buffer in buffers else None

    return redirect(stmt, rule)
