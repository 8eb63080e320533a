"""Estimates the cycles of a statement whose loops are bound to GPU threads, and what limits it.

The estimate is analytical. A statement takes the longest of its arithmetic, shared-memory and global-memory times plus
a part of the others. Each is spread over the multiprocessors that have blocks, and grows where there are too few warps
to hide latency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.gpu_facts import MOST_REGISTERS, GpuFacts
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.model.features.buffers import Columns, pick
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.nest import Flags, Floats, Nest, product_where
from retune.compiler.model.features.warp import SECTOR, warp_access
from retune.compiler.schedule.state import BLOCK_LOOPS, THREAD_LOOPS, Annotation
from retune.compiler.te.tensor import Tensor

_SPILL = 8.0
"""Slowdown of arithmetic when nothing fits the registers."""

# Little's law: four schedulers that each start an operation a cycle, with a latency of four (`_ADD_CYCLES`).
_PIPELINE = 16.0
"""Independent operations that keep a multiprocessor busy."""

MEMORY_CYCLES = 600.0
"""Latency of memory in cycles."""

CACHE_RATIO = 2.5
"""Bandwidth of the shared cache over that of memory."""

_LAUNCH_SECONDS = 2e-6
_OVERLAP = 0.25
"""The share of the shorter times that the longest does not hide."""

_TOGETHER = (*THREAD_LOOPS, Annotation.VTHREAD)


@dataclass(frozen=True, slots=True)
class Launched:
    """The launch of a kernel: arrays (B,), one entry a program."""

    blocks: Floats
    """Blocks of the grid."""
    threads: Floats
    """Threads of a block."""
    warps: Floats
    """Warps of a block, the last partly idle where the threads are no multiple of a warp."""
    idle: Floats
    """Lanes of those warps for each thread: 1 where no lane is idle."""
    registers: Floats
    """Estimated registers of a thread: more than the limit where the kernel spills."""
    resident: Floats
    """Blocks that fit a multiprocessor at a time; 0 where not even one does."""
    rounds: Floats
    """Blocks of the busiest multiprocessor."""

    @classmethod
    def of(cls, launch: Mapping[str, Floats | float], facts: GpuFacts) -> "Launched":
        blocks = np.prod([np.asarray(launch[f"gpu_blocks_{axis}"]) for axis in "xyz"], axis=0)
        threads = np.prod([np.asarray(launch[f"gpu_threads_{axis}"]) for axis in "xyz"], axis=0)
        warps = np.ceil(threads / WARP)
        registers = np.asarray(launch["gpu_registers"])
        taken = np.minimum(registers, float(MOST_REGISTERS))
        resident = facts.resident(
            *(np.asarray(value, np.int64) for value in (threads, taken, launch["gpu_shared_bytes"]))
        )
        rounds = np.ceil(blocks / facts.multiprocessors)
        return cls(blocks, threads, warps, warps * WARP / threads, registers, resident.astype(np.float64), rounds)

    @property
    def active(self) -> Floats:
        return np.asarray(np.minimum(np.maximum(self.resident, 1), self.rounds) * self.warps)

    @property
    def each_share(self) -> Floats:
        """The share of all work of the multiprocessor with most blocks, which ends last."""
        return self.rounds / self.blocks

    @property
    def spilling(self) -> Floats:
        """Slowdown for lack of registers, or of room for one block."""
        return np.where((self.registers > MOST_REGISTERS) | (self.resident == 0), _SPILL, 1.0)


def gpu_estimates(nest: Nest, moved: "Moved", launched: Launched, cost: float, facts: GpuFacts) -> Columns:
    """Columns of the groups "estimate" and "gpu" of a statement without tensor cores, of `cost` operations a result."""
    chains = np.maximum(1.0, product_where(nest.tile, nest.extents))
    active, each_share = launched.active, launched.each_share
    hidden = np.minimum(1.0, active * np.minimum(chains, 8.0) / _PIPELINE)
    runs = nest.inner[0] / product_where(moved.repeated, nest.extents)
    spilling = np.where(launched.registers > MOST_REGISTERS, _SPILL, 1.0)
    arithmetic = runs * cost * launched.idle / facts.lanes * each_share / hidden * spilling
    in_block = moved.shared_cycles * each_share
    bytes_per_cycle = facts.bandwidth / facts.clock
    # Little's law: bytes in flight over latency is the bandwidth that can be reached.
    in_flight = active * WARP * moved.width * facts.multiprocessors
    bandwidth_share = np.minimum(1.0, in_flight / (MEMORY_CYCLES * bytes_per_cycle))
    waited = (
        moved.read_bytes / np.maximum(bandwidth_share, 1e-3) + moved.written_bytes
    )  # threads do not wait for stores
    outside = np.maximum(moved.cache_bytes / CACHE_RATIO, waited) / bytes_per_cycle
    parts = np.stack(np.broadcast_arrays(arithmetic, in_block, outside))
    cycles = parts.max(axis=0) * (1.0 - _OVERLAP) + _OVERLAP * parts.sum(axis=0)
    launches = 0.0 if nest.source.attached else _LAUNCH_SECONDS * facts.clock
    yield "estimate_arithmetic", arithmetic
    yield "estimate_memory", np.maximum(in_block, outside)
    yield "estimate_cycles", np.where(launched.resident > 0, cycles, cycles * _SPILL) + launches
    yield "gpu_active_warps", active
    yield "gpu_waves", np.ceil(launched.blocks / (np.maximum(launched.resident, 1) * facts.multiprocessors))
    yield "gpu_sector_bytes", moved.cache_bytes
    yield "gpu_bank_conflicts", moved.conflicts


class Moved:
    """The traffic of a statement: shared-memory cycles summed over all multiprocessors, bytes of the shared cache,
    bytes read from memory and written to it, the longest queue at a bank, bytes per access of a thread, and the loops
    that the threads of a block divide among them, so that they are not repeated.
    """

    def __init__(
        self,
        nest: Nest,
        footprints: Sequence[Footprint],
        shared: frozenset[Tensor],
        launched: Launched,
        facts: GpuFacts,
    ) -> None:
        self.shared_cycles = np.zeros(nest.count)
        self.shared_requests = np.zeros(nest.count)
        self.cache_bytes = np.zeros(nest.count)
        self.read_bytes = np.zeros(nest.count)
        self.written_bytes = np.zeros(nest.count)
        self.conflicts = np.zeros(nest.count)
        self.width = np.ones(nest.count)
        self.repeated = _divided_loops(nest, footprints, shared)
        for footprint in footprints:
            if footprint.local and footprint.tensor not in shared:
                continue  # a register
            access = warp_access(nest, footprint)
            accesses = _accesses(nest, footprint, self.repeated)
            requests = accesses * footprint.element_bytes / access.width * launched.idle / WARP
            if footprint.tensor in shared:
                self.shared_cycles += requests * access.conflicts
                self.shared_requests += requests
                self.conflicts = np.maximum(self.conflicts, access.conflicts)
                continue
            requested = requests * access.sectors * SECTOR
            distinct = footprint.elements[0] * footprint.element_bytes
            inside = pick(footprint.elements, np.full(nest.count, _inside_blocks(nest), dtype=np.intp))
            # Memory moves whole sectors: the unused part of each costs too.
            wasted = np.maximum(1.0, access.sectors * SECTOR / np.maximum(access.width * WARP, SECTOR))
            within = np.minimum(requested, launched.blocks * inside * footprint.element_bytes * wasted)
            self.cache_bytes += within
            # Memory serves what the shared cache holds only once.
            moved = np.where(distinct <= facts.cache, np.minimum(distinct * wasted, within), within)
            if footprint.is_read:
                self.read_bytes += moved
            if footprint.is_write:  # the cache combines the stores to a sector before they go to memory
                self.written_bytes += np.minimum(distinct, moved)
            self.width = np.maximum(self.width, access.width)


def _inside_blocks(nest: Nest) -> int:
    """The level of one block's iterations."""
    bound = [index for index, loop in enumerate(nest.source.loops) if loop.annotation in BLOCK_LOOPS]
    return bound[-1] + 1 if bound else 0


def _divided_loops(nest: Nest, footprints: Sequence[Footprint], shared: frozenset[Tensor]) -> Flags:
    """Loops (L, B) around a stage that the threads of a block compute together, over these threads: each thread has a
    part of the stage, not all of it.
    """
    together = any(footprint.is_write and footprint.tensor in shared for footprint in footprints)
    bound = [
        together and index < nest.depth - nest.source.own and loop.annotation in _TOGETHER
        for index, loop in enumerate(nest.source.loops)
    ]
    return np.array(bound, dtype=np.bool_)[:, None] & nest.real


def _accesses(nest: Nest, footprint: Footprint, repeated: Flags) -> Floats:
    """Accesses of a buffer by all threads: what a register tile or virtual threads read repeatedly is read once, what a
    reduction sums is written once, and `repeated` loops do not run.
    """
    virtual = np.array([loop.annotation is Annotation.VTHREAD for loop in nest.source.loops], dtype=np.bool_)
    reused = (nest.tile | virtual[:, None]) & ~footprint.moving
    if footprint.is_write:
        reused = reused | np.array(nest.reduce, dtype=np.bool_)[:, None]
    return np.asarray(nest.inner[0] / product_where((reused & nest.real) | repeated, nest.extents))
