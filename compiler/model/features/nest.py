"""The loop nest of a statement in float64 arrays over B programs.

A *level* i of a nest of L loops means "loops i .. L-1 run, those outside are fixed": level 0 is the whole statement,
level L one iteration. Arrays over loops have the shape (L, B), arrays over levels (L + 1, B). All values are integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from retune.compiler.schedule.bounds import Loop
from retune.compiler.schedule.choices import LoopChoices
from retune.compiler.schedule.linear import LoopKey
from retune.compiler.schedule.state import THREAD_LOOPS, Annotation, IterKind, Number
from retune.compiler.schedule.statements import StageNest

# Not int64: products of many extents would wrap around; here they lose digits.
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def column(number: Number, count: int) -> Floats:
    """`number`, an integer or an array (B,), as float64 (count,)."""
    return np.full(count, number, dtype=np.float64)


def inner_products(extents: Floats) -> Floats:
    """(L, B) → (L + 1, B): iterations at each level."""
    products = np.ones((len(extents) + 1, extents.shape[1]))
    for loop in reversed(range(len(extents))):
        np.multiply(products[loop + 1], extents[loop], out=products[loop])
    return products


def product_where(flags: Flags, extents: Floats) -> Floats:
    """(B,): product of the flagged extents, 1 without any."""
    result: Floats = np.where(flags, extents, 1.0).prod(axis=0)
    return result


@dataclass(frozen=True, slots=True)
class Nest:
    """A statement's loops in arrays."""

    source: StageNest
    count: int
    """B, the number of programs."""
    extents: Floats
    """(L, B)"""
    inner: Floats
    """Iterations at each level, (L + 1, B)."""
    outer: Floats
    """Number of runs of each level, (L + 1, B)."""
    last: Floats
    """The last value of each loop's variable, (L, B)."""
    real: Flags
    """Loops of more than one iteration, (L, B)."""
    numbers: Mapping[LoopKey, int]
    """The index of each loop."""
    reduce: tuple[bool, ...]
    """Which loops are the statement's own reductions."""
    groups: tuple[int, ...]
    """Numbers, from the innermost outwards, of the runs of loops of the same kind."""
    positions: Mapping[str, list[int]]
    """Loops by their position among those of their kind, such as `inner_spatial`."""
    vector: Flags
    """The vector loop, (L, B)."""
    parallel: Flags
    """Loops that run in parallel, (L, B)."""
    tile: Flags
    """Loops whose iterations are registers: spatial loops inside every reduction, and the vector loop, (L, B)."""
    vector_loop: int
    """The actual or possible vector loop, -1 without any."""
    unroll_limit: Floats
    """In vector operations, (B,)."""

    @property
    def depth(self) -> int:
        """L, the number of loops."""
        return len(self.groups)


def nest_arrays(nest: StageNest, choices: LoopChoices, count: int) -> Nest:
    """The arrays of one statement of `count` programs."""
    loops = nest.loops
    depth = len(loops)
    extents = np.empty((depth, count))
    for index, loop in enumerate(loops):
        extents[index] = loop.extent
    inner = inner_products(extents)
    kinds = [loop.kind is IterKind.REDUCTION for loop in loops]
    # A reduction of an outer stage only repeats this stage.
    reduce = [kind and index >= depth - nest.own for index, kind in enumerate(kinds)]
    real = extents > 1
    vector, vector_loop = _vector_flags(nest, choices, real)
    unroll_limit = choices.unroll.get(nest.stage, 0)
    groups = _groups(kinds)
    return Nest(
        source=nest,
        count=count,
        extents=extents,
        inner=inner,
        outer=inner[0] / inner,
        last=extents - 1,
        real=real,
        numbers={loop.key: index for index, loop in enumerate(loops)},
        reduce=tuple(reduce),
        groups=groups,
        positions=_positions(kinds, groups),
        vector=vector,
        parallel=_parallel_flags(nest, choices, real),
        tile=_tile_flags(nest, real, reduce) | vector,
        vector_loop=vector_loop,
        unroll_limit=column(unroll_limit, count),
    )


