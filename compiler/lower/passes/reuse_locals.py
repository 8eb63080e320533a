"""Compute an elementwise local buffer in place when its operand is dead afterwards.

before: local a; … a …; local b; for i: b[i] = exp(a[i]); … b …
after:  local a; … a …; for i: a[i] = exp(a[i]); … a …
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from retune.compiler.ir.affine import affine
from retune.compiler.ir.expr import Buffer, Const, Expr
from retune.compiler.ir.rewrite import accesses_in, has_stmt, perfect_nest, redirect, rewrite, statements_of
from retune.compiler.ir.stmt import Allocate, Block, Invoke, LoopFunction, Stmt, Store, map_stmt

_LEAST_BYTES = 1 << 12
"""Smaller buffers stay in the first-level cache or in registers."""


def reuse_locals(function: LoopFunction) -> LoopFunction:
    """Give local buffers the memory of dead buffers."""
    return replace(function, body=rewrite(function.body, {Allocate: _share}))


def _share(stmt: Allocate) -> Stmt | None:
    """The scope of a buffer, with the inner buffers that take over its memory."""
    memory, body = stmt.buffer, stmt.body
    # A function may read all of its arguments, whatever their indices.
    if memory.scope != "local" or memory.nbytes < _LEAST_BYTES or has_stmt(Invoke, body):
        return None
    while taker := next((scope.buffer for scope, after in _scopes(body) if _takes(scope, after, memory)), None):
        body = _without(body, taker, memory)
    return None if body is stmt.body else replace(stmt, body=body)


def _scopes(stmt: Stmt, after: Sequence[Stmt] = ()) -> Iterator[tuple[Allocate, Sequence[Stmt]]]:
    """The scopes of buffers outside of all loops, each with the statements that run after it."""
    match stmt:
        case Allocate():
            yield stmt, after
            yield from _scopes(stmt.body, after)
        case Block(statements):
            for index, statement in enumerate(statements):
                yield from _scopes(statement, (*statements[index + 1 :], *after))


def _takes(scope: Allocate, after: Sequence[Stmt], memory: Buffer) -> bool:
    """Whether a scope begins by computing its buffer from `memory`, which is not read later."""
    buffer, (first, *others) = scope.buffer, statements_of(scope.body)
    if (buffer.scope, buffer.shape, buffer.dtype) != (memory.scope, memory.shape, memory.dtype):
        return False
    if any(accessed == memory for later in (*others, *after) for accessed, _, _ in accesses_in(later)):
        return False
    loops, store = perfect_nest(first)
    if not isinstance(store, Store) or store.buffer != buffer:
        return False
    # Each element once: no iteration may read what an earlier iteration has written.
    variables = [index for index in store.indices if not isinstance(index, Const)]
    if len(variables) != len(loops) or set(variables) != {loop.var for loop in loops}:
        return False
    read = [indices for accessed, indices, written in accesses_in(store) if accessed == memory and not written]
    return bool(read) and all(_are_equal(indices, store.indices) for indices in read)


def _are_equal(lhs: Sequence[Expr], rhs: Sequence[Expr]) -> bool:
    return all(affine(left) == affine(right) for left, right in zip(lhs, rhs, strict=True))


def _without(body: Stmt, buffer: Buffer, memory: Buffer) -> Stmt:
    """The statements with `memory` in place of `buffer`, which is no longer allocated."""
    moved = redirect(body, lambda accessed, indices: (memory, indices) if accessed == buffer else None)
    return map_stmt(moved, lambda node: node.body if isinstance(node, Allocate) and node.buffer == buffer else None)
