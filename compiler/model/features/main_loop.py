"""Analytical estimate for GPUs: the cycles of the main loop of a product that copies its factors into shared memory.

`tiled_estimate` (CUDA cores) and `tensor_estimate` (tensor cores) derive their loops from `MainLoop`. An iteration
takes as long as the busiest of arithmetic, schedulers, shared memory and the GPU's cache, but no less than one block
alone needs for its sequential steps, nor than its copies need, which may take as many iterations as the pipeline is
deep. Resident blocks fill each other's gaps.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import COPY_BYTES
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.gpu_estimate import CACHE_RATIO, MEMORY_CYCLES, Launched, Moved
from retune.compiler.model.features.nest import Flags, Floats, Nest
from retune.compiler.schedule.counts import OpCounts
from retune.compiler.schedule.state import BLOCK_LOOPS, Annotation
from retune.compiler.schedule.tensor_nests import pipeline_depth

PARTS = 4
"""Schedulers of a multiprocessor, each with its own lanes and tensor cores, for every fourth warp."""
MEETING_CYCLES = 40.0
"""Cycles of a barrier, and of each iteration's work around it."""
_COPY = 2.0
"""Instructions for the addresses of a copy, which change each iteration; quotients in them are extra."""
_PLAIN_COPY = 6.0
"""Instructions for an element that is not copied asynchronously: it is loaded and stored by itself."""
_OVERLAP = 0.1
"""The share of the other times that the longest does not hide."""

_CHANGES = tuple(field.name for field in fields(OpCounts) if field.name.startswith("float_"))
"""Operations that make a factor more than a copy."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a kernel: its row in the table of features, its loops and buffers, and its traffic."""

    row: int
    nest: Nest
    footprints: Sequence[Footprint]
    moved: Moved


