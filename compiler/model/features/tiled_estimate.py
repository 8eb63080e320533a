"""Analytical cost model of products on CUDA cores: estimated cycles of their main loops, see `main_loop`.

Each step of the sum reads from shared memory what the accumulators of a thread need, several steps together, and these
loads compete with the arithmetic for issue slots.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.estimate import operation_cost
from retune.compiler.model.features.gpu_estimate import Launched
from retune.compiler.model.features.main_loop import PARTS, MainLoop, Statement
from retune.compiler.model.features.nest import Floats, product_where
from retune.compiler.schedule.linear import LoopKey
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.tensor_nests import product_of

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


def tiled_estimates(
    statements: Sequence[Statement], launches: Mapping[int, Launched], facts: GpuFacts
) -> Iterator[tuple[int, Columns]]:
    """Columns of the group "estimate" of every product whose factors are fetched into shared memory inside its loops,
    and of these factors, with their rows.
    """
    for product in statements:
        if not any(product.nest.reduce) or product_of([product.nest.source]) is not None:
            continue
        read = {footprint.tensor for footprint in product.footprints if footprint.is_read}
        stage = product.nest.source.stage
        factors = [
            each
            for each in statements
            if each is not product
            and read & {write.tensor for write in each.nest.source.writes}
            and any(key[0] == stage for key in _around(each))
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

    def shared(self) -> Floats:
        """Cycles of shared memory."""
        return np.asarray(self.product.moved.shared_cycles / self.launched.blocks / self.iterations + self.written())
