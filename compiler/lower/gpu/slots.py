"""In: statements, and some of their buffers. Out: the same with several copies of each buffer, of which one is named.

Always: nothing else changes; the number of the copy becomes the first index.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.compiler.ir.expr import Buffer, Expr, Load
from retune.compiler.ir.stmt import Stmt, Store, map_exprs, map_stmt
from retune.compiler.ir.tensor_core import AsyncCopy, LoadMatrix, Mma
from retune.compiler.ir.visit import transform


def copies_of(buffer: Buffer, count: int) -> Buffer:
    """So many of a buffer."""
    return replace(buffer, shape=(count, *buffer.shape))


def in_slot(stmt: Stmt, buffers: Sequence[Buffer], slot: Expr, count: int) -> Stmt:
    """The statement with the copy number `slot` of the `count` copies of each of the buffers."""

    def on_expr(expr: Expr) -> Expr:
        return transform(expr, lambda node: on_load(node) if isinstance(node, Load) else None)

    def on_load(node: Load) -> Expr | None:
        return Load(copies_of(node.buffer, count), (slot, *node.indices)) if node.buffer in buffers else None

    def on_stmt(node: Stmt) -> Stmt | None:
        match node:
            case Store() if node.buffer in buffers:
                return replace(node, buffer=copies_of(node.buffer, count), indices=(slot, *node.indices))
            case AsyncCopy() if node.target in buffers:
                return replace(node, target=copies_of(node.target, count), indices=(slot, *node.indices))
            case LoadMatrix():
                return on_matrices(node)
            case Mma():
                return on_product(node)
        return None

    def on_matrices(node: LoadMatrix) -> LoadMatrix:
        if node.source in buffers:
            node = replace(node, source=copies_of(node.source, count), source_indices=(slot, *node.source_indices))
        if node.target in buffers:
            node = replace(node, target=copies_of(node.target, count), indices=(slot, *node.indices))
        return node

    def on_product(node: Mma) -> Mma:
        if node.left in buffers:
            node = replace(node, left=copies_of(node.left, count), left_at=(slot, *node.left_at))
        if node.right in buffers:
            node = replace(node, right=copies_of(node.right, count), right_at=(slot, *node.right_at))
        return node

    return map_stmt(map_exprs(stmt, on_expr), on_stmt)
