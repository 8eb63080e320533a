"""Extracts features (B, S, F) from the S statements of B programs of one structure.

Row i depends on program i alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import is_float
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dot import Pair
from retune.compiler.model.features.buffers import (
    Columns,
    Producer,
    allocation_columns,
    buffer_columns,
    footprint_bytes,
    intensity_columns,
    memory_columns,
)
from retune.compiler.model.features.estimate import estimate_columns, operation_cost
from retune.compiler.model.features.footprint import Footprint, footprints_of
from retune.compiler.model.features.gpu import gpu_columns, is_bound, shared_tensors
from retune.compiler.model.features.gpu_estimate import Launched, Moved, gpu_estimates
from retune.compiler.model.features.lowering import innermost
from retune.compiler.model.features.main_loop import Statement
from retune.compiler.model.features.nest import Floats, Nest, column, nest_arrays
from retune.compiler.model.features.table import FEATURE_NAMES, INDEX, OPERATION_NAMES
from retune.compiler.model.features.tile import parallel_columns, tile_columns
from retune.compiler.model.features.tiled_estimate import tensor_estimates, tiled_estimates
from retune.compiler.schedule.choices import LoopChoices
from retune.compiler.schedule.linear import Linear
from retune.compiler.schedule.state import Number
from retune.compiler.schedule.statements import StageNest

_WEIGHTS = {
    # A multiply-add is two operations.
    kind: {name: 2 if name == f"{kind}_mad" else 1 for name in OPERATION_NAMES if name.startswith(f"{kind}_")}
    for kind in ("float", "int")
}
"""The weight of each operation on float and on integer results."""


def extract(
    nests: Sequence[StageNest],
    choices: LoopChoices,
    hardware: HardwareParams,
    *,
    count: int | None = None,
    dots: Collection[Pair] = (),
) -> NDArray[np.float32]:
    """Features of all programs of a family.

    Extents, coefficients and choices are integers or int64 arrays (B,). Returns (B, S, F) with a row per statement, in
    the order of `nests`, and a column per entry of `FEATURE_NAMES`. B is 1 when nothing is an array, unless `count`
    sets the number of equal programs. `dots` are the factor types of the target's dot-product instructions.
    """
    programs = count or _program_count(nests, choices)
    local = frozenset(write.tensor for nest in nests if nest.attached for write in nest.writes)
    arrays = [nest_arrays(nest, choices, programs) for nest in nests]
    footprints = [footprints_of(nest, local, hardware.cache_line_bytes) for nest in arrays]
    volumes = [footprint_bytes(nest, each) for nest, each in zip(arrays, footprints, strict=True)]
    features = np.empty((programs, len(nests), len(FEATURE_NAMES)), dtype=np.float32)
    statements: list[dict[str, Floats | float]] = []
    shared = shared_tensors(arrays)
    launches: dict[int, Launched] = {}
    bound: list[Statement] = []
    for row, nest in enumerate(arrays):
        producers = [_producer(row, footprint, arrays, footprints, volumes) for footprint in footprints[row]]
        values = dict(_statement(nest, footprints[row], producers, volumes[row], hardware, dots))
        cost = operation_cost(nest.source.ops, is_float(nest.source.write.tensor.dtype))
        values.update(estimate_columns(values, cost, any(nest.reduce), hardware))
        values.update(gpu_columns(row, arrays, hardware.gpu))
        if is_bound(nest):
            launched = launches[row] = Launched.of(values, hardware.gpu)
            moved = Moved(nest, footprints[row], shared, launched, hardware.gpu)
            bound.append(Statement(row, nest, footprints[row], moved))
            values.update(gpu_estimates(nest, moved, launched, cost, hardware.gpu))
        statements.append(values)
    # Last, since a main loop overlaps the copies and products whose own estimates these replace.
    for estimates_of in (tiled_estimates, tensor_estimates):
        for row, estimates in estimates_of(bound, launches, hardware.gpu):
            statements[row].update(estimates)
    total = np.zeros(programs)
    for values in statements:
        total = total + values["estimate_cycles"]
    for row, values in enumerate(statements):
        values["estimate_program"] = total
        values["estimate_share"] = values["estimate_cycles"] / total
        features[:, row, :] = _scale(values, programs).T
    return features


def _scale(values: Mapping[str, Floats | float], programs: int) -> NDArray[np.float32]:
    """(F, B): the columns in order, 0 where missing."""
    # 1 where a column is missing, whose logarithm is 0.
    table = np.ones((len(FEATURE_NAMES), programs), dtype=np.float32)
    for name, value in values.items():
        np.add(value, 1.0, out=table[INDEX[name]], casting="unsafe")
    # Flags of 0 or 1 are unchanged.
    return np.log2(table, out=table)


def _statement(
    nest: Nest,
    footprints: Sequence[Footprint],
    producers: Sequence[Producer | None],
    volume: Floats,
    hardware: HardwareParams,
    dots: Collection[Pair],
) -> Columns:
    line_bytes = hardware.cache_line_bytes
    ops = nest.source.ops
    for name in OPERATION_NAMES:
        yield name, getattr(ops, name) * nest.inner[0]
    weights = _WEIGHTS["float" if is_float(nest.source.write.tensor.dtype) else "int"]
    operations = column(sum(weight * getattr(ops, name) for name, weight in weights.items()), nest.count)
    yield "outer_prod", nest.inner[0]
    yield "num_loops", nest.real.sum(axis=0).astype(np.float64)
    yield "auto_unroll_max_step", nest.unroll_limit
    yield "inexact", float(not all(footprint.exact for footprint in footprints))
    yield from tile_columns(nest, footprints, innermost(nest, footprints, hardware, dots), hardware)
    yield from parallel_columns(nest, operations, hardware)
    yield from buffer_columns(nest, footprints, producers, volume, line_bytes)
    yield from intensity_columns(nest, volume, operations)
    yield from memory_columns(nest, footprints, operations, line_bytes)
    yield from allocation_columns(nest, footprints)


def _producer(
    row: int,
    footprint: Footprint,
    nests: Sequence[Nest],
    footprints: Sequence[Sequence[Footprint]],
    volumes: Sequence[Floats],
) -> Producer | None:
    """The statement that writes a buffer inside loops of this statement, if any."""
    loops = nests[row].source.loops
    for other, nest in enumerate(nests):
        writes = [access for access in footprints[other] if access.is_write and access.tensor == footprint.tensor]
        if other == row or not writes or not nest.source.attached:
            continue
        written = writes[0]
        # Two statements share the loops of the common prefix of their nests.
        pairs = zip(loops, nest.source.loops, strict=False)
        shared = next(
            (depth for depth, (own, its) in enumerate(pairs) if own.key != its.key), min(len(loops), nest.depth)
        )
        if shared:
            return Producer(shared, written.elements[shared], volumes[other][shared])
    return None


def _program_count(nests: Sequence[StageNest], choices: LoopChoices) -> int:
    for number in _numbers(nests, choices):
        if isinstance(number, np.ndarray):
            return len(number)
    return 1


def _numbers(nests: Sequence[StageNest], choices: LoopChoices) -> Iterator[Number]:
    for table in (choices.parallel, choices.vector, choices.unroll):
        yield from table.values()
    for nest in nests:
        yield from (loop.extent for loop in nest.loops)
        for access in (nest.write, *nest.reads):
            yield from access.shape
            yield from access.strides or ()
            yield from _linear_numbers(access.index)


def _linear_numbers(indices: Iterable[Linear]) -> Iterator[Number]:
    for linear in indices:
        yield linear.const
        yield linear.spread
        yield from linear.terms.values()