class MainLoop(ABC):
    """The main loop of a product: an iteration copies a tile of each factor and multiplies earlier tiles.

    All numbers are arrays (B,), an entry for each of B programs. They are of one block and one iteration where a method
    does not say otherwise.

    `tiles`: tiles of a factor in flight or in use; 1 without a pipeline
    `iterations`: of a block
    `starts`: how often a block begins with an empty pipeline
    `ahead`: iterations from the start of a copy to the use of its tile
    `meeting`: cycles around the barrier in which nothing is multiplied
    `loading`: cycles after the barrier until the first multiplication
    `early`: the share of an iteration by which its copies must be complete before it begins
    """

    def __init__(self, product: Statement, factors: Sequence[Statement], launched: Launched, facts: GpuFacts) -> None:
        count = product.nest.count
        self.facts, self.launched, self.factors, self.product = facts, launched, factors, product
        self.tiles = pipeline_depth(product.nest.source, count)
        self.iterations: Floats = np.ones(count)
        self.starts: Floats = np.ones(count)
        self.ahead: Floats = np.maximum(self.tiles - 1.0, 1.0)
        self.meeting: Floats = np.full(count, MEETING_CYCLES)
        self.loading: Floats = np.zeros(count)
        self.early: Floats = np.zeros(count)

    @abstractmethod
    def multiplying(self, blocks: Floats) -> Floats:
        """Cycles of arithmetic of the scheduler with most warps, when `blocks` blocks share the multiprocessor."""

    @abstractmethod
    def chain(self) -> Floats:
        """Cycles that the steps of the sum take one after the other, for a warp that has its scheduler to itself."""

    @abstractmethod
    def instructions(self) -> Floats:
        """Instructions of a warp in an iteration."""

    @abstractmethod
    def shared_cycles(self) -> Floats:
        """Cycles in which shared memory is read and written."""

    def columns(self) -> Iterator[tuple[int, Columns]]:
        """(row, columns) of the product and of each factor; the columns are the group "estimate" of the table of
        features. The product gets the cycles of the loop in which arithmetic is busy; the factors share the others.
        """
        multiplying, total = self.cycles()
        yield (
            self.product.row,
            _columns(multiplying, multiplying, self.shared_cycles() * self.iterations * self.launched.rounds),
        )
        for factor in self.factors:
            outside = factor.moved.cache_bytes / (CACHE_RATIO * self.facts.bandwidth / self.facts.clock)
            yield factor.row, _columns((total - multiplying) / len(self.factors), np.zeros_like(total), outside)

    def cycles(self) -> tuple[Floats, Floats]:
        """Of the multiprocessor with most blocks, for all of them: cycles with busy arithmetic, and all cycles."""
        launched = self.launched
        resident = np.minimum(np.maximum(launched.resident, 1.0), launched.rounds)
        # Waves of resident blocks; the last wave may be smaller and hides less latency.
        full_waves, last_blocks = np.floor(launched.rounds / resident), np.mod(launched.rounds, resident)
        last_wave = np.maximum(last_blocks, 1.0)
        multiplying = full_waves * self.multiplying(resident) + (last_blocks > 0) * self.multiplying(last_wave)
        iterations = full_waves * self.iteration(resident) + (last_blocks > 0) * self.iteration(last_wave)
        started = (full_waves + (last_blocks > 0)) * MEMORY_CYCLES * self.starts
        read = self.read() / (self.facts.bandwidth / self.facts.clock)
        spilling = launched.spilling
        multiplying = multiplying * self.iterations * spilling
        total = _overlapping(iterations * self.iterations + started, read) * spilling
        return multiplying, np.maximum(total, multiplying)

    def iteration(self, blocks: Floats) -> Floats:
        """Cycles of one iteration of `blocks` resident blocks on one multiprocessor."""
        one_block = np.maximum(self.busy(np.ones_like(blocks)), self.chain()) + self.meeting + self.loading
        # An iteration waits for its copies as long as earlier iterations have not hidden them.
        pipelined = np.maximum(one_block, (MEMORY_CYCLES + one_block * self.early) / self.ahead)
        is_pipelined = (self.tiles > 1) & self.asynchronous()
        latency = np.where(is_pipelined, pipelined, one_block + MEMORY_CYCLES)
        return np.asarray(np.maximum(self.busy(blocks), latency))

    def busy(self, blocks: Floats) -> Floats:
        """Cycles in which the busiest unit is busy in one iteration of `blocks` resident blocks."""
        warps = np.ceil(blocks * self.launched.warps / PARTS)
        bytes_per_cycle = CACHE_RATIO * self.facts.bandwidth / self.facts.clock / self.facts.multiprocessors
        cache_bytes = sum(statement.moved.cache_bytes for statement in (self.product, *self.factors))
        cache_bytes = cache_bytes / self.launched.blocks / self.iterations
        return _overlapping(
            self.multiplying(blocks),
            warps * self.instructions(),
            blocks * self.shared_cycles(),
            blocks * cache_bytes / bytes_per_cycle,
        )

    def all_copies(self) -> Floats:
        """Instructions of a warp for the copies of all factors' tiles."""
        return sum((self.copies(factor) for factor in self.factors), start=np.zeros(self.product.nest.count))

    def copies(self, factor: Statement) -> Floats:
        """Instructions of a warp for the copies of a factor's tile."""
        nest = factor.nest
        own_loops = range(nest.depth - nest.source.own, nest.depth)
        serial = [index for index in own_loops if nest.source.loops[index].annotation is Annotation.NONE]
        iterations = nest.extents[serial].prod(axis=0)
        elements, access_elements = _copied_elements(factor)
        indices = _COPY + float(nest.source.ops.int_divmod)
        per_iteration = np.where(_is_asynchronous(factor), elements / access_elements, _PLAIN_COPY * elements)
        return np.asarray(iterations * (indices + per_iteration))

    def write_cycles(self) -> Floats:
        """Cycles in which copies write their tiles to shared memory."""
        cycles = np.zeros(self.product.nest.count)
        for factor in self.factors:
            # A copy of 8 bytes takes as long as a copy of 16: on an H200 the same products took 1.33 times as long.
            copied_bytes = np.maximum(_copied_bytes(factor), 1.0)
            cycles += factor.moved.shared_cycles * np.where(
                _is_asynchronous(factor), COPY_BYTES[-1] / copied_bytes, 1.0
            )
        return np.asarray(cycles / self.launched.blocks / self.iterations)

    def asynchronous(self) -> Flags:
        """Whether the copies of all factors are asynchronous."""
        return np.asarray(np.all([_is_asynchronous(factor) for factor in self.factors], axis=0))

    def read(self) -> Floats:
        """Bytes that the whole kernel reads from memory: of factors larger than the cache, each tile once for all
        blocks that run at a time.
        """
        resident = np.maximum(self.launched.resident, 1.0) * self.facts.multiprocessors
        waves = np.maximum(1.0, self.launched.blocks / resident)
        total = np.zeros_like(waves)
        for factor in self.factors:
            tile = factor.moved.cache_bytes / self.launched.blocks
            is_cached = factor.moved.read_bytes < factor.moved.cache_bytes
            total += np.where(is_cached, factor.moved.read_bytes, _tiles_of(factor.nest, resident) * tile * waves)
        # Never more than the traffic of the cache.
        return np.asarray(np.minimum(total, sum(factor.moved.cache_bytes for factor in self.factors)))


