"""In: a product on tensor cores and the copies of its factors. Out: the cycles that its loop over turns should take.

Always: first principles, nothing measured. A turn takes as long as what is busiest: tensor cores, schedulers, shared
memory, the GPU's cache; but no less than one block alone needs for its steps, one after the other, and for its copies,
which have as long to arrive as the pipeline is deep. Resident blocks fill each other's gaps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from compiler.dtype import item_bytes
from compiler.features.buffers import Columns
from compiler.features.gpu_estimate import CACHE_RATIO, MEMORY_CYCLES, Launched, Moved
from compiler.features.nest import Flags, Floats, Nest, product_where
from compiler.features.touch import Touch
from compiler.gpu_facts import GpuFacts
from compiler.ir.tensor_core import COLUMNS, COPY_BYTES, ROWS
from compiler.schedule.counts import OpCounts
from compiler.schedule.state import Annotation
from compiler.schedule.tensor_nests import (
    fragment_sets,
    fragments_of,
    instruction_of,
    product_of,
    steps_of,
    turns_at_once,
)

_PARTS = 4
"""Schedulers of a multiprocessor, each with tensor cores of its own, for every fourth warp."""
_SHARED_BYTES = 128.0
"""What shared memory moves in a cycle."""
_FRAGMENT_CYCLES = 40.0
"""From the first load of a step's fragments to its first multiplication, where nothing else is multiplied meanwhile."""
_MULTIPLY_CYCLES = 34.0
"""From one addition to a sum to the next."""
_MEETING_CYCLES = 40.0
"""Of a barrier, and of what each turn does around it."""
_COPY = 2.0
"""Instructions for the addresses of a copy, which change from turn to turn; quotients in them come on top."""
_PLAIN_COPY = 6.0
"""Instructions for an element that is loaded and stored on its own."""
_ROUNDING = 2.0
"""Instructions that round a factor to tf32."""
_TURN = 24.0
"""Other instructions of a turn."""
_OVERLAP = 0.1
"""The share of the other times that the longest does not hide."""

_CHANGES = tuple(field.name for field in fields(OpCounts) if field.name.startswith("float_"))
"""Operations that make more of a factor than a copy."""

