"""Bounds inference of a state, for one program or a family: regions, loop extents, and axes as linear forms of loops.

It takes a few hundred NumPy calls whatever the number of programs.

A stage with its own loop nest covers its whole shape. A stage inside a loop of another covers the region that one
iteration of this loop reads; its buffer has the shape of that region. Fused loops are replaced by their parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.affine import Affine, between
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.default.fused_parts import FusedPart, final_loops, fixed_with_parts
from retune.compiler.schedule.inlining import inlined_stages, reads_of
from retune.compiler.schedule.linear import Linear, LoopKey, linearize
from retune.compiler.schedule.relations import loop_sizes, rejoin_factors, unsplit
from retune.compiler.schedule.state import (
    SHARED_SUFFIX,
    Annotation,
    Attached,
    Family,
    FuseRelation,
    Inlined,
    Iterator,
    IterKind,
    Number,
    Root,
    Stage,
    State,
)
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

_THREADS = (Annotation.VTHREAD, Annotation.THREAD_X, Annotation.THREAD_Y, Annotation.THREAD_Z)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop around a statement."""

    key: LoopKey
    extent: Number
    kind: IterKind
    annotation: Annotation


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The region of one evaluation of a stage: the first point, over the loops around it, and the extents."""

    mins: tuple[Linear, ...]
    extents: tuple[Number, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StageBounds:
    """A stage's region, own loops and axes."""

    region: Region
    """The region of one evaluation of the stage."""
    outer: tuple[Loop, ...]
    """Loops of other stages around it, outermost first."""
    own: tuple[Loop, ...]
    """Its own loops, outermost first; a fused loop is replaced by its parts."""
    local: Mapping[Expr, Linear]
    """The axis values relative to the region's first point."""
    iter_extents: tuple[Number, ...]
    """Extents of its loops, in the order of the state."""
    sizes: Mapping[str, Number]
    """Extents of every axis and of everything it was split or fused into."""
    family: Family | None
    """The differences between the programs of a family; None without any."""
    fused_parts: Mapping[LoopKey, FusedPart]
    """The loops that each part of a fused loop depends on."""


def infer_stage_bounds(state: State) -> dict[int, StageBounds]:
    """Bounds of every stage that has loops, by stage number.

    Raises: ScheduleError when a tile size is unknown, or a stage is computed where some of its readers are not.
    """
    if not state.concrete:
        raise ScheduleError("bounds need every tile size; fill in the unknown lengths of the sketch first")
    bounds: dict[int, StageBounds] = {}
    extents: dict[LoopKey, Number] = {}
    # Readers come later, so a stage's region is known from all its readers when it is visited.
    for stage_id in range(len(state.stages) - 1, -1, -1):
        stage = state.stages[stage_id]
        if not isinstance(stage.op, ComputeOp) or isinstance(stage.location, Inlined):
            continue
        outer: tuple[Loop, ...] = ()
        if isinstance(stage.location, Attached):
            outer = _loops_around(state, bounds, stage.location)
            region = _region_read(state, bounds, extents, stage_id, _fixed_loops(stage, outer))
        else:
            region = Region(tuple(Affine() for _ in stage.op.axes), stage.shape)
        bounds[stage_id] = _stage_bounds(stage_id, stage, stage.op, region, outer)
        extents.update(extents_of(bounds[stage_id]))
    return bounds


def extents_of(bounds: StageBounds) -> dict[LoopKey, Number]:
    """The extents of a stage's own loops and parts of fused loops."""
    extents = {loop.key: loop.extent for loop in bounds.own}
    extents.update((key, part.extent) for key, part in bounds.fused_parts.items())
    return extents


def fused_parts_of(bounds: Mapping[int, StageBounds]) -> dict[LoopKey, FusedPart]:
    return {key: part for stage_bounds in bounds.values() for key, part in stage_bounds.fused_parts.items()}


def infer_bounds(state: State) -> State:
    """The state with every loop extent known. Raises: ScheduleError as `infer_stage_bounds`."""
    for stage_id, stage_bounds in infer_stage_bounds(state).items():
        stage = state.stages[stage_id]
        iters = tuple(replace(it, extent=ext) for it, ext in zip(stage.iters, stage_bounds.iter_extents, strict=True))
        state = state.with_stage(stage_id, replace(stage, iters=iters))
    return state


