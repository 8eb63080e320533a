"""Enumerates the compute locations of a sketch's small producers, such as padding or a short reduction.

Each is computed at the root, inside a loop of its reader or, when it is cheap, inlined. The first way changes nothing;
the list is bounded.
"""

from collections.abc import Iterator, Sequence

from retune.compiler.ir.expr import Call
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.reads import is_read_by_function, needs_multi_level_tiling, single_consumer
from retune.compiler.schedule.state import Annotation, Attached, IterKind, Root, State
from retune.compiler.schedule.steps import ComputeAt, ComputeInline, ComputeRoot, Step
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp

_MOST_ENUMERATED = 256
"""Far more than `SearchOptions.max_location_variants`; bounds the exponential enumeration."""


def placements_of(sketch: State, limit: int) -> tuple[tuple[Step, ...], ...]:
    """At most `limit` step lists for a sketch, each placing every movable stage; evenly chosen if there are more."""
    movable = [stage for stage in reversed(range(len(sketch.stages))) if _is_movable(sketch, stage)]
    variants: list[tuple[Step, ...]] = []
    for steps in _enumerate(sketch, movable):
        variants.append(steps)
        # The number of combinations is exponential in the movable stages.
        if len(variants) == _MOST_ENUMERATED:
            break
    if len(variants) <= limit:
        return tuple(variants)
    if limit == 1:
        return (variants[0],)
    # Evenly spaced in the depth-first order, which varies the last stages fastest: the first entries alone would all
    # place the first stage alike.
    return tuple(variants[number * (len(variants) - 1) // (limit - 1)] for number in range(limit))


def _enumerate(state: State, movable: Sequence[int]) -> Iterator[tuple[Step, ...]]:
    """Depth first over the movable stages, last stage first: a reader is placed before what it reads."""
    if not movable:
        yield ()
        return
    stage, remaining = movable[0], movable[1:]
    for move in (*_stay(state, stage), *candidate_locations(state, stage), *_inline(state, stage)):
        placed = state if move is None else state.apply(move)
        for steps in _enumerate(placed, remaining):
            yield steps if move is None else (move, *steps)


def _stay(state: State, stage: int) -> tuple[Step | None, ...]:
    """The choice of a loop nest at the root."""
    return (None,) if isinstance(state.stages[stage].location, Root) else (ComputeRoot(stage),)


def _inline(state: State, stage: int) -> tuple[ComputeInline, ...]:
    """The choice of computing a cheap stage, such as a padding, at every read. It comes last, so that a bounded list of
    the choices of one stage always contains it.
    """
    op = state.stages[stage].op
    if (
        not isinstance(op, ComputeOp)
        or op.reduce_axes
        or len(op.dtypes) > 1
        or single_consumer(state, stage) is None
        or stage in state.dag.output_ids
        or is_read_by_function(state, stage)
        # A function call costs too much to repeat at every read.
        or any(isinstance(node, Call) for node in walk(op.body))
        or any(isinstance(other.location, Attached) and other.location.stage == stage for other in state.stages)
    ):
        return ()
    return (ComputeInline(stage),)


def _is_movable(state: State, stage: int) -> bool:
    """Whether a stage is computed at a location the sketch leaves open, and neither tiled nor worth tiling."""
    described = state.stages[stage]
    if not described.is_compute or not isinstance(described.location, Root):
        return False
    return not (described.is_tiled or needs_multi_level_tiling(state.dag, stage))


def candidate_locations(state: State, stage: int) -> tuple[ComputeAt, ...]:
    """Where a stage may be computed inside its reader's loops, or inside the loops around its reader."""
    target = single_consumer(state, stage)
    if target is None or stage in state.dag.output_ids or is_read_by_function(state, stage):
        return ()
    reader = state.stages[target]
    used = _axes_read(state, stage, target)
    attached = isinstance(reader.location, Attached)
    locations: list[ComputeAt] = []
    reducing = False
    for number, iterator in enumerate(reader.iters):
        if iterator.kind is IterKind.REDUCTION:
            reducing = True
            # Inside a reduction loop of a naive nest the stage would be recomputed in each iteration.
            if not reader.is_tiled:
                break
        elif reducing or iterator.annotation is Annotation.UNROLL:
            break
        # The outermost tile of an attached reader has extent 1 after bounds inference: its loops are those of its own
        # consumer.
        outermost = attached and iterator.name.endswith(".0") and iterator.kind is IterKind.SPATIAL
        if outermost or _base(iterator.name) not in used:
            continue
        if number == len(reader.iters) - 1:
            break
        locations.append(ComputeAt(stage, target, number))
        if state.attached_at(target, number):
            break
    if isinstance(reader.location, Attached):
        positions = {number for number, axis in enumerate(_axes(state, target)) if axis in used}
        locations = [*_around(state, stage, reader.location, positions), *locations]
    return tuple(locations)


def _around(state: State, stage: int, location: Attached, positions: set[int]) -> list[ComputeAt]:
    """The loops outside `location`, in which the reader is computed, over the axes at these positions.

    The reader's own reader matches it element by element, so their axes correspond.
    """
    locations: list[ComputeAt] = []
    axes = _axes(state, location.stage)
    for number, iterator in enumerate(state.stages[location.stage].iters):
        if iterator.kind is IterKind.REDUCTION or state.attached_at(location.stage, number):
            break
        base = _base(iterator.name)
        if base in axes and axes.index(base) in positions:
            locations.append(ComputeAt(stage, location.stage, number))
    return locations


def _axes(state: State, stage: int) -> tuple[str, ...]:
    op = state.stages[stage].op
    return tuple(axis.name for axis in op.axes) if isinstance(op, ComputeOp) else ()


def _axes_read(state: State, stage: int, target: int) -> set[str]:
    """Names of the axes of `target`, longer than 1, that say which part of `stage` it reads.

    Inside a loop over any other axis the same part would be recomputed. If the read goes through an inlined stage every
    axis counts.
    """
    op = state.stages[target].op
    reads = [indices for producer, indices in state.dag.reads[target] if producer == stage]
    if not reads and isinstance(op, ComputeOp):
        return {axis.name for axis in (*op.axes, *op.reduce_axes) if axis.extent > 1}
    axes = (node for indices in reads for index in indices for node in walk(index) if isinstance(node, Axis))
    return {axis.name for axis in axes if axis.extent > 1}


def _base(name: str) -> str:
    return name.split(".")[0]
