"""Analytical cost model of tensor-core products: estimated cycles of their main loops, see `main_loop`."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.tensor_core import COLUMNS, GROUP_WARPS, ROWS
from retune.compiler.model.features.buffers import Columns
from retune.compiler.model.features.gpu_estimate import Launched
from retune.compiler.model.features.main_loop import MEETING_CYCLES, PARTS, MainLoop, Statement
from retune.compiler.model.features.nest import Floats, product_where
from retune.compiler.schedule.contraction import LEFT, RIGHT, depth_is_inner
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
_ITERATION = 24.0
"""Other instructions of an iteration."""


def tensor_estimates(
    statements: Sequence[Statement], launches: Mapping[int, Launched], facts: GpuFacts
) -> Iterator[tuple[int, Columns]]:
    """Columns of the group "estimate" of every product on tensor cores and of its factors, with their rows."""
    for product in statements:
        if product_of([product.nest.source]) is None:
            continue
        read = {footprint.tensor for footprint in product.footprints if footprint.is_read}
        factors = [each for each in statements if read & {write.tensor for write in each.nest.source.writes}]
        factors = [each for each in factors if each is not product]
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
        """Instructions of a warp."""
        columns = self.columns_of_warp
        left, right = self.rows * self.kind.left_elements, columns * self.kind.right_elements
        # One ldmatrix loads a left fragment, or two right fragments.
        loads = np.where(self.has_matrices(LEFT), self.rows, left)
        loads = loads + np.where(self.has_matrices(RIGHT), np.where(columns % 2 == 0, columns / 2, columns), right)
        if self.kind.packed == 1:
            loads = loads + (left + right) * _ROUNDING
        products = self.rows * np.where(self.groups, 1, columns)
        loads = np.where(self.groups, 0.0, loads)
        return np.asarray(self.steps * (products + loads) + self.all_copies() + _ITERATION)

    def has_matrices(self, side: str) -> bool:
        """Whether ldmatrix loads a factor: of halves always, of float32 where its rows follow the depth."""
        gathered = (each.nest.source.op for each in self.factors)
        inner = [depth_is_inner(op) for op in gathered if isinstance(op, ComputeOp) and op.name.endswith(side)]
        return self.kind.packed > 1 or any(inner)

    def shared(self) -> Floats:
        """Cycles of shared memory: each fragment is loaded once a step, by each warp for itself; a group of warps reads
        its columns for each of its instructions.
        """
        columns = self.columns_of_warp * COLUMNS
        each = self.rows * ROWS + np.where(self.groups, self.rows * columns / GROUP_WARPS, columns)
        elements = each * self.kind.depth * self.steps * self.launched.warps
        return np.asarray(elements * item_bytes(self.kind.dtype) / _SHARED_BYTES + self.written())
