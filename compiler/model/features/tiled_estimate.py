"""Analytical cost models of products on a GPU's CUDA cores and tensor cores: cycles of their main loops.

See `main_loop`. On CUDA cores each step of the sum reads from shared memory what the accumulators of a thread need,
several steps together, and these loads compete with the arithmetic for issue slots.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retune.compiler.core.dtype import is_float, item_bytes
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import COLUMNS, GROUP_WARPS, ROWS, WARP
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.estimate import operation_cost
from retune.compiler.model.features.gpu_estimate import Launched
from retune.compiler.model.features.main_loop import MEETING_CYCLES, PARTS, MainLoop, Statement
from retune.compiler.model.features.nest import Floats, product_where
from retune.compiler.schedule.contraction import LEFT, RIGHT, depth_is_inner
from retune.compiler.schedule.linear import LoopKey
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.tensor_nests import (
    TILES_WITHOUT_BREAK,
    fragment_sets,
    fragments_of,
    in_groups,
    instruction_of,
    product_of,
    steps_of,
)
from retune.compiler.te.tensor import ComputeOp

_LOAD_CYCLES = 33.0
"""From a load of shared memory to the arithmetic that uses it."""
_ADD_CYCLES = 4.0
"""From one addition to a sum to the next."""
_INDEX_REGISTERS = 28.0
_TOGETHER = 4.0
"""Steps of a sum whose factor is read in one access where its neighbors follow the sum."""
_SPILLED = 3.0
"""Instructions for each use of a number that does not fit the registers."""
_ITERATION = 28.0
"""Other instructions of an iteration: the number of the tile, addresses, a barrier, whether there is more to copy."""


def _factors(product: Statement, statements: Sequence[Statement]) -> list[Statement]:
    """The other statements that write what a product reads."""
    read = {footprint.tensor for footprint in product.footprints if footprint.is_read}
    return [
        statement
        for statement in statements
        if statement is not product and read & {write.tensor for write in statement.nest.source.writes}
    ]


def tiled_estimates(
    statements: Sequence[Statement], launches: Mapping[int, Launched], facts: GpuFacts
) -> Iterator[tuple[int, Columns]]:
    """Columns of the group "estimate" of every product whose factors are fetched into shared memory inside its loops,
    and of these factors, with their rows.
    """
    for product in statements:
        if not any(product.nest.reduce) or product_of([product.nest.source]) is not None:
            continue
        stage = product.nest.source.stage
        factors = [
            factor for factor in _factors(product, statements) if any(key[0] == stage for key in _around(factor))
        ]
        if factors:
            yield from _TiledLoop(product, factors, launches[product.row], facts).columns()


def _around(statement: Statement) -> list[LoopKey]:
    """The loops of other stages around a statement."""
    source = statement.nest.source
    return [loop.key for loop in source.loops[: len(source.loops) - source.own]]


class _TiledLoop(MainLoop):
    """The main loop of a product on CUDA cores, each iteration of which fetches tiles of its factors."""

    def __init__(self, product: Statement, factors: Sequence[Statement], launched: Launched, facts: GpuFacts) -> None:
        super().__init__(product, factors, launched, facts)
        nest = product.nest
        fetched = {loop_key for factor in factors for loop_key in _around(factor)}
        outer, self.steps, self.sums = np.ones(nest.count), np.ones(nest.count), np.ones(nest.count)
        for index, loop in enumerate(nest.source.loops):
            is_own = index >= nest.depth - nest.source.own
            if nest.reduce[index] and loop.key in fetched:
                outer = outer * nest.extents[index]
            elif nest.reduce[index]:
                self.steps = self.steps * nest.extents[index]
            elif is_own or loop.annotation is Annotation.VTHREAD:
                self.sums = self.sums * nest.extents[index]
        self.iterations = outer
        if nest.source.pipeline is not None:
            self.starts = outer / nest.extents[nest.numbers[nest.source.stage, nest.source.pipeline[0]]]
        # A block's threads share the register file; what exceeds their part goes to local memory.
        self.spilled = np.maximum(0.0, self.registers() - facts.most_registers(launched.threads))
        self.loading = np.full(nest.count, _LOAD_CYCLES)
        cost = operation_cost(nest.source.ops, is_float(nest.source.write.tensor.dtype))
        self.operations = self.sums * self.steps * cost

    def multiplying(self, blocks: Floats) -> Floats:
        """Cycles of the lanes of the scheduler with most warps in an iteration of so many blocks."""
        warps = np.ceil(blocks * self.launched.warps / PARTS)
        return np.asarray(warps * self.operations * WARP / (self.facts.lanes / PARTS))

    def chain(self) -> Floats:
        """Cycles of the steps of one warp that has its scheduler to itself."""
        step_cycles = self.operations / self.steps * WARP / (self.facts.lanes / PARTS)
        # A single warp waits for each addition before the next to the same sum.
        return np.asarray(self.steps * np.maximum(step_cycles, _ADD_CYCLES))

    def instructions(self) -> Floats:
        loads = self.product.moved.shared_requests / self.launched.blocks / self.launched.warps / self.iterations
        spilled = _SPILLED * self.spilled * np.maximum(1.0, self.steps / _TOGETHER)
        return np.asarray(self.operations + loads + spilled + self.all_copies() + _ITERATION)

    def registers(self) -> Floats:
        """Registers of a thread: its sums, the factors of some steps of them, and indices."""
        nest = self.product.nest
        loaded = np.zeros(nest.count)
        virtual = np.array([loop.annotation is Annotation.VTHREAD for loop in nest.source.loops], dtype=np.bool_)
        points = (nest.tile | virtual[:, None]) & nest.real
        for footprint in self.product.footprints:
            if not footprint.is_write:
                words = product_where(points & footprint.moving, nest.extents)
                row = np.any([points[at] & (footprint.strides[at] == 1) for at in range(nest.depth)], axis=0)
                loaded += words * np.where(row, 1.0, np.minimum(self.steps, _TOGETHER))
        return np.asarray(self.sums + loaded + _INDEX_REGISTERS)

    def shared_cycles(self) -> Floats:
        return np.asarray(
            self.product.moved.shared_cycles / self.launched.blocks / self.iterations + self.write_cycles()
        )


_SHARED_BYTES = 128.0
"""Bytes that shared memory moves in a cycle: 32 banks of 4 bytes."""
_FRAGMENT_CYCLES = 40.0
"""From the first load of a step's fragments to its first multiplication, if nothing else is multiplied meanwhile."""
_MULTIPLY_CYCLES = 34.0
"""From one addition to a sum to the next."""
_GROUP_CYCLES = 60.0
"""From the first instruction of a warpgroup to its first multiplication, with an empty pipeline."""
_ROUNDING = 1.5
"""Instructions that round an element of a factor to tf32: an addition, and a comparison for every two."""
_TENSOR_ITERATION = 24.0
"""Other instructions of an iteration."""


