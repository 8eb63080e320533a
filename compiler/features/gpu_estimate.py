"""Estimates the cycles of a statement whose loops are bound to GPU threads, and what limits it.

The estimate is analytical. A statement takes the longest of its arithmetic, shared-memory and global-memory times plus
a part of the others. Each is spread over the multiprocessors that have blocks, and grows where there are too few warps
to hide latency.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.features.buffers import Columns, pick
from retune.compiler.features.footprint import Footprint
from retune.compiler.features.nest import Flags, Floats, Nest, product_where
from retune.compiler.features.warp import SECTOR, warp_access
from retune.compiler.gpu_facts import GpuFacts
from retune.compiler.ir.kernel import WARP
from retune.compiler.schedule.state import Annotation
from retune.compiler.te.tensor import Tensor

_MOST_REGISTERS = 255.0
"""Of a thread (CUDA C++ Programming Guide, technical specifications per compute capability)."""

_SPILL = 8.0
"""How many times longer the arithmetic takes when nothing fits the registers."""

# Little's law: four schedulers that each start an operation a cycle, whose result comes after four (`_ADD_CYCLES`).
_PIPELINE = 16.0
"""Independent operations that a multiprocessor has to find in its warps to be busy."""

MEMORY_CYCLES = 600.0
"""Cycles before what is asked of memory comes."""

CACHE_RATIO = 2.5
"""How much more a cycle the shared cache gives than memory."""

_LAUNCH_SECONDS = 2e-6
_OVERLAP = 0.25
"""The share of the shorter of the times that is not hidden by the longest."""

_TOGETHER = (Annotation.THREAD_X, Annotation.THREAD_Y, Annotation.THREAD_Z, Annotation.VTHREAD)
_BLOCKS = (Annotation.BLOCK_X, Annotation.BLOCK_Y, Annotation.BLOCK_Z)


@dataclass(frozen=True, slots=True)
class Launched:
    """How a kernel runs: arrays (B,), one entry for each launch."""

    blocks: Floats
    """Of the grid."""
    threads: Floats
    """Of a block."""
    warps: Floats
    """Of a block, the last of them partly idle where the threads are no multiple of a warp."""
    idle: Floats
    """Lanes of those warps for each thread: 1 where no lane is idle."""
    registers: Floats
    """Of a thread, as estimated: more than it can have where the kernel spills."""
    resident: Floats
    """Blocks that fit a multiprocessor at a time; 0 where not even one does."""
    rounds: Floats
    """Blocks of the multiprocessor that has most of them."""

    @classmethod
    def of(cls, launch: Mapping[str, Floats | float], facts: GpuFacts) -> "Launched":
        """From the columns of `gpu_columns`."""
        blocks = np.prod([np.asarray(launch[f"gpu_blocks_{axis}"]) for axis in "xyz"], axis=0)
        threads = np.prod([np.asarray(launch[f"gpu_threads_{axis}"]) for axis in "xyz"], axis=0)
        warps = np.ceil(threads / WARP)
        registers = np.asarray(launch["gpu_registers"])
        taken = np.minimum(registers, _MOST_REGISTERS)
        resident = facts.resident(
            *(np.asarray(each, np.int64) for each in (threads, taken, launch["gpu_shared_bytes"]))
        )
        rounds = np.ceil(blocks / facts.multiprocessors)
        return cls(blocks, threads, warps, warps * WARP / threads, registers, resident.astype(np.float64), rounds)

    @property
    def active(self) -> Floats:
        """Warps that run at a time."""
        return np.asarray(np.minimum(np.maximum(self.resident, 1), self.rounds) * self.warps)

    @property
    def each_share(self) -> Floats:
        """The share of all work that the multiprocessor with most blocks does, which is the last to end."""
        return self.rounds / self.blocks

    @property
    def spilling(self) -> Floats:
        """How many times longer everything takes for want of registers, or of room for one block."""
        return np.where((self.registers > _MOST_REGISTERS) | (self.resident == 0), _SPILL, 1.0)


def gpu_estimates(nest: Nest, moved: "Moved", launched: Launched, cost: float, facts: GpuFacts) -> Columns:
    """Columns of the groups "estimate" and "gpu" of a statement that no tensor cores do, of `cost` operations for one
    result.
    """
    chains = np.maximum(1.0, product_where(nest.tile, nest.extents))
    active, each_share = launched.active, launched.each_share
    hidden = np.minimum(1.0, active * np.minimum(chains, 8.0) / _PIPELINE)
    runs = nest.inner[0] / product_where(moved.repeated, nest.extents)
    spilling = np.where(launched.registers > _MOST_REGISTERS, _SPILL, 1.0)
    arithmetic = runs * cost * launched.idle / facts.lanes * each_share / hidden * spilling
    in_block = moved.shared_cycles * each_share
    a_cycle = facts.bandwidth / facts.clock
    # Little's law: bytes in flight over latency is the bandwidth that can be reached.
    in_flight = active * WARP * moved.width * facts.multiprocessors
    flying = np.minimum(1.0, in_flight / (MEMORY_CYCLES * a_cycle))
    waited = moved.read_bytes / np.maximum(flying, 1e-3) + moved.written_bytes  # no thread waits for what is written
    outside = np.maximum(moved.cache_bytes / CACHE_RATIO, waited) / a_cycle
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
    """What a statement moves: cycles of shared memory of all multiprocessors together, bytes of the shared cache, and
    those read from memory and written to it, the longest queue at a bank, the bytes that each thread asks for at once,
    and the loops that the threads of a block share, so that they are not repeated.
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
        self.repeated = _repeated(nest, footprints, shared)
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
            asked = requests * access.sectors * SECTOR
            once = footprint.elements[0] * footprint.element_bytes
            inside = pick(footprint.elements, np.full(nest.count, _inside_blocks(nest), dtype=np.intp))
            # Memory moves whole sectors: the unused part of each is paid too.
            wasted = np.maximum(1.0, access.sectors * SECTOR / np.maximum(access.width * WARP, SECTOR))
            within = np.minimum(asked, launched.blocks * inside * footprint.element_bytes * wasted)
            self.cache_bytes += within
            # What the shared cache holds comes from memory once.
            moved = np.where(once <= facts.cache, np.minimum(once * wasted, within), within)
            if footprint.is_read:
                self.read_bytes += moved
            if footprint.is_write:  # the cache joins what is written of a sector before that goes to memory
                self.written_bytes += np.minimum(once, moved)
            self.width = np.maximum(self.width, access.width)


