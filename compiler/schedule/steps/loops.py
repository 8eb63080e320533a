"""Transform steps that split, fuse or reorder the loops of a stage.

The loops run over the same points, and attached stages stay attached.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.relations import known_product, split_extents
from retune.compiler.schedule.state import Annotation, FuseRelation, Iterator, IterKind, Number, SplitRelation, State
from retune.compiler.schedule.steps.base import Step, iterator_of, splice


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Fuse neighboring loops."""

    tag: ClassVar[str] = "FU"

    iters: tuple[int, ...]

    def apply(self, state: State) -> State:
        """`for i: for j` becomes `for i@j@` with extent(i) × extent(j). An empty list makes a loop of one iteration
        around a rank-0 stage.
        """
        stage = state.stage(self.stage)
        if not self.iters:
            return self._around_everything(state)
        first, last = self.iters[0], self.iters[-1]
        if self.iters != tuple(range(first, first + len(self.iters))):
            raise ScheduleError(
                f"{stage.op.name}: only neighboring loops fuse, outermost first; got {list(self.iters)}"
            )
        parts = [iterator_of(state, self.stage, index) for index in self.iters]
        for part in parts:
            if part.annotation is not Annotation.NONE and len(parts) > 1:
                raise ScheduleError(f"{stage.op.name}: the loop {part.name} is annotated; fuse before annotating")
        for index in self.iters[:-1]:
            for inner in state.attached_at(self.stage, index):
                raise ScheduleError(
                    f"{stage.op.name}: cannot fuse {stage.iters[index].name} with the loop below it: "
                    f"{state.stages[inner].op.name} is computed between them; move it first"
                )
        extent = known_product([part.extent for part in parts])
        kinds = {part.kind for part in parts}
        kind = parts[0].kind if len(kinds) == 1 else IterKind.MIXED
        # TVM's name of a fused loop.
        name = "".join(f"{part.name}@" for part in parts)
        relation = FuseRelation(tuple(part.name for part in parts), name)
        fused = replace(
            stage,
            iters=splice(stage.iters, first, len(parts), (Iterator(name, extent, kind),)),
            relations=(*stage.relations, relation),
        )
        moved = state.with_stage(self.stage, fused)
        # A stage attached to the last fused loop is attached to the fused loop; inner attachments move outwards with
        # their loops.
        return moved.move_attachments(
            self.stage, lambda index: first if index == last else index - len(parts) + 1 if index > last else index
        )

    def _around_everything(self, state: State) -> State:
        """One loop of one iteration outside all loops, for a stage whose result has no axes."""
        stage = state.stage(self.stage)
        if not stage.is_compute or any(it.kind is not IterKind.REDUCTION for it in stage.iters):
            raise ScheduleError(f"{stage.op.name}: fusing no loops is only for a stage without spatial loops")
        outer = Iterator("", 1, IterKind.SPECIAL)
        moved = state.with_stage(self.stage, replace(stage, iters=(outer, *stage.iters)))
        return moved.move_attachments(self.stage, lambda index: index + 1)


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Permute the loops."""

    tag: ClassVar[str] = "RE"

    order: tuple[int, ...]

    def apply(self, state: State) -> State:
        """Loop number `order[n]` becomes loop n. Stages computed inside a loop move with it."""
        stage = state.stage(self.stage)
        if sorted(self.order) != list(range(len(stage.iters))):
            raise ScheduleError(
                f"{stage.op.name}: the order {list(self.order)} must name each of {len(stage.iters)} loops once"
            )
        # TVM leaves attachments where they were, so that a stage ends up in another loop; here they move with their
        # loop.
        position = {old: new for new, old in enumerate(self.order)}
        moved = state.with_stage(self.stage, replace(stage, iters=tuple(stage.iters[index] for index in self.order)))
        return moved.move_attachments(self.stage, position.__getitem__)


@dataclass(frozen=True, slots=True)
class Split(Step):
    """Tile a loop. An unknown tile size is None; `extent` 0 means unknown."""

    tag: ClassVar[str] = "SP"

    iter: int
    extent: int
    lengths: tuple[Number | None, ...]
    inner_to_outer: bool = True

    def apply(self, state: State) -> State:
        """`for i` becomes `for i.0: … for i.n`; the lengths are those of the inner n loops (or of the outer n); the
        other loop gets the remaining extent.
        """
        return split_loop(state, self.stage, self.iter, self.lengths, self.inner_to_outer)


def split_loop(
    state: State, stage_id: int, iter_id: int, lengths: Sequence[Number | None], inner_to_outer: bool
) -> State:
    """The state with one loop tiled; see `Split`."""
    iterator = iterator_of(state, stage_id, iter_id)
    stage = state.stages[stage_id]
    if iterator.annotation is not Annotation.NONE:
        raise ScheduleError(f"{stage.op.name}: the loop {iterator.name} is annotated; split it before annotating")
    if not lengths:
        raise ScheduleError(f"{stage.op.name}: splitting {iterator.name} needs at least one length")
    if any(isinstance(length, int) and length < 1 for length in lengths):
        raise ScheduleError(f"{stage.op.name}: the lengths {list(lengths)} of {iterator.name} must be positive")
    names = tuple(f"{iterator.name}.{level}" for level in range(len(lengths) + 1))
    relation = SplitRelation(iterator.name, names, tuple(lengths), inner_to_outer)
    extents = split_extents(iterator.extent, relation)
    parts = [Iterator(name, extent, iterator.kind) for name, extent in zip(names, extents, strict=True)]
    changed = replace(stage, iters=splice(stage.iters, iter_id, 1, parts), relations=(*stage.relations, relation))
    # As in TVM, a stage attached to the loop is attached to its innermost part.
    added = len(lengths)
    return state.with_stage(stage_id, changed).move_attachments(
        stage_id, lambda index: index + added if index >= iter_id else index
    )


def _follow(state: State, stage_id: int, step_id: int) -> Split:
    """Step number `step_id`, which must be a split."""
    name = state.stage(stage_id).op.name
    if not 0 <= step_id < len(state.steps):
        raise ScheduleError(f"{name}: there is no step {step_id} to follow; the program has {len(state.steps)}")
    source = state.steps[step_id]
    if not isinstance(source, Split):
        raise ScheduleError(f"{name}: step {step_id} is no split, so it cannot be followed")
    return source


@dataclass(frozen=True, slots=True)
class FollowSplit(Step):
    """Tile a loop as an earlier split did, with its inner levels merged into `n_split` + 1 parts."""

    tag: ClassVar[str] = "FSP"

    iter: int
    source_step: int
    n_split: int

    def apply(self, state: State) -> State:
        """Reads the source split every time, so changing the source changes this split."""
        source = _follow(state, self.stage, self.source_step)
        if not 1 <= self.n_split <= len(source.lengths) + 1:
            raise ScheduleError(
                f"{state.stage(self.stage).op.name}: a split into {len(source.lengths) + 1} parts cannot be followed "
                f"into {self.n_split + 1}"
            )
        # TVM's rule: the innermost part gets the product of all remaining lengths.
        last = known_product(source.lengths[self.n_split - 1 :])
        lengths = (*source.lengths[: self.n_split - 1], last)
        return split_loop(state, self.stage, self.iter, lengths, True)


@dataclass(frozen=True, slots=True)
class FollowFusedSplit(Step):
    """Split a loop in two by the product of one level of several earlier splits."""

    tag: ClassVar[str] = "FFSP"

    iter: int
    source_steps: tuple[int, ...]
    level: int
    by_factor: bool = True

    def apply(self, state: State) -> State:
        """The product of the sources' lengths number `level` is the inner extent (`by_factor`) or the outer extent."""
        name = state.stage(self.stage).op.name
        if not self.source_steps:
            raise ScheduleError(f"{name}: a fused split needs at least one split to follow")
        lengths = []
        for step_id in self.source_steps:
            source = _follow(state, self.stage, step_id)
            if not 0 <= self.level < len(source.lengths):
                raise ScheduleError(
                    f"{name}: step {step_id} has no length number {self.level} to follow; it has {len(source.lengths)}"
                )
            lengths.append(source.lengths[self.level])
        return split_loop(state, self.stage, self.iter, (known_product(lengths),), self.by_factor)