def axis_values(op: ComputeOp, bounds: StageBounds) -> dict[Expr, Linear]:
    """The absolute value of every axis as a form over all loops around the statement."""
    values = dict(bounds.local)
    for axis, low in zip(op.axes, bounds.region.mins, strict=True):
        values[axis] = values[axis] + low
    if bounds.family is not None:
        forms = {axis.name: form for axis, form in values.items() if isinstance(axis, Axis)}
        sizes = bounds.family.sizes

        def hull(name: str) -> Linear:
            return between(0, sizes[name] - 1)

        relations = bounds.family.relations
        # A part of a fused loop counts as its whole interval: a hull.
        forms = unsplit(relations, sizes, forms, lambda fused, _: map(hull, fused.parts), mul)
        values.update((axis, forms.get(axis.name) or hull(axis.name)) for axis in bounds.family.memoized)
    return values


def _loops_around(state: State, bounds: Mapping[int, StageBounds], location: Attached) -> tuple[Loop, ...]:
    """All loops around a stage at `location`, outermost first."""
    target = bounds.get(location.stage)
    if target is None:
        raise ScheduleError(f"{state.stages[location.stage].op.name} has no loops to compute another stage in")
    inside = _component_count(state.stages[location.stage], location.iter + 1)
    return (*target.outer, *target.own[:inside])


def _fixed_loops(stage: Stage, outer: Sequence[Loop]) -> set[LoopKey]:
    """The loops around a stage that are fixed while it is computed once: all, except that a stage shared by the threads
    of a GPU block is computed for all threads together.
    """
    shared = stage.op.name.endswith(SHARED_SUFFIX)
    return {loop.key for loop in outer if not (shared and loop.annotation in _THREADS)}


def _component_count(stage: Stage, iters: int) -> int:
    fused = {relation.fused: relation.parts for relation in stage.relations if isinstance(relation, FuseRelation)}
    return sum(len(_components(iterator.name, fused)) for iterator in stage.iters[:iters])


