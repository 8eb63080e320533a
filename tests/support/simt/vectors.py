"""Checks the alignment of vector accesses against what their index expressions prove.

Code generation relies on this proof when it emits a single vector load or store.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.alignment import first_alignment
from retune.compiler.ir.expr import Buffer, Expr, Load
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.stmt import For, LoopKind, Store
from retune.compiler.ir.visit import walk


def astray(loop: For, value: Callable[[Expr], NDArray[Any]], threads: int) -> tuple[Buffer, int, int] | None:
    """The buffer of such a vector, how many elements it was taken to be aligned to, and the number of the thread, of so
    many, that moves it; `value` is what an expression is for every thread as the loop starts.
    """
    if loop.kind is not LoopKind.VECTOR or not isinstance(loop.body, Store):
        return None
    for buffer, indices in _accesses(loop.body):
        apart = first_alignment(buffer, indices, loop.var) // item_bytes(buffer.dtype)
        if apart > 1 and not any(isinstance(node, Load) for index in indices for node in walk(index)):
            place = value(as_index(flat_index(buffer.shape, indices)))
            wrong = np.broadcast_to(np.asarray(place % apart != 0), (threads,))
            if wrong.any():
                return buffer, apart, int(np.argmax(wrong))
    return None


def _accesses(stmt: Store) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    yield stmt.buffer, stmt.indices
    for node in walk(stmt.value):
        if isinstance(node, Load):
            yield node.buffer, node.indices