def _tiles_of(nest: Nest, blocks: Floats) -> Floats:
    """The number of different tiles of a factor in `blocks` consecutive blocks."""
    moving = {key for read in nest.source.reads for linear in read.index for key in linear.terms}
    # Blocks run in the order of their numbers: concurrent blocks differ in the fastest dimension first.
    tiles, remaining = np.ones_like(blocks), blocks
    for index, loop in reversed(list(enumerate(nest.source.loops))):
        if loop.annotation in BLOCK_LOOPS:
            if loop.key in moving:
                tiles = tiles * np.minimum(nest.extents[index], remaining)
            remaining = np.ceil(remaining / nest.extents[index])
    return tiles


def _overlapping(*times: Floats) -> Floats:
    """The longest of `times`, and a share of the others."""
    stacked = np.stack(np.broadcast_arrays(*times))
    return np.asarray(stacked.max(axis=0) * (1.0 - _OVERLAP) + _OVERLAP * stacked.sum(axis=0))


def _columns(cycles: Floats, arithmetic: Floats, memory: Floats) -> Columns:
    yield "estimate_arithmetic", arithmetic
    yield "estimate_memory", memory
    yield "estimate_cycles", cycles


def _copied_elements(factor: Statement) -> tuple[Floats, Floats]:
    """Neighboring elements of a factor that each thread copies, and how many of them one access copies."""
    nest = factor.nest
    elements = np.ones(nest.count, dtype=np.int64)
    for index, loop in enumerate(nest.source.loops):
        if loop.annotation is Annotation.VECTORIZE:
            elements = elements * nest.extents[index].astype(np.int64)
    source = _source(factor)
    row = source.tensor.shape[-1] if source is not None and source.tensor.shape else 1
    # An access must not run over the end of a row, so its length divides both.
    return elements.astype(np.float64), np.gcd(elements, row).astype(np.float64)


def _copied_bytes(factor: Statement) -> Floats:
    """Bytes that one access copies; 0 where the statement computes something, or reads several tensors."""
    source, ops = _source(factor), factor.nest.source.ops
    is_changed = any(getattr(ops, name) for name in _CHANGES)
    element_bytes = 0 if source is None or is_changed else source.element_bytes
    return _copied_elements(factor)[1] * element_bytes


def _is_asynchronous(factor: Statement) -> Flags:
    """Whether the factor is copied asynchronously, which takes accesses of a size in `COPY_BYTES`."""
    return np.asarray(np.isin(_copied_bytes(factor), COPY_BYTES))


def _source(factor: Statement) -> Footprint | None:
    """The tensor that a factor is copied from, if there is just one tensor."""
    reads = [footprint for footprint in factor.footprints if footprint.is_read]
    return reads[0] if len(reads) == 1 else None
