"""Hold intermediate narrow numbers in the type that they are read as, where they are read several times each.

16-bit floats become float32, bytes 16-bit numbers, as factors of dot products. No result changes: the wider type has
every number of the narrower.

    before: local p: float16[..]; for i: p[i] = x[i];           for k: for i: vector j: … float32(p[i + k]) * b[k, j]
    after:  local p: float32[..]; for i: p[i] = float32(x[i]);  for k: for i: vector j: … p[i + k] * b[k, j]
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retune.compiler.core.dtype import HALVES
from retune.compiler.ir.dot import BYTES, WIDENED
from retune.compiler.ir.expr import Buffer, Cast, Expr, Load
from retune.compiler.ir.rewrite import find_stmts
from retune.compiler.ir.stmt import (
    Allocate,
    For,
    Invoke,
    LoopFunction,
    Stmt,
    Store,
    exprs_of,
    inner_stmts,
    map_exprs,
    map_stmt,
)
from retune.compiler.ir.visit import find, replace_nodes

_WIDE = {**dict.fromkeys(HALVES, "float32"), **dict.fromkeys(BYTES, WIDENED)}
"""The type in which numbers are held, by that which they have."""
_LEAST_READS = 2
"""Reads of an element that make up for twice the memory."""


@dataclass(slots=True)
class _Uses:
    """How often a buffer is written and read as the wider type, and whether it is accessed in any other way."""

    writes: int = 0
    reads: int = 0
    others: bool = False


def widen_buffers(function: LoopFunction) -> LoopFunction:
    """Hold intermediate narrow numbers in a wider type where that saves conversions."""
    buffers = (*function.workspace, *(scope.buffer for scope in find_stmts(Allocate, function.body)))
    counts = {buffer: _Uses() for buffer in buffers if buffer.dtype in _WIDE}
    if not counts:
        return function
    _count(function.body, 1, counts)
    wide = {
        buffer: replace(buffer, dtype=_WIDE[buffer.dtype])
        for buffer, uses in counts.items()
        if not uses.others and uses.reads >= _LEAST_READS * uses.writes > 0
    }
    if not wide:
        return function
    workspace = tuple(wide.get(buffer, buffer) for buffer in function.workspace)
    return replace(function, workspace=workspace, body=_with_wide(function.body, wide))


def _count(stmt: Stmt, times: int, counts: Mapping[Buffer, _Uses]) -> None:
    """Add the uses of a statement that runs so many `times`."""
    match stmt:
        case Invoke(args=args):
            for buffer in counts.keys() & set(args):
                counts[buffer].others = True
        case Store(buffer) if buffer in counts:
            counts[buffer].writes += times
    exprs = tuple(exprs_of(stmt))
    loads = [load.buffer for load in find(Load, *exprs) if load.buffer in counts]
    values = (node.value for node in find(Cast, *exprs) if node.dtype == _WIDE.get(node.value.dtype))
    wide = [value.buffer for value in values if isinstance(value, Load)]
    for buffer in set(loads):
        counts[buffer].reads += times * loads.count(buffer)
        counts[buffer].others |= loads.count(buffer) != wide.count(buffer)
    inside = times * stmt.extent if isinstance(stmt, For) else times
    for inner in inner_stmts(stmt):
        _count(inner, inside, counts)


def _with_wide(body: Stmt, wide: Mapping[Buffer, Buffer]) -> Stmt:
    """The statements with the buffers that are values of `wide` in place of its keys."""

    def on_cast(node: Cast) -> Expr | None:
        match node:
            case Cast(value=Load(buffer, indices)) if buffer in wide:
                return Load(wide[buffer], indices)
        return None

    def on_stmt(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Store(buffer, indices, value) if buffer in wide:
                return Store(wide[buffer], indices, Cast(wide[buffer].dtype, value))
            case Allocate(buffer, inner) if buffer in wide:
                return Allocate(wide[buffer], inner)
        return None

    return map_stmt(map_exprs(body, lambda expr: replace_nodes(expr, Cast, on_cast)), on_stmt)
