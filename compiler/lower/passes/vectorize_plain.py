"""Vectorize plain innermost loops over contiguous elements that the schedule does not annotate.

before: for i: for k: for j: c[i, j] = c[i, j] + a[i, k] * b[k, j]
after:  for i: for k: vector j: c[i, j] = c[i, j] + a[i, k] * b[k, j]
"""

from dataclasses import replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import flat_index, stride_of
from retune.compiler.ir.expr import Select
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import accesses_of, rewrite_down
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store, exprs_of, is_temporary
from retune.compiler.ir.visit import find, uses


def vectorize_plain(function: LoopFunction, vector_bytes: int) -> LoopFunction:
    """Vectorize serial loops whose iterations each compute one element, next to the previous, from elements that are
    fixed or contiguous. Each element is computed as before.
    """

    def on_loop(loop: For, _: Ranges) -> Stmt | None:
        if loop.kind is LoopKind.VECTOR:
            return loop
        store = loop.body
        plain = loop.kind is LoopKind.SERIAL and isinstance(store, Store) and _is_plain(loop, store, vector_bytes)
        return replace(loop, kind=LoopKind.VECTOR) if plain else None

    return replace(function, body=rewrite_down(function.body, {For: on_loop}))


def _is_plain(loop: For, store: Store, vector_bytes: int) -> bool:
    if loop.extent * item_bytes(store.buffer.dtype) < vector_bytes or is_temporary(store.buffer):
        return False
    element = flat_index(store.buffer.shape, store.indices)
    for buffer, indices, written in accesses_of(store):
        if stride_of(buffer, indices, loop.var) not in ((1,) if written else (0, 1)):
            return False
        # No iteration may read what another wrote: lanes are computed together.
        if buffer == store.buffer and flat_index(buffer.shape, indices) != element:
            return False
    return not any(uses(choice.condition, loop.var) for choice in find(Select, *exprs_of(store)))