_BLOCKS = (Annotation.BLOCK_X, Annotation.BLOCK_Y, Annotation.BLOCK_Z)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a kernel: its place among those of the program, its loops and buffers, and what it moves."""

    row: int
    nest: Nest
    touched: Sequence[Touch]
    moved: Moved


def tensor_estimates(
    statements: Sequence[Statement], launches: Mapping[int, Launched], facts: GpuFacts
) -> Iterator[tuple[int, Columns]]:
    """Columns of the group "estimate" of every product on tensor cores and of its factors, with their rows.

    The cycles of the loop are those of the product where tensor cores are busy; the factors share the rest.
    """
    for product in statements:
        if product_of([product.nest.source]) is None:
            continue
        read = {touch.tensor for touch in product.touched if touch.is_read}
        factors = [each for each in statements if read & {write.tensor for write in each.nest.source.writes}]
        factors = [each for each in factors if each is not product]
        loop = _Loop(product, factors, launches[product.row], facts)
        multiplying, whole = loop.cycles()
        shared = loop.shared() * loop.turns * launches[product.row].rounds
        yield product.row, _columns(multiplying, multiplying, shared)
        for each in factors:
            outside = each.moved.cache_bytes / (CACHE_RATIO * facts.bandwidth / facts.clock)
            yield each.row, _columns((whole - multiplying) / len(factors), np.zeros_like(whole), outside)


def _columns(cycles: Floats, arithmetic: Floats, memory: Floats) -> Columns:
    yield "estimate_arithmetic", arithmetic
    yield "estimate_memory", memory
    yield "estimate_cycles", cycles


class _Loop:
    """The loop over the turns of a product; numbers of one block and one turn, arrays (B,)."""

    def __init__(self, product: Statement, factors: Sequence[Statement], launched: Launched, facts: GpuFacts) -> None:
        source, count = product.nest.source, product.nest.count
        self.facts, self.launched, self.factors, self.product = facts, launched, factors, product
        self.kind = instruction_of(source)
        self.rows, self.columns = fragments_of(source, count)
        self.steps, self.sets = steps_of(source, count), fragment_sets(source, count)
        self.tiles = turns_at_once(source, count)
        own = [place >= product.nest.depth - source.own for place in range(product.nest.depth)]
        sums = np.array([reduces and mine for reduces, mine in zip(product.nest.reduce, own, strict=True)])
        whole = product_where(sums[:, None] & product.nest.real, product.nest.extents)
        self.turns = whole / (self.steps * self.kind.depth)

    def cycles(self) -> tuple[Floats, Floats]:
        """Cycles in which tensor cores are busy, and of the whole loop, of the multiprocessor with most blocks."""
        launched = self.launched
        together = np.minimum(np.maximum(launched.resident, 1.0), launched.rounds)
        full, rest = np.floor(launched.rounds / together), np.mod(launched.rounds, together)
        some = np.maximum(rest, 1.0)
        multiplying = full * self.multiplying(together) + (rest > 0) * self.multiplying(some)
        turns = full * self.turn(together) + (rest > 0) * self.turn(some)
        started = (full + (rest > 0)) * MEMORY_CYCLES
        read = self.read() / (self.facts.bandwidth / self.facts.clock)
        spilling = launched.spilling
        multiplying = multiplying * self.turns * spilling
        whole = _overlapping(turns * self.turns + started, read) * spilling
        return multiplying, np.maximum(whole, multiplying)

    def turn(self, blocks: Floats) -> Floats:
        """Cycles of one turn of so many blocks at a time on one multiprocessor."""
        # Behind a barrier nothing is loaded yet, unless it was a step ahead.
        idle = _MEETING_CYCLES + np.where(self.sets > 1, 0.0, _FRAGMENT_CYCLES)
        alone = np.maximum(self.busy(np.ones_like(blocks)), self.chain()) + idle
        # A turn waits for its copies as long as those before it have not hidden it; the last step does without.
        hidden = np.where(self.sets > 1, alone / self.steps, 0.0)
        early = np.maximum(alone, (MEMORY_CYCLES + hidden) / np.maximum(self.tiles - 1.0, 1.0))
        ahead = (self.tiles > 1) & self.asynchronous()
        waiting = np.where(ahead, early, alone + MEMORY_CYCLES)
        return np.asarray(np.maximum(self.busy(blocks), waiting))

    def busy(self, blocks: Floats) -> Floats:
        """Cycles of a turn in which something is busy."""
        warps = np.ceil(blocks * self.launched.warps / _PARTS)
        cache = CACHE_RATIO * self.facts.bandwidth / self.facts.clock / self.facts.multiprocessors
        moved = sum(each.moved.cache_bytes for each in self.factors) / self.launched.blocks / self.turns
        return _overlapping(
            self.multiplying(blocks), warps * self.instructions(), blocks * self.shared(), blocks * moved / cache
        )

    def multiplying(self, blocks: Floats) -> Floats:
        """Cycles in which the tensor cores of the scheduler with most warps multiply in a turn."""
        warps = np.ceil(blocks * self.launched.warps / _PARTS)
        return np.asarray(warps * self.steps * self.rows * self.columns * self.each())

    def each(self) -> float:
        """Cycles of one multiplication."""
        rate = max(1, self.facts.tensor) / _PARTS / (1 if self.kind.packed > 1 else 2)
        return ROWS * COLUMNS * self.kind.depth / rate

    def chain(self) -> Floats:
        """Cycles of the steps of one warp that has its tensor cores to itself."""
        products = np.maximum(self.rows * self.columns * self.each(), _MULTIPLY_CYCLES)
        return np.asarray(self.steps * (products + np.where(self.sets > 1, 0.0, _FRAGMENT_CYCLES)))

    def instructions(self) -> Floats:
        """Instructions of a warp."""
        loads: Floats
        if self.kind.packed > 1:
            loads = np.asarray(self.rows + np.where(self.columns % 2 == 0, self.columns / 2, self.columns))
        else:
            elements = self.rows * self.kind.left_elements + self.columns * self.kind.right_elements
            loads = np.asarray(elements * (1.0 + _ROUNDING))
        copies = sum((self.copies(each) for each in self.factors), start=np.zeros(self.product.nest.count))
        return np.asarray(self.steps * (self.rows * self.columns + loads) + copies + _TURN)

    def copies(self, factor: Statement) -> Floats:
        """Instructions of a warp for the copies of a factor's tile."""
        nest = factor.nest
        own = range(nest.depth - nest.source.own, nest.depth)
        serial = [at for at in own if nest.source.loops[at].annotation is Annotation.NONE]
        turns = nest.extents[serial].prod(axis=0)
        lanes, piece = _lanes(factor)
        indices = _COPY + float(nest.source.ops.int_divmod)
        each = np.where(_is_asynchronous(factor), lanes / piece, _PLAIN_COPY * lanes)
        return np.asarray(turns * (indices + each))

    def asynchronous(self) -> Flags:
        """Whether the copies of both factors are."""
        return np.asarray(np.all([_is_asynchronous(each) for each in self.factors], axis=0))

    def shared(self) -> Floats:
        """Cycles of shared memory: each fragment is loaded once a step, by each warp for itself."""
        elements = (self.rows * ROWS + self.columns * COLUMNS) * self.kind.depth * self.steps * self.launched.warps
        written = sum(each.moved.shared_cycles for each in self.factors) / self.launched.blocks / self.turns
        return np.asarray(elements * item_bytes(self.kind.dtype) / _SHARED_BYTES + written)

    def read(self) -> Floats:
        """Bytes from memory: of factors that the cache does not hold, for the blocks that run at a time, each of their
        tiles once.
        """
        together = np.maximum(self.launched.resident, 1.0) * self.facts.multiprocessors
        waves = np.maximum(1.0, self.launched.blocks / together)
        total = np.zeros_like(waves)
        for each in self.factors:
            tile = each.moved.cache_bytes / self.launched.blocks
            held = each.moved.read_bytes < each.moved.cache_bytes
            total += np.where(held, each.moved.read_bytes, self.tiles_of(each, together) * tile * waves)
        return np.asarray(np.minimum(total, sum(each.moved.cache_bytes for each in self.factors)))

    def tiles_of(self, factor: Statement, together: Floats) -> Floats:
        """How many different tiles of a factor so many blocks have that follow each other."""
        nest = factor.nest
        moving = {key for read in nest.source.reads for linear in read.index for key in linear.terms}
        tiles, rest = np.ones_like(together), together
        for at, loop in reversed(list(enumerate(nest.source.loops))):
            if loop.annotation in _BLOCKS:
                if loop.key in moving:
                    tiles = tiles * np.minimum(nest.extents[at], rest)
                rest = np.ceil(rest / nest.extents[at])
        return tiles


