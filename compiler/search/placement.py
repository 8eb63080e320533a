"""In: a sketch. Out: the ways to place its small producers (a padding stage, a short reduction): at their own nest or
inside a loop of their reader. Always: the first way changes nothing, and the list is bounded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from compiler.schedule.access import needs_multi_level_tiling, single_consumer
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.state import Attached, Inlined, IterKind, Root, State, replay
from compiler.schedule.state import Step as StateStep
from compiler.schedule.steps import ComputeAt, ComputeRoot, Split, Step

_MOST_ENUMERATED = 256


def placements_of(dag: ComputeDAG, sketch: State, limit: int) -> tuple[tuple[Step, ...], ...]:
    """At most `limit` step lists for a sketch of `dag`, each placing every movable stage; evenly chosen when there are
    more ways than that.
    """
    known = _with_trivial_lengths(dag, sketch)
    movable = [stage for stage in reversed(range(len(known.stages))) if _is_movable(known, stage)]
    found: list[tuple[Step, ...]] = []
    for steps in _enumerate(known, movable):
        found.append(steps)
        if len(found) == _MOST_ENUMERATED:
            break
    if len(found) <= limit:
        return tuple(found)
    if limit == 1:
        return (found[0],)
    return tuple(found[number * (len(found) - 1) // (limit - 1)] for number in range(limit))


def _enumerate(state: State, movable: Sequence[int]) -> Iterator[tuple[Step, ...]]:
    """Depth first over the movable stages, last stage first: a reader is placed before what it reads."""
    if not movable:
        yield ()
        return
    stage, rest = movable[0], movable[1:]
    for move in (*_stay(state, stage), *candidate_locations(state, stage)):
        placed = state if move is None else state.apply(move)
        for steps in _enumerate(placed, rest):
            yield steps if move is None else (move, *steps)


def _stay(state: State, stage: int) -> tuple[Step | None, ...]:
    """The choice of a nest of its own."""
    return (None,) if isinstance(state.stages[stage].location, Root) else (ComputeRoot(stage),)


def _is_movable(state: State, stage: int) -> bool:
    """Whether a stage is computed, not inlined, and neither tiled nor worth tiling."""
    described = state.stages[stage]
    if not described.is_compute or isinstance(described.location, Inlined):
        return False
    return not (described.is_tiled or needs_multi_level_tiling(state.dag, stage))


def candidate_locations(state: State, stage: int) -> tuple[ComputeAt, ...]:
    """Where a stage may be computed inside its reader's loops, or inside the loops around its reader."""
    target = single_consumer(state, stage)
    if target is None or stage in state.dag.output_ids:
        return ()
    reader = state.stages[target]
    attached = isinstance(reader.location, Attached)
    found: list[ComputeAt] = []
    reducing = False
    for number, iterator in enumerate(reader.iters):
        if iterator.kind is IterKind.REDUCTION:
            reducing = True
            if not reader.is_tiled:
                break
        elif reducing:
            break
        outermost = attached and iterator.name.endswith(".0") and iterator.kind is IterKind.SPATIAL
        if outermost or _is_trivial(iterator.extent):
            continue
        if number == len(reader.iters) - 1:
            break
        found.append(ComputeAt(stage, target, number))
        if state.attached_at(target, number):
            break
    if isinstance(reader.location, Attached):
        found = [*_around(state, stage, reader.location), *found]
    return tuple(found)


def _around(state: State, stage: int, place: Attached) -> list[ComputeAt]:
    """The loops outside the one in which the reader is computed."""
    found: list[ComputeAt] = []
    for number, iterator in enumerate(state.stages[place.stage].iters):
        if iterator.kind is IterKind.REDUCTION or state.attached_at(place.stage, number):
            break
        if not _is_trivial(iterator.extent):
            found.append(ComputeAt(stage, place.stage, number))
    return found


def _is_trivial(extent: object) -> bool:
    return isinstance(extent, int) and extent == 1


def _with_trivial_lengths(dag: ComputeDAG, sketch: State) -> State:
    """The sketch with the tile lengths of one-element loops filled in: they can only be 1."""
    return replay(dag, (_trivial(step) for step in sketch.steps))


def _trivial(step: StateStep) -> StateStep:
    if isinstance(step, Split) and step.extent == 1:
        return replace(step, lengths=(1,) * len(step.lengths))
    return step
