"""Predicts how lowering transforms the innermost loops of a statement, for B programs.

These are the rules of the passes dot-products, vector-reductions and register-tiles on arrays.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import BFLOAT16, item_bytes, sum_type
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dot import BYTES, Pair, is_possible, products_per_sum
from retune.compiler.model.features.buffers import pick
from retune.compiler.model.features.footprint import Footprint
from retune.compiler.model.features.nest import Flags, Floats, Nest, product_where
from retune.compiler.te.reduction import Reduce

# Both constants are those of the pass vector-reductions.
CHAINS = 4
"""Vectors of partial results of a reduction in lanes."""
_LEAST_IN_LANES = 8
"""The shortest reduction that runs in lanes."""


@dataclass(frozen=True, slots=True)
class Innermost:
    """How the innermost loops of B programs run; arrays are (B,)."""

    lanes: int
    """Accumulators in a register."""
    vectorized: Flags
    """Whether lanes are iterations of a spatial loop."""
    in_lanes: Flags
    """Whether lanes are iterations of the innermost reduction, whose partial results are joined at the end."""
    length: Floats
    """Partial results of such a reduction, else the extent of the vector loop, 1 without a vector loop."""
    vectors: Floats
    """Registers that hold a row of `length`."""
    rows: Floats
    """Such rows per result."""
    results: int
    dot: Floats
    """Products of an element that one step sums."""
    iterations: Floats
    """Steps of the reduction between loading and storing accumulators."""
    steps: Floats
    """All steps."""

    @property
    def accumulators(self) -> Floats:
        """Vectors that hold the results in progress."""
        return self.rows * self.vectors * self.results


def innermost(
    nest: Nest, footprints: Sequence[Footprint], hardware: HardwareParams, dots: Collection[Pair]
) -> Innermost:
    """How lowering transforms a statement; `dots` are the factor types with dot products."""
    element_bytes = max(item_bytes(sum_type(write.tensor.dtype)) for write in nest.source.writes)
    lanes = max(1, hardware.vector_unit_bytes // element_bytes)
    vectorized: Flags = np.any(nest.vector, axis=0)
    reduction, window, extent = _reduction(nest)
    in_lanes = ~vectorized & (extent >= _LEAST_IN_LANES) & _neighbors(nest, footprints, window)
    # As the pass: the largest power of two that is no longer than the reduction.
    width = np.minimum(lanes * CHAINS, np.exp2(np.floor(np.log2(np.maximum(extent, 1.0)))))
    length = np.where(in_lanes, width, product_where(nest.vector, nest.extents))
    vectors = np.where(vectorized | in_lanes, vector_count(length, lanes, hardware), 1.0)
    rows = product_where(nest.tile & ~nest.vector, nest.extents)
    dot = _dot_width(nest, dots, vectorized, reduction)
    per_iteration = np.where(in_lanes, extent / np.ceil(extent / width), 1.0) * dot
    iterations = product_where(reduction, nest.extents) / per_iteration
    steps = nest.inner[0] / (rows * np.where(in_lanes, 1.0, length) * per_iteration)
    return Innermost(
        lanes, vectorized, in_lanes, length, vectors, rows, len(nest.source.writes), dot, iterations, steps
    )


def vector_count(length: Floats, lanes: int, hardware: HardwareParams) -> Floats:
    """Vector operations for `length` elements: the last vector is masked, or split where there are no masks."""
    vectors, remainder = np.divmod(length, lanes)
    if hardware.lane_masks:
        return np.asarray(vectors + (remainder > 0))
    # Without masks the remainder takes a shorter vector for each power of two in it.
    return np.asarray(vectors + np.bitwise_count(remainder.astype(np.int64)))


def _reduction(nest: Nest) -> tuple[Flags, Flags, Floats]:
    """The reduction loops between the tile and the next spatial loop outside it (L, B), the innermost loop of more than
    one iteration where that is a reduction (L, B), and its extent (B,), else 1.
    """
    flags, window = np.zeros_like(nest.real), np.zeros_like(nest.real)
    is_reduced = np.zeros(nest.count, dtype=bool)
    closed = np.zeros(nest.count, dtype=bool)
    first = np.ones(nest.count, dtype=bool)
    for index in reversed(range(nest.depth)):
        if nest.reduce[index]:
            flags[index] = ~closed
            window[index] = first & nest.real[index]
            is_reduced = is_reduced | nest.real[index]
        else:
            closed = closed | (is_reduced & nest.real[index] & ~nest.tile[index])
        first = first & ~nest.real[index]
    return flags, window, product_where(window, nest.extents)


def _neighbors(nest: Nest, footprints: Sequence[Footprint], window: Flags) -> Flags:
    """(B,): whether every read moves to the next element, or not at all, along the loop of `window`."""
    body = nest.source.op.body
    one_value = isinstance(body, Reduce) and isinstance(body.combiner, str)
    if not nest.depth or not one_value or nest.source.ops.select_op:
        return np.zeros(nest.count, dtype=bool)
    loop = np.argmax(window, axis=0)
    straight = np.ones(nest.count, dtype=bool)
    some = np.zeros(nest.count, dtype=bool)
    for footprint in footprints:
        if footprint.is_write:
            continue
        stride = pick(footprint.strides, loop)
        straight = straight & (stride <= 1) & footprint.exact
        some = some | (stride == 1)
    return straight & some & window.any(axis=0)


def _dot_width(nest: Nest, dots: Collection[Pair], vectorized: Flags, reduction: Flags) -> Floats:
    """(B,): products that one instruction sums, 1 where there is no instruction for them."""
    width = np.ones(nest.count)
    factors, result = nest.source.ops.factors, sum_type(nest.source.write.tensor.dtype)
    if factors is None or not is_possible(dots, *factors):
        return width
    is_summed = set(factors) <= set(BYTES) if result in ("int32", "uint32") else set(factors) == {BFLOAT16}
    most = products_per_sum(dots, *factors) if is_summed else 1
    possible = vectorized & np.any(reduction & (nest.extents % most == 0), axis=0)
    return np.where(possible, float(most), width)
