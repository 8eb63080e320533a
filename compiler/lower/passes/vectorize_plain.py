"""Vectorize plain innermost loops over contiguous elements that the schedule does not annotate.

before: for i: for k: for j: c[i, j] = c[i, j] + a[i, k] * b[k, j]
after:  for i: for k: vector j: c[i, j] = c[i, j] + a[i, k] * b[k, j]
"""

from dataclasses import dataclass, replace

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import flat_index, stride_of
from retune.compiler.ir.expr import Select
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.rewrite import accesses_of, rewrite_down
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, Stmt, Store, exprs_of, is_temporary
from retune.compiler.ir.visit import find, uses


@dataclass(frozen=True, slots=True)
class VectorizePlain:
    """Vectorizes serial loops whose iterations each compute one element, next to the previous, from elements that are
    fixed or contiguous. Each element is computed as before.
    """

    vector_bytes: int = 64
    name: str = "vectorize-plain"

    def apply(self, function: LoopFunction) -> LoopFunction:
        return replace(function, body=rewrite_down(function.body, {For: self._on_loop}))

    def _on_loop(self, loop: For, _: Ranges) -> Stmt | None:
        if loop.kind is LoopKind.VECTOR:
            return loop
        if loop.kind is not LoopKind.SERIAL or not isinstance(loop.body, Store) or not self._is_plain(loop, loop.body):
            return None
        return replace(loop, kind=LoopKind.VECTOR)

    def _is_plain(self, loop: For, store: Store) -> bool:
        if loop.extent * item_bytes(store.buffer.dtype) < self.vector_bytes or is_temporary(store.buffer):
            return False
        element = flat_index(store.buffer.shape, store.indices)
        for buffer, indices, written in accesses_of(store):
            if stride_of(buffer, indices, loop.var) not in ((1,) if written else (0, 1)):
                return False
            # No iteration may read what another wrote: lanes are computed together.
            if buffer == store.buffer and flat_index(buffer.shape, indices) != element:
                return False
        return not any(uses(choice.condition, loop.var) for choice in find(Select, *exprs_of(store)))
