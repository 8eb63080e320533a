"""Panels of default schedules: strips of a factor of halves, converted to float32 once for many rows of a product; a
small other factor is converted before.

before: for i.0: for j.0: for k: …
after:  q[i, k] = float32(a[i, k]); for i.0.0: for j.0: {p[k, j.1] = float32(b[k, j]); for i.0.1: for k: … p[k, j.1] …}
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from retune.compiler.core.dtype import HALVES
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.default.stages import NEAR_BYTES, axes_of, axis_name, bytes_of, extent_of, loop_number
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, Fuse, Split
from retune.compiler.te.tensor import ComputeOp

_LEAST_ROWS = 48
"""Rows that make up for a panel: a vector of it is converted and stored in 3 cycles, and multiplied in half a cycle a
row (AVX-512).
"""
PANEL_ELEMENTS = 5 << 13
"""Most elements of a panel, which stays in a second-level cache beside the other factor; kernels convert the vectors of
longer strips whenever they read them (2304 x 32: 0.95 of float32's speed, by a panel 0.77 to 0.92).
"""
_MOST_ELEMENTS = 1 << 17
"""Most elements of the other factor for a copy before the product: 1.02 to 1.2 times as fast below, 0.93 to 0.97 times
above (measured).
"""
_LEAST_STRIPS = 4
"""Strips that read the other factor, and make up for a copy of it."""
_SHARES = 4
"""Iterations of a parallel loop for each thread."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Strips of the stage `factor` that product `product` reads, copied for the rows inside the first `loops` of the
    spatial loops of stage `outer`; the loops in `shared` index the factor, of which a matrix has so many `strips`.
    """

    factor: int
    product: int
    outer: int
    shared: frozenset[str]
    loops: int = 0
    strips: int = 1

    def order_loops(self, state: State, tile: Sequence[str], cores: int) -> tuple[State, list[str], "Panel"]:
        """The spatial loops outside the register tile `tile`: rows inside strips, in blocks that suit the caches and as
        many threads as there are `cores`.
        """
        loops = state.stages[self.outer].iters
        extents = {
            loop.name: extent_of(state, self.outer, loop.name) for loop in loops if loop.kind is IterKind.SPATIAL
        }
        outside = [name for name in extents if name not in tile and axis_name(name) in self.shared]
        inside = [name for name in extents if name not in tile and axis_name(name) not in self.shared]
        rows = prod(extents[name] for name in extents if axis_name(name) not in self.shared)
        size = max(bytes_of(state, source) for source, _ in state.dag.reads[self.product] if source != self.factor)
        needed = ceil(max(_SHARES * cores / prod(extents[name] for name in outside), size / NEAR_BYTES))
        most, blocks = rows // _LEAST_ROWS, list[str]()
        while needed > 1 and inside:
            name = inside.pop(0)
            extent = extents[name]
            fitting = [count for count in range(1, min(extent, most) + 1) if extent % count == 0]
            count = next((count for count in fitting if count >= needed), fitting[-1])
            if 1 < count < extent:
                state = state.apply(Split(self.outer, loop_number(state, self.outer, name), extent, (extent // count,)))
                inside.insert(0, f"{name}.1")
                name, needed = f"{name}.0", 1
            elif count == 1 < extent:
                inside.insert(0, name)
                break
            blocks.append(name)
            needed, most = ceil(needed / count), most // count
        outer = [*outside[:-1], *blocks, *outside[-1:], *inside]
        strips = prod(extents[name] for name in outside if axis_name(name) == axis_name(tile[-1]))
        return state, outer, replace(self, loops=len(outside) + len(blocks), strips=strips)

    def copy(self, state: State, fused: int) -> State:
        """The copies, after fusing the outermost `fused` loops. Without loops that of a strip is the whole factor."""
        other = self._other_input(state)
        state = state.apply(CacheRead(self.factor, "local", (self.product,)))
        copied = self.factor + 1  # Later stages have the next number.
        if self.loops:
            state = state.apply(ComputeAt(copied, self.outer + 1, self.loops - max(fused, 1)))
        state = state.apply(Annotate(copied, len(state.stages[copied].iters) - 1, Annotation.VECTORIZE))
        if other is not None:
            copied = other + 1 + (other > self.factor)
            state = state.apply(CacheRead(copied - 1, "local", (self.product + 1,)))
            rows = tuple(range(len(state.stages[copied].iters) - 1))
            state = state.apply(Fuse(copied, rows)) if len(rows) > 1 else state
            state = state.apply(Annotate(copied, 0, Annotation.PARALLEL)).apply(
                Annotate(copied, 1, Annotation.VECTORIZE)
            )
        return state

    def _other_input(self, state: State) -> int | None:
        """The other factor, if it is a small input of halves that many strips read."""
        others = {source for source, _ in state.dag.reads[self.product]} - {self.factor}
        ops = {source: op for source in others if not isinstance(op := state.dag.ops[source], ComputeOp)}
        small = [source for source, op in ops.items() if op.dtypes[0] in HALVES and prod(op.shape) <= _MOST_ELEMENTS]
        return small[0] if small and self.strips >= _LEAST_STRIPS else None


def find_panel(state: State, stage_id: int, outer_stage: int) -> Panel | None:
    """The panel of a product of halves with enough rows, whose loops are those of `outer_stage`."""
    own_axes, axes = axes_of(state, stage_id), axes_of(state, outer_stage)
    factor, indices = next(read for read in state.dag.reads[stage_id] if read[1] and read[1][-1] == own_axes[-1])
    used = {node for index in indices for node in walk(index)}
    shared = {outer.name for own, outer in zip(own_axes, axes, strict=True) if own in used}
    rows = prod(axis.extent for axis in axes if axis.name not in shared)
    return Panel(factor, stage_id, outer_stage, frozenset(shared)) if rows >= _LEAST_ROWS else None