def _inside_blocks(nest: Nest) -> int:
    """The level that one block goes through."""
    bound = [index for index, loop in enumerate(nest.source.loops) if loop.annotation in _BLOCKS]
    return bound[-1] + 1 if bound else 0


def _repeated(nest: Nest, footprints: Sequence[Footprint], shared: frozenset[Tensor]) -> Flags:
    """Loops (L, B) around a stage that the threads of a block compute together, over these threads: each of them has a
    part of the stage and not all of it.
    """
    together = any(footprint.is_write and footprint.tensor in shared for footprint in footprints)
    bound = [
        together and index < nest.depth - nest.source.own and loop.annotation in _TOGETHER
        for index, loop in enumerate(nest.source.loops)
    ]
    return np.array(bound, dtype=np.bool_)[:, None] & nest.real


def _accesses(nest: Nest, footprint: Footprint, repeated: Flags) -> Floats:
    """How often threads access a buffer: what a register tile or virtual threads read again is read once, what a
    reduction sums is written once, and `repeated` loops do not run.
    """
    virtual = np.array([loop.annotation is Annotation.VTHREAD for loop in nest.source.loops], dtype=np.bool_)
    kept = (nest.tile | virtual[:, None]) & ~footprint.moving
    if footprint.is_write:
        kept = kept | np.array(nest.reduce, dtype=np.bool_)[:, None]
    return np.asarray(nest.inner[0] / product_where((kept & nest.real) | repeated, nest.extents))