def _overlapping(*times: Floats) -> Floats:
    """The longest of some times, and a share of the others."""
    stacked = np.stack(np.broadcast_arrays(*times))
    return np.asarray(stacked.max(axis=0) * (1.0 - _OVERLAP) + _OVERLAP * stacked.sum(axis=0))


def _lanes(factor: Statement) -> tuple[Floats, Floats]:
    """How many neighbours each thread copies of a factor, and how many of them at once: what divides its rows."""
    nest = factor.nest
    lanes = np.ones(nest.count, dtype=np.int64)
    for at, loop in enumerate(nest.source.loops):
        if loop.annotation is Annotation.VECTORIZE:
            lanes = lanes * nest.extents[at].astype(np.int64)
    read = _read(factor)
    row = read.tensor.shape[-1] if read is not None and read.tensor.shape else 1
    return lanes.astype(np.float64), np.gcd(lanes, row).astype(np.float64)


def _is_asynchronous(factor: Statement) -> Flags:
    """Whether whole words are copied at once, as they are."""
    read, ops = _read(factor), factor.nest.source.ops
    changed = any(getattr(ops, name) for name in _CHANGES)
    item = 0 if read is None or changed else read.element_bytes
    return np.asarray(np.isin(_lanes(factor)[1] * item, COPY_BYTES))


def _read(factor: Statement) -> Touch | None:
    """The one tensor that a factor is copied from."""
    reads = [touch for touch in factor.touched if touch.is_read]
    return reads[0] if len(reads) == 1 else None