def _components(name: str, fused: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if name not in fused:
        return (name,)
    return tuple(leaf for part in fused[name] for leaf in _components(part, fused))


def _region_read(
    state: State,
    bounds: Mapping[int, StageBounds],
    extents: Mapping[LoopKey, Number],
    stage_id: int,
    fixed: set[LoopKey],
) -> Region:
    """The part of stage `stage_id`, of any of its results, that is read while the loops `fixed` stand still."""
    tensors = state.dag.nodes[stage_id].tensors
    # All results of an operation have one shape, so one region serves them all.
    tensor = tensors[0]
    mins: list[Linear | None] = [None] * len(tensor.shape)
    highs: list[Number] = [0] * len(tensor.shape)
    fixed_parts = fixed_with_parts(fixed, fused_parts_of(bounds))
    inlined = inlined_stages(state)
    for reader in sorted(bounds):
        op = state.stages[reader].op
        reads = [node.indices for node in reads_of(state.dag, reader, inlined) if node.tensor in tensors]
        if not reads or not isinstance(op, ComputeOp):
            continue
        if not fixed <= {loop.key for loop in (*bounds[reader].outer, *bounds[reader].own)}:
            raise ScheduleError(
                f"{tensor.name}: {op.name} reads it outside the loop it is computed in; compute it further out"
            )
        leaves = axis_values(op, bounds[reader])
        for dim, indices in enumerate(zip(*reads, strict=True)):
            # A window reads each row for every column: an index that repeats adds nothing to the hull.
            for index in dict.fromkeys(indices):
                low, reach = _split_form(linearize(index, leaves, extents), fixed_parts, extents)
                mins[dim], highs[dim] = _hull(mins[dim], highs[dim], low, reach, extents)
    if any(low is None for low in mins):
        raise ScheduleError(f"{tensor.name}: nothing inside the loop it is computed in reads it")
    regions = [
        _clip(low, reach, full)
        for low, reach, full in zip(mins, highs, state.stages[stage_id].shape, strict=True)
        if low is not None
    ]
    return Region(tuple(low for low, _ in regions), tuple(extent for _, extent in regions))


def _split_form(form: Linear, fixed: set[LoopKey], extents: Mapping[LoopKey, Number]) -> tuple[Linear, Number]:
    """The smallest value over the free loops, as a form of the fixed loops, and how far above it the index reaches."""
    free: Linear = Affine(0, {key: value for key, value in form.terms.items() if key not in fixed}, form.spread)
    # Interval arithmetic over the free loops is exact: each occurs once in a linear form.
    low, high = free.limits(extents)
    fixed_terms = {key: value for key, value in form.terms.items() if key in fixed}
    return Affine(form.const + low, fixed_terms, 0, form.exact), high - low


def _hull(
    low: Linear | None, reach: Number, other: Linear, other_reach: Number, extents: Mapping[LoopKey, Number]
) -> tuple[Linear, Number]:
    """The smallest region over both: exact when they differ only by a constant, else without the loops."""
    if low is None:
        return other, other_reach
    is_parallel = low.terms.keys() == other.terms.keys() and all(
        bool(np.all(low.terms[key] == other.terms[key])) for key in low.terms
    )
    if not is_parallel:
        first, second = low.hull(extents), other.hull(extents)
        # Forms that move differently have no common form: the interval of both, which does not depend on the loops.
        start = np.minimum(first.const, second.const)
        end = np.maximum(first.const + first.spread + reach, second.const + second.spread + other_reach)
        return Affine(_number(start), {}, 0, False), _number(end - start)
    start = np.minimum(low.const, other.const)
    end = np.maximum(low.const + reach, other.const + other_reach)
    return Affine(_number(start), low.terms, 0, low.exact and other.exact), _number(end - start)


def _number(value: np.ndarray | np.integer | int) -> Number:
    return value if isinstance(value, np.ndarray) and value.ndim else int(value)


def _clip(low: Linear, reach: Number, full: Number) -> tuple[Linear, Number]:
    """The region within the tensor; a region as large as the tensor starts at 0 whatever the loops."""
    extent = reach + 1
    if isinstance(extent, int) and isinstance(full, int):
        return (Affine(), full) if extent >= full else (low, extent)
    # A family of programs: where the region is the whole tensor its loops drop out, by a factor of 0.
    is_whole = extent >= full
    factor = np.where(is_whole, 0, 1)
    terms = {key: value * factor for key, value in low.terms.items()}
    return Affine(low.const * factor, terms, 0, low.exact), np.minimum(extent, full)


def _stage_bounds(stage_id: int, stage: Stage, op: ComputeOp, region: Region, outer: tuple[Loop, ...]) -> StageBounds:
    axes = {axis.name: size for axis, size in zip(op.axes, region.extents, strict=True)}
    axes.update({axis.name: stage.extent_of(axis) for axis in op.reduce_axes})
    sizes: dict[str, Number] = {}
    for name, extent in loop_sizes(stage.relations, axes).items():
        if extent is None:
            raise ScheduleError(f"{op.name}: the length of {name} is unknown")
        sizes[name] = extent
    fused = {relation.fused: relation.parts for relation in stage.relations if isinstance(relation, FuseRelation)}
    own = []
    for iterator in stage.iters:
        for name in _components(iterator.name, fused):
            own.append(
                Loop((stage_id, name), sizes.get(name, 1), _component_kind(iterator, name, op), iterator.annotation)
            )
    local, fused_parts = _local_values(stage_id, stage, op, sizes, own)
    iter_extents = tuple(sizes.get(iterator.name, 1) for iterator in stage.iters)
    return StageBounds(region, outer, tuple(own), local, iter_extents, sizes, stage.family, fused_parts)


def _component_kind(iterator: Iterator, name: str, op: ComputeOp) -> IterKind:
    if iterator.kind is not IterKind.MIXED:
        return iterator.kind
    # Parts keep the name of their axis before the first dot.
    base = name.split(".")[0]
    return IterKind.REDUCTION if base in {axis.name for axis in op.reduce_axes} else IterKind.SPATIAL


def _local_values(
    stage_id: int, stage: Stage, op: ComputeOp, sizes: Mapping[str, Number], own: Sequence[Loop]
) -> tuple[dict[Expr, Linear], dict[LoopKey, FusedPart]]:
    """Every axis relative to the region's start, through splits and fusions, and the parts of fused loops in it."""
    fused_parts: dict[LoopKey, FusedPart] = {}
    extents = {loop.key: loop.extent for loop in own}
    names = frozenset(loop.key[1] for loop in own)

    def loop(name: str) -> Linear:
        return Affine(0, {(stage_id, name): 1})

    def parts_of(relation: FuseRelation, fused: Linear) -> Iterable[Linear]:
        loops = frozenset((stage_id, name) for name in final_loops(relation.fused, stage.relations, names))
        stride: Number = 1
        for part in relation.parts[1:]:
            stride = stride * sizes[part]
        for part in relation.parts:
            first = part == relation.parts[0]  # the split of the fused loop may overrun
            extent = fused.limits(extents)[1] // stride + 1 if first else sizes[part]
            fused_parts[stage_id, part] = FusedPart(loops, extent)
            extents[stage_id, part] = extent
            yield loop(part)

    values = unsplit(stage.relations, sizes, {name: loop(name) for name in names}, parts_of, mul)
    local: dict[Expr, Linear] = {axis: values[axis.name] for axis in (*op.axes, *op.reduce_axes)}
    if isinstance(stage.location, Root):  # where an axis has the value of its loops, and no part of a region
        local.update((joined, values[name]) for name, joined in rejoin_factors(stage) if name in values)
    return local, fused_parts
