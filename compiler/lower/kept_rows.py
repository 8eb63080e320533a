"""Rows of a symbolic length that the blocks of a kernel keep on the stack, as the scores of attention.

before: local s[4, MOST]: … s[i, j] …
after:  local rows[49152]: … rows[i * 12272 + j] …        for at most 12272 columns
All blocks use one array, so fewer rows may be longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.rewrite import accesses_in, find_stmts, redirect, rewrite
from retune.compiler.ir.stmt import MOST_ITERATIONS, Allocate, LoopFunction, Stmt
from retune.compiler.ir.tensor_core import Exprs
from retune.compiler.ir.visit import variables
from retune.compiler.schedule.axis_classes import AxisClass
from retune.compiler.schedule.blocks import class_in

ROW_BYTES = 3 << 16
"""Bytes of the stack that are kept for rows, next to the other factors in a second-level cache of half a megabyte."""
_ALIGNED = 64
"""Columns of a row are a multiple of this many, so that whole vectors stay inside it."""
_PAGE_PART = 1 << 10
"""Rows at a distance of a multiple of this many bytes evict each other from the first-level cache."""


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The array `buffer` holds rows of a symbolic `extent`, which is at most `most`."""

    buffer: Buffer
    extent: int
    most: int


class UnkeptError(Exception):
    """Rows that no array of a block can hold."""


def keep_rows(function: LoopFunction, classes: Sequence[AxisClass]) -> tuple[LoopFunction, KeptRows | None]:
    """The loops of a block with its buffers of `MOST_ITERATIONS` columns in one array, which is not allocated yet; None
    without such buffers. Raises: UnkeptError.
    """
    scopes = [scope.buffer for scope in find_stmts(Allocate, function.body)]
    wide = [buffer for buffer in (*function.workspace, *scopes) if max(buffer.shape, default=0) >= MOST_ITERATIONS]
    if not wide:
        return function, None
    extent = _extent_of(function.body, wide, classes)
    dtype = wide[0].dtype
    if any(buffer.dtype != dtype or max(buffer.shape[:-1], default=0) >= MOST_ITERATIONS for buffer in wide):
        raise UnkeptError("it keeps arrays that are symbolic along several axes, or of several types")
    elements = ROW_BYTES // item_bytes(dtype)
    heights = [prod(buffer.shape[:-1]) for buffer in wide]
    columns = elements // sum(heights) // _ALIGNED * _ALIGNED
    if columns * item_bytes(dtype) % _PAGE_PART == 0:
        columns -= _ALIGNED
    if columns <= 0:
        raise UnkeptError("it keeps too many rows for the stack of a thread")
    rows = Buffer("rows", (elements,), dtype, "local")
    first = {buffer: sum(heights[:number]) for number, buffer in enumerate(wide)}

    def move(buffer: Buffer, at: Exprs) -> tuple[Buffer, Exprs] | None:
        if buffer not in first:
            return None
        row: Expr = at[0] * 0
        for extent, index in zip(buffer.shape[:-1], at[:-1], strict=True):
            row = row * extent + index
        return rows, ((row + first[buffer]) * columns + at[-1],)

    body = rewrite(function.body, {Allocate: lambda scope: scope.body if scope.buffer in first else None})
    workspace = tuple(buffer for buffer in function.workspace if buffer not in first)
    return replace(function, body=redirect(body, move), workspace=workspace), KeptRows(rows, extent, columns)


def _extent_of(body: Stmt, wide: Sequence[Buffer], classes: Sequence[AxisClass]) -> int:
    """The extent of the last axis of the buffers. Raises: UnkeptError if there are several."""
    columns = (at[-1] for buffer, at, _ in accesses_in(body) if buffer in wide)
    names = {var.name.partition(".")[0] for var in variables(*columns)}
    known = [item for item in (class_in(name, classes) for name in names) if item is not None]
    extents = {str(item.extent): item.extent for item in known if item.extent is not None}
    if len(extents) != 1:
        raise UnkeptError("the arrays that it keeps have rows of several symbolic lengths")
    return extents.popitem()[1]
