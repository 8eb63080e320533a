"""Estimates the cycles of the main loop of a product that copies its factors into shared memory.

The estimate is analytical. An iteration takes as long as the busiest of arithmetic, schedulers, shared memory and the
GPU's cache, but no less than one block alone needs for its sequential steps, nor than its copies need, which may take
as many iterations as the pipeline is deep. Resident blocks fill each other's gaps.
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
"""Instructions for an element that is loaded and stored by itself."""
_OVERLAP = 0.1
"""The share of the other times that the longest does not hide."""

_CHANGES = tuple(field.name for field in fields(OpCounts) if field.name.startswith("float_"))
"""Operations that make a factor more than a copy."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a kernel: its row in the program, its loops and buffers, and its traffic."""

    row: int
    nest: Nest
    footprints: Sequence[Footprint]
    moved: Moved


class MainLoop(ABC):
    """The main loop of a product; numbers of one block and one iteration, arrays (B,). `iterations` is their number,
    `starts` how often they begin again with an empty pipeline, `ahead` how many iterations before its use a copy
    begins, `meeting` the cycles around a barrier without multiplication, `loading` those after it, and `early` the
    share of an iteration that needs none of its copies.
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
        """Cycles of arithmetic of the scheduler with most warps in an iteration of `blocks` blocks."""

    @abstractmethod
    def chain(self) -> Floats:
        """Cycles of the steps of one warp that has its scheduler to itself."""

    @abstractmethod
    def instructions(self) -> Floats:
        """Instructions of a warp."""

    @abstractmethod
    def shared(self) -> Floats:
        """Cycles of shared memory."""

    def columns(self) -> Iterator[tuple[int, Columns]]:
        """The columns of the group "estimate" of the product and of its factors, with their rows. The product gets the
        cycles of the loop in which arithmetic is busy; the factors share the others.
        """
        multiplying, total = self.cycles()
        yield (
            self.product.row,
            _columns(multiplying, multiplying, self.shared() * self.iterations * self.launched.rounds),
        )
        for factor in self.factors:
            outside = factor.moved.cache_bytes / (CACHE_RATIO * self.facts.bandwidth / self.facts.clock)
            yield factor.row, _columns((total - multiplying) / len(self.factors), np.zeros_like(total), outside)

    def cycles(self) -> tuple[Floats, Floats]:
        """Cycles in which arithmetic is busy, and of the whole loop, of the multiprocessor with most blocks."""
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
        """Cycles of an iteration in which the busiest unit is busy."""
        warps = np.ceil(blocks * self.launched.warps / PARTS)
        cache = CACHE_RATIO * self.facts.bandwidth / self.facts.clock / self.facts.multiprocessors
        moved = sum(each.moved.cache_bytes for each in (self.product, *self.factors))
        moved = moved / self.launched.blocks / self.iterations
        return _overlapping(
            self.multiplying(blocks), warps * self.instructions(), blocks * self.shared(), blocks * moved / cache
        )

    def all_copies(self) -> Floats:
        """Instructions of a warp for the copies of all factors' tiles."""
        return sum((self.copies(each) for each in self.factors), start=np.zeros(self.product.nest.count))

    def copies(self, factor: Statement) -> Floats:
        """Instructions of a warp for the copies of a factor's tile."""
        nest = factor.nest
        own_loops = range(nest.depth - nest.source.own, nest.depth)
        serial = [index for index in own_loops if nest.source.loops[index].annotation is Annotation.NONE]
        iterations = nest.extents[serial].prod(axis=0)
        lanes, piece = _lanes(factor)
        indices = _COPY + float(nest.source.ops.int_divmod)
        per_iteration = np.where(_is_asynchronous(factor), lanes / piece, _PLAIN_COPY * lanes)
        return np.asarray(iterations * (indices + per_iteration))

    def written(self) -> Floats:
        """Cycles of shared memory for the tiles that are copied."""
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
        return np.asarray(np.all([_is_asynchronous(each) for each in self.factors], axis=0))

    def read(self) -> Floats:
        """Bytes from memory: of factors larger than the cache, each tile once for the blocks that run at a time."""
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
    """The number of different tiles of a factor in `together` consecutive blocks."""
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


def _lanes(factor: Statement) -> tuple[Floats, Floats]:
    """Neighbors of a factor that each thread copies, and the number in one access: a divisor of the rows."""
    nest = factor.nest
    lanes = np.ones(nest.count, dtype=np.int64)
    for at, loop in enumerate(nest.source.loops):
        if loop.annotation is Annotation.VECTORIZE:
            lanes = lanes * nest.extents[at].astype(np.int64)
    read = _read(factor)
    row = read.tensor.shape[-1] if read is not None and read.tensor.shape else 1
    # A piece must not run over the end of a row, so its length divides both.
    return lanes.astype(np.float64), np.gcd(lanes, row).astype(np.float64)


def _copied_bytes(factor: Statement) -> Floats:
    """Bytes of one plain copy; 0 where the factor is converted."""
    read, ops = _read(factor), factor.nest.source.ops
    changed = any(getattr(ops, name) for name in _CHANGES)
    item = 0 if read is None or changed else read.element_bytes
    return _lanes(factor)[1] * item


def _is_asynchronous(factor: Statement) -> Flags:
    """Whether plain copies of whole words are made."""
    return np.asarray(np.isin(_copied_bytes(factor), COPY_BYTES))


def _read(factor: Statement) -> Footprint | None:
    """The tensor that a factor is copied from, if there is just one tensor."""
    reads = [footprint for footprint in factor.footprints if footprint.is_read]
    return reads[0] if len(reads) == 1 else None