def tensor_estimates(
    statements: Sequence[Statement], launches: Mapping[int, Launched], facts: GpuFacts
) -> Iterator[tuple[int, Columns]]:
    """Columns of the group "estimate" of every product on tensor cores and of its factors, with their rows."""
    for product in statements:
        if product_of([product.nest.source]) is None:
            continue
        factors = _factors(product, statements)
        yield from _TensorLoop(product, factors, launches[product.row], facts).columns()


class _TensorLoop(MainLoop):
    """The main loop of a product on tensor cores. After a barrier nothing is loaded yet, unless fragments are a step
    ahead; the last step does without the next copies. Groups of warps load no fragments, and with enough tiles they
    multiply without a break.
    """

    def __init__(self, product: Statement, factors: Sequence[Statement], launched: Launched, facts: GpuFacts) -> None:
        super().__init__(product, factors, launched, facts)
        source, count = product.nest.source, product.nest.count
        self.kind = instruction_of(source)
        self.rows, self.columns_of_warp = fragments_of(source, count)
        self.steps, self.sets = steps_of(source, count), fragment_sets(source, facts, count)
        self.groups = in_groups(source, facts, count)
        unbroken = self.groups & (self.tiles >= TILES_WITHOUT_BREAK)
        # One tile is still being multiplied.
        self.ahead = np.where(unbroken, self.tiles - 2.0, self.ahead)
        self.meeting = np.where(unbroken, 0.0, MEETING_CYCLES)
        self.loading = np.where(self.sets > 1, 0.0, _FRAGMENT_CYCLES)
        self.loading = np.where(self.groups, np.where(unbroken, 0.0, _GROUP_CYCLES), self.loading)
        self.early = np.where(self.sets > 1, 1.0 / self.steps, 0.0)
        is_own = [index >= product.nest.depth - source.own for index in range(product.nest.depth)]
        sums = np.array([reduces and own for reduces, own in zip(product.nest.reduce, is_own, strict=True)])
        total = product_where(sums[:, None] & product.nest.real, product.nest.extents)
        self.iterations = total / (self.steps * self.kind.depth)

    def multiplying(self, blocks: Floats) -> Floats:
        """Cycles in which the tensor cores of the scheduler with most warps multiply in an iteration."""
        warps = np.ceil(blocks * self.launched.warps / PARTS)
        return np.asarray(warps * self.steps * self.rows * self.columns_of_warp * self.each())

    def each(self) -> Floats:
        """Cycles of one multiplication."""
        # Products of tf32 run at half the rate of those of halves.
        warp_rate = self.facts.tensor / (1 if self.kind.packed > 1 else 2)
        rate = np.maximum(1, np.where(self.groups, self.facts.group_tensor, warp_rate)) / PARTS
        return np.asarray(ROWS * COLUMNS * self.kind.depth / rate)

    def chain(self) -> Floats:
        """Cycles of the steps of one warp that has its tensor cores to itself."""
        products = self.rows * self.columns_of_warp * self.each()
        latency = self.steps * (np.maximum(products, _MULTIPLY_CYCLES) + self.loading)
        return np.where(self.groups, self.steps * products, latency)

    def instructions(self) -> Floats:
        columns = self.columns_of_warp
        left, right = self.rows * self.kind.left_elements, columns * self.kind.right_elements
        # One ldmatrix loads a left fragment, or two right fragments.
        loads = np.where(self.has_matrices(LEFT), self.rows, left)
        loads = loads + np.where(self.has_matrices(RIGHT), np.where(columns % 2 == 0, columns / 2, columns), right)
        if self.kind.packed == 1:
            loads = loads + (left + right) * _ROUNDING
        products = self.rows * np.where(self.groups, 1, columns)
        loads = np.where(self.groups, 0.0, loads)
        return np.asarray(self.steps * (products + loads) + self.all_copies() + _TENSOR_ITERATION)

    def has_matrices(self, side: str) -> bool:
        """Whether ldmatrix loads a factor: of halves always, of float32 where its rows follow the depth."""
        gathered = (statement.nest.source.op for statement in self.factors)
        inner = [depth_is_inner(op) for op in gathered if isinstance(op, ComputeOp) and op.name.endswith(side)]
        return self.kind.packed > 1 or any(inner)

    def shared_cycles(self) -> Floats:
        """Cycles of shared memory: each fragment is loaded once a step, by each warp for itself; a group of warps reads
        its columns for each of its instructions.
        """
        columns = self.columns_of_warp * COLUMNS
        each = self.rows * ROWS + np.where(self.groups, self.rows * columns / GROUP_WARPS, columns)
        elements = each * self.kind.depth * self.steps * self.launched.warps
        return np.asarray(elements * item_bytes(self.kind.dtype) / _SHARED_BYTES + self.write_cycles())