def _groups(reduce: Sequence[bool]) -> tuple[int, ...]:
    runs = [len(list(run)) for _, run in groupby(reduce)]
    return tuple(len(runs) - 1 - run for run, length in enumerate(runs) for _ in range(length))


def _positions(kinds: Sequence[bool], groups: Sequence[int]) -> dict[str, list[int]]:
    """Loops by position among those of their kind: outer for the first group, inner for the last."""
    result: dict[str, list[int]] = {}
    for name, reduce in (("spatial", False), ("reduce", True)):
        members = [index for index, kind in enumerate(kinds) if kind == reduce]
        ranks = [groups[index] for index in members]
        # All loops of the kind in one run: then each loop is its own group.
        if len(set(ranks)) == 1:
            ranks = members[::-1]
        for index, rank in zip(members, ranks, strict=True):
            position = "inner" if rank == min(ranks) else "outer" if rank == max(ranks) else "middle"
            result.setdefault(f"{position}_{name}", []).append(index)
    return result


def _vector_flags(nest: StageNest, choices: LoopChoices, real: Flags) -> tuple[Flags, int]:
    """Vector flags (L, B), and the actual or possible vector loop, -1 if there is none."""
    flags = np.zeros_like(real)
    depth = len(nest.loops)
    candidates = [index for index in range(depth - nest.own, depth) if _may_be_vector(nest.loops[index])]
    marked = [index for index, loop in enumerate(nest.loops) if loop.annotation is Annotation.VECTORIZE]
    for index in marked:
        flags[index] = real[index]
    last = marked[-1] if marked else candidates[-1] if candidates else -1
    if last >= 0:
        flags[last] |= real[last] & (np.asarray(choices.vector.get(nest.stage, 0)) > 0)
    return flags, last


def _may_be_vector(loop: Loop) -> bool:
    return loop.kind is not IterKind.REDUCTION and loop.annotation is not Annotation.UNROLL


def _parallel_flags(nest: StageNest, choices: LoopChoices, real: Flags) -> Flags:
    flags = np.zeros_like(real)
    # Threads divide loops inside the steps of a scan.
    root = nest.loops[nest.steps].key[0] if len(nest.loops) > nest.steps else -1
    chosen = np.asarray(choices.parallel.get(root, 0))
    for index, loop in enumerate(nest.loops):
        if loop.annotation is Annotation.PARALLEL:
            flags[index] = real[index]
        elif loop.key[0] == root:
            flags[index] = real[index] & (chosen > index - nest.steps)
    return flags


def _tile_flags(nest: StageNest, real: Flags, reduce: Sequence[bool]) -> Flags:
    """Spatial loops with a reduction outside and none inside; all own loops of the sums of a GPU's thread, whose steps
    are written outside of them. (L, B).
    """
    flags = np.zeros_like(real)
    outer = nest.loops[: len(nest.loops) - nest.own]
    if nest.attached and any(reduce) and any(loop.annotation in THREAD_LOOPS for loop in outer):
        for index in range(len(outer), len(reduce)):
            flags[index] = real[index] & (not reduce[index])
        return flags
    closed = np.zeros(real.shape[1], dtype=bool)
    for index in reversed(range(len(reduce))):
        if reduce[index]:
            closed = closed | real[index]
        else:
            flags[index] = real[index] & ~closed
    flags &= closed
    return flags


def unrolled_flags(nest: Nest, tile_operations: Floats) -> tuple[Flags, Floats]:
    """Which reduction loops are unrolled (L, B), and the resulting number of straight-line vector operations (B,).

    Reductions are unrolled from the innermost outwards, as long as the operations stay within the limit and only loops
    of the tile are in between.
    """
    flags = np.zeros_like(nest.real)
    operations = tile_operations
    open_ = np.ones(nest.count, dtype=bool)
    for index in reversed(range(nest.depth)):
        if nest.reduce[index]:
            grown = operations * nest.extents[index]
            open_ = open_ & (grown <= nest.unroll_limit)
            flags[index] = open_ & nest.real[index]
            operations = np.where(open_, grown, operations)
        else:
            open_ = open_ & (nest.tile[index] | ~nest.real[index])
        if nest.source.loops[index].annotation is Annotation.UNROLL:
            flags[index] = nest.real[index]
    return flags, operations
