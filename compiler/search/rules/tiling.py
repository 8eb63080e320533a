"""Multi-level tiling by a structure such as SSRSRS, of a stage and of its consumer; tile lengths stay unknown.

Loops that the operation's attribute `auto_scheduler_no_split_at_inner` names are not split; they are placed at the
innermost level of their kind.
"""

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import Iterator, IterKind, State
from retune.compiler.schedule.steps import FollowSplit, Reorder, Split
from retune.compiler.search.rules.facts import NO_SPLIT, named_loops


def tile_stage(state: State, stage: int, structure: str) -> tuple[State, tuple[int, ...]]:
    """Split every axis of a stage into the levels of `structure` and order the loops level by level.

    before: for i: for j: for k         after SSRSRS: for i0 j0: for i1 j1: for k0: for i2 j2: for k1: for i3 j3

    Returns the state and the numbers of the split steps of the spatial axes, in axis order.
    Raises: ScheduleError when a loop is neither spatial nor a reduction.
    """
    levels: dict[IterKind, list[list[int]]] = {
        IterKind.SPATIAL: [[] for _ in range(structure.count("S"))],
        IterKind.REDUCTION: [[] for _ in range(structure.count("R"))],
    }
    uncut: dict[IterKind, list[int]] = {IterKind.SPATIAL: [], IterKind.REDUCTION: []}
    whole = named_loops(state, stage, NO_SPLIT)
    spatial_splits: list[int] = []
    position = 0
    for iterator in state.stages[stage].iters:
        if iterator.kind not in levels:
            raise ScheduleError(f"stage {stage}: cannot tile loop {iterator.name}, neither spatial nor a reduction")
        if iterator.name in whole:
            uncut[iterator.kind].append(position)
            position += 1
            continue
        parts = levels[iterator.kind]
        if len(parts) > 1:
            if iterator.kind is IterKind.SPATIAL:
                # The number of the step, which a consumer's FollowSplit refers to.
                spatial_splits.append(len(state.steps))
            lengths = (None,) * (len(parts) - 1)
            state = state.apply(Split(stage, position, literal_extent(iterator), lengths))
        for level in parts:
            level.append(position)
            position += 1
    for kind, loops in uncut.items():
        if loops and not levels[kind]:
            raise ScheduleError(f"stage {stage}: the structure {structure} has no level for its reduction")
        if loops:
            levels[kind][-1][:0] = loops
    order: list[int] = []
    seen = {IterKind.SPATIAL: 0, IterKind.REDUCTION: 0}
    for letter in structure:
        kind = IterKind.SPATIAL if letter == "S" else IterKind.REDUCTION
        order += levels[kind][seen[kind]]
        seen[kind] += 1
    return state.apply(Reorder(stage, tuple(order))), tuple(spatial_splits)


def follow_tiling(state: State, stage: int, splits: tuple[int, ...], levels: int) -> State:
    """Split the axes of an elementwise consumer like the spatial axes of its tiled producer, into `levels` + 1 parts,
    level by level.

    Raises: ScheduleError when the numbers of axes differ or a loop is not spatial.
    """
    whole = named_loops(state, stage, NO_SPLIT)
    iters = state.stages[stage].iters
    cut = [iterator for iterator in iters if iterator.name not in whole]
    if len(cut) != len(splits):
        raise ScheduleError(f"stage {stage}: has {len(cut)} loops and cannot follow {len(splits)} splits")
    if any(iterator.kind is not IterKind.SPATIAL for iterator in iters):
        raise ScheduleError(f"stage {stage}: reduces and cannot follow the tiles of what it reads")
    tiles: list[list[int]] = [[] for _ in range(levels + 1)]
    sources = iter(splits)
    position = 0
    for iterator in iters:
        if iterator.name in whole:
            tiles[-1].append(position)
            position += 1
            continue
        state = state.apply(FollowSplit(stage, position, next(sources), levels))
        for tile in tiles:
            tile.append(position)
            position += 1
    return state.apply(Reorder(stage, tuple(number for tile in tiles for number in tile)))


def literal_extent(iterator: Iterator) -> int:
    """The extent of an unsplit loop.

    Raises: ScheduleError when it is not a known number.
    """
    if not isinstance(iterator.extent, int):
        raise ScheduleError(f"loop {iterator.name} has no literal extent")
    return iterator.extent
