"""The kernels of B GPU programs, and the resources each asks for.

It computes what `retune.compiler.lower.gpu` makes of each program, in arrays (B,).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from retune.compiler.core.gpu_facts import GpuFacts, facts_of
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.lower.gpu.build_kernels import MOST_HELD
from retune.compiler.lower.gpu.limits import Limit
from retune.compiler.schedule.bounds import Loop
from retune.compiler.schedule.contraction import LEFT, RIGHT
from retune.compiler.schedule.state import BLOCK_LOOPS, SHARED_SUFFIX, THREAD_LOOPS, Annotation, IterKind, Number
from retune.compiler.schedule.statements import StageNest
from retune.compiler.schedule.tensor_nests import copies_of, in_groups, product_of, thread_bytes
from retune.compiler.search.genome import Mask
from retune.compiler.search.register_tile import Counts, held_bytes, point_bytes


def kernels_of(nests: Sequence[StageNest], count: int, facts: GpuFacts | None = None) -> list["DeviceKernel"]:
    """The kernels in execution order: a root stage and the stages in its loops each. `facts`: by default a
    common GPU
    """
    stages_of: dict[int, list[StageNest]] = {}
    for nest in nests:
        stages_of.setdefault(nest.loops[0].key[0] if nest.loops else nest.stage, []).append(nest)
    return [DeviceKernel(tuple(stages_of[root]), count, facts or facts_of("")) for root in sorted(stages_of)]


def own_loops(nest: StageNest) -> Sequence[Loop]:
    return nest.loops[len(nest.loops) - nest.own :]


def outer_loops(nest: StageNest) -> Sequence[Loop]:
    """The loops of other stages around the stage."""
    return nest.loops[: len(nest.loops) - nest.own]


def iterations(loops: Iterable[Loop], annotations: Sequence[Annotation], count: int) -> Counts:
    """Product of the extents (B,) of the loops that have one of the annotations."""
    total: Number = np.ones(count, dtype=np.int64)
    for loop in loops:
        if loop.annotation in annotations:
            total = total * loop.extent
    return np.asarray(total)


@dataclass(frozen=True)
class DeviceKernel:
    """The statements of one kernel of `count` programs."""

    nests: tuple[StageNest, ...]
    count: int
    facts: GpuFacts

    @cached_property
    def grid(self) -> tuple[Counts, ...]:
        """Blocks along x, y and z."""
        return tuple(self._most(kind) for kind in BLOCK_LOOPS)

    @cached_property
    def block(self) -> tuple[Counts, ...]:
        """Threads along x, y and z."""
        return tuple(self._most(kind) for kind in THREAD_LOOPS)

    @property
    def threads(self) -> Counts:
        return np.asarray(prod(self.block, start=np.int64(1)))

    @cached_property
    def product(self) -> StageNest | None:
        return product_of(self.nests)

    @cached_property
    def memory(self) -> tuple[Counts, Counts]:
        """Bytes of shared memory per block, and of local buffers per thread."""
        shared, local = np.zeros(self.count, dtype=np.int64), np.zeros(self.count, dtype=np.int64)
        for nest in self.nests:
            if nest is self.product:
                local = local + thread_bytes(nest, self.facts, self.count)
                continue
            # A thread has the local buffers of all its virtual threads, see `expand_virtual_threads`.
            virtual = iterations(nest.loops, (Annotation.VTHREAD,), self.count)
            if nest.attached:
                size = self._elements(nest)
                if _is_shared(nest):
                    copies = copies_of(nest, self.nests, self.count)
                    shared = shared + size * point_bytes(nest) * copies
                else:
                    local = local + size * held_bytes(nest) * virtual
            together, own = self._reduction_bytes(nest)
            shared, local = shared + together, local + own * virtual
        return shared, local

    def _elements(self, nest: StageNest) -> Counts:
        """Elements of a stage's buffer, padding included."""
        write, product = nest.write, self.product
        size: Number = np.ones(self.count, dtype=np.int64)
        for extent in write.shape if write.strides is None else (write.shape[0], write.strides[0]):
            size = size * extent
        if product is None or not nest.op.name.endswith((LEFT, RIGHT)):
            return np.asarray(size)
        # Groups of warps read rows without padding.
        lines, neighbors = (np.asarray(extent) for extent in write.shape[1:])
        return np.where(in_groups(product, self.facts, self.count), lines * neighbors, size)

    def demand(self) -> dict[Limit, Counts]:
        """The kernel's use of every limited resource."""
        virtual = [iterations(own_loops(nest), (Annotation.VTHREAD,), self.count) for nest in self.nests]
        shared, local = self.memory
        return {
            Limit.VIRTUAL_THREADS: np.max(virtual, axis=0),
            Limit.BLOCKS_X: self.grid[0],
            Limit.BLOCKS_Y: self.grid[1],
            Limit.BLOCKS_Z: self.grid[2],
            Limit.THREADS_X: self.block[0],
            Limit.THREADS_Y: self.block[1],
            Limit.THREADS_Z: self.block[2],
            Limit.THREADS: self.threads,
            Limit.SHARED: shared,
            Limit.LOCAL: local,
        }

    def _most(self, kind: Annotation) -> Counts:
        # As `bind_threads` launches: the statement with the longest loop decides.
        return np.asarray(np.max([iterations(own_loops(nest), (kind,), self.count) for nest in self.nests], axis=0))

    def _reduction_bytes(self, nest: StageNest) -> tuple[Counts, Counts]:
        """Bytes of shared and of local memory that a cross-thread reduction needs."""
        nothing = np.zeros(self.count, dtype=np.int64)
        reducing = [loop for loop in own_loops(nest) if _is_reduction(loop) and loop.annotation in THREAD_LOOPS]
        points, item = _points(nest, self.count), held_bytes(nest)
        alone = nothing
        if item > point_bytes(nest) and (not nest.attached or _is_shared(nest)):
            few = nest.attached | (points <= MOST_HELD)
            alone = np.where((_reduction_iterations(nest, self.count) > 1) & few, points * item, 0)
        if not reducing:
            return nothing, alone
        each = {kind: iterations(reducing, (kind,), self.count) for kind in THREAD_LOOPS}
        across = np.asarray(prod(each.values(), start=np.int64(1)))
        others = [self._others(nest, kind) for kind in THREAD_LOOPS]
        around = np.asarray(prod(others, start=np.int64(1)))
        warps = self._in_warps(each, others)
        first = np.where(across > WARP, across // WARP, 0)
        # With shuffles only a partial result per warp goes through shared memory.
        shared = np.where(warps, around * first, around * across) * item
        local = (points + warps) * item
        return np.where(across > 1, shared, 0), np.where(across > 1, local, alone)

    def _others(self, nest: StageNest, dimension: Annotation) -> Counts:
        """Threads along `dimension` that reduce separate values."""
        own = iterations((loop for loop in own_loops(nest) if not _is_reduction(loop)), (dimension,), self.count)
        return np.where(own > 1, own, iterations(outer_loops(nest), (dimension,), self.count))

    def _in_warps(self, each: dict[Annotation, Counts], others: Sequence[Counts]) -> Mask:
        """Whether threads reduce with warp shuffles; see `retune.compiler.lower.gpu.cross_thread_reduction`."""
        extent, threads = each[Annotation.THREAD_X], self.threads
        alone = (each[Annotation.THREAD_Y] == 1) & (each[Annotation.THREAD_Z] == 1) & (extent > 1)
        whole = extent == self.block[0]
        for other, size in zip(others, self.block, strict=True):
            whole = whole & ((other == size) | (other == 1))
        small = (extent == threads) | (extent & (extent - 1) == 0)
        large = (threads % WARP == 0) & ((extent % WARP == 0) | (WARP % extent == 0))
        return np.asarray(alone & whole & np.where(threads <= WARP, small, large))


def _is_reduction(loop: Loop) -> bool:
    return loop.kind is IterKind.REDUCTION


def _is_shared(nest: StageNest) -> bool:
    """Whether the threads of a block share the results of a stage inside another stage's loops."""
    among_threads = any(loop.annotation in THREAD_LOOPS for loop in outer_loops(nest))
    return nest.op.name.endswith(SHARED_SUFFIX) or not among_threads


def _reduction_iterations(nest: StageNest, count: int) -> Counts:
    """Number of values that reduce to one result."""
    total: Number = np.ones(count, dtype=np.int64)
    for loop in own_loops(nest):
        total = total * loop.extent if _is_reduction(loop) else total
    return np.asarray(total)


def _points(nest: StageNest, count: int) -> Counts:
    """Results of a reduction inside its outermost reduction loop."""
    inside, total = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.int64)
    for loop in own_loops(nest):
        if _is_reduction(loop):
            inside = inside | (np.asarray(loop.extent) > 1)
        elif loop.annotation not in THREAD_LOOPS:
            total = np.where(inside, total * loop.extent, total)
    return total
