"""In: a state. Out: the state after one transform.

Always: a step is one frozen class; replay, printing, storage and comparison come from its fields.

The log form of a step is a JSON list that starts with its tag, the form of TVM's logs.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from compiler.errors import DefinitionError, ScheduleError
from compiler.schedule.state import (
    Annotation,
    Attached,
    FuseRelation,
    Inlined,
    Iterator,
    IterKind,
    Location,
    Number,
    Root,
    SplitRelation,
    Stage,
    State,
    initial_stage,
)

_BY_TAG: dict[str, type["Step"]] = {}
_ANNOTATIONS = frozenset(int(annotation) for annotation in Annotation)


def ceil_div(value: Number, divisor: Number) -> Number:
    """`value / divisor` rounded up, for ints and arrays."""
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of one stage. Subclasses are the leaves of the grammar; each registers its `tag`."""

    tag: ClassVar[str] = ""

    stage: int

    def __init_subclass__(cls) -> None:
        if cls.tag:
            _BY_TAG[cls.tag] = cls

    def apply(self, state: State) -> State:
        """The state after this step.

        Raises: ScheduleError naming the stage, the loop and the way out.
        """
        raise NotImplementedError

    def to_row(self) -> list[Any]:
        """The log form: the tag, then the fields in order.

        Raises: ScheduleError for a tile size that is not known yet.
        """
        return [self.tag, *(_plain(getattr(self, item.name)) for item in fields(self))]


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, str)):
        return int(value) if isinstance(value, int) else value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.integer):
        return int(value)
    raise ScheduleError(f"a step with the value {value!r} cannot be written to a record; fill in its tile sizes first")


def _iterator(state: State, stage_id: int, iter_id: int) -> Iterator:
    stage = state.stage(stage_id)
    if not 0 <= iter_id < len(stage.iters):
        raise ScheduleError(f"{stage.op.name}: there is no loop {iter_id}; the stage has {len(stage.iters)}")
    return stage.iters[iter_id]


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """Say how a loop runs."""

    tag: ClassVar[str] = "AN"

    iter: int
    annotation: int

    def apply(self, state: State) -> State:
        """`for i` becomes `parallel i`, `vectorize i`, …"""
        iterator = _iterator(state, self.stage, self.iter)
        stage = state.stages[self.stage]
        if iterator.annotation is not Annotation.NONE:
            raise ScheduleError(f"{stage.op.name}: the loop {iterator.name} is annotated already")
        if self.annotation not in _ANNOTATIONS:
            raise ScheduleError(f"{stage.op.name}: {self.annotation} is no annotation of a loop")
        if self.annotation == Annotation.VECTORIZE and iterator.kind is not IterKind.SPATIAL:
            raise ScheduleError(
                f"{stage.op.name}: the loop {iterator.name} reduces; only a spatial loop can be a vector loop"
            )
        if self.annotation == Annotation.PARALLEL and iterator.kind is not IterKind.SPATIAL:
            raise ScheduleError(
                f"{stage.op.name}: the loop {iterator.name} reduces; only a spatial loop can run in parallel"
            )
        changed = replace(iterator, annotation=Annotation(self.annotation))
        return state.with_stage(self.stage, replace(stage, iters=_spliced(stage.iters, self.iter, 1, (changed,))))


def _spliced(iters: Sequence[Iterator], start: int, count: int, new: Iterable[Iterator]) -> tuple[Iterator, ...]:
    return (*iters[:start], *new, *iters[start + count :])


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Make one loop of several neighbours."""

    tag: ClassVar[str] = "FU"

    iters: tuple[int, ...]

    def apply(self, state: State) -> State:
        """`for i: for j` becomes `for i@j@` with extent(i) × extent(j). An empty list makes the only loop of a rank-0
        stage.
        """
        stage = state.stage(self.stage)
        if not self.iters:
            if stage.iters:
                raise ScheduleError(f"{stage.op.name}: fusing no loops is only for a stage without loops")
            return state.with_stage(self.stage, replace(stage, iters=(Iterator("", 1, IterKind.SPECIAL),)))
        first, last = self.iters[0], self.iters[-1]
        if list(self.iters) != list(range(first, last + 1)):
            raise ScheduleError(
                f"{stage.op.name}: only neighbouring loops fuse, outermost first; got {list(self.iters)}"
            )
        parts = [_iterator(state, self.stage, index) for index in self.iters]
        for index in self.iters[:-1]:
            for inner in state.attached_at(self.stage, index):
                raise ScheduleError(
                    f"{stage.op.name}: cannot fuse {stage.iters[index].name} with the loop below it: "
                    f"{state.stages[inner].op.name} is computed between them; move it first"
                )
        extent: Number | None = 1
        for part in parts:
            extent = None if extent is None or part.extent is None else extent * part.extent
        kinds = {part.kind for part in parts}
        kind = parts[0].kind if len(kinds) == 1 else IterKind.MIXED
        name = "".join(f"{part.name}@" for part in parts)
        relation = FuseRelation(tuple(part.name for part in parts), name)
        fused = replace(
            stage,
            iters=_spliced(stage.iters, first, len(parts), (Iterator(name, extent, kind),)),
            relations=(*stage.relations, relation),
        )
        moved = state.with_stage(self.stage, fused)
        return moved.move_attachments(
            self.stage, lambda at: first if at == last else at - len(parts) + 1 if at > last else at
        )


@dataclass(frozen=True, slots=True)
class Pragma(Step):
    """Advice to the code generator: `auto_unroll_max_step$N`."""

    tag: ClassVar[str] = "PR"

    iter: int
    text: str

    def apply(self, state: State) -> State:
        """Sets the stage's unroll limit."""
        stage = state.stage(self.stage)
        name, sign, value = self.text.partition("$")
        if name != "auto_unroll_max_step" or not sign or not value.isdigit():
            raise ScheduleError(f"{stage.op.name}: the pragma {self.text!r} is unknown; known: auto_unroll_max_step$N")
        return state.with_stage(self.stage, replace(stage, unroll_limit=int(value)))


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
        """`for i` becomes `for i.0: … for i.n`; the lengths are those of the inner n loops (or of the outer n), the
        other one gets the rest.
        """
        return split_loop(state, self.stage, self.iter, self.lengths, self.inner_to_outer)


def split_loop(
    state: State, stage_id: int, iter_id: int, lengths: Sequence[Number | None], inner_to_outer: bool
) -> State:
    """The state with one loop tiled; see `Split`."""
    iterator = _iterator(state, stage_id, iter_id)
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
    changed = replace(stage, iters=_spliced(stage.iters, iter_id, 1, parts), relations=(*stage.relations, relation))
    added = len(lengths)
    return state.with_stage(stage_id, changed).move_attachments(
        stage_id, lambda at: at + added if at >= iter_id else at
    )


def split_extents(extent: Number | None, relation: SplitRelation) -> list[Number | None]:
    """Extents of the parts. No part runs further than the whole, so a length above what is left is cut."""
    count = len(relation.parts)
    extents: list[Number | None] = [None] * count
    order = range(count - 1, 0, -1) if relation.inner_to_outer else range(count - 1)
    rest = extent
    for part in order:
        length = relation.lengths[part - 1 if relation.inner_to_outer else part]
        if rest is None or length is None:
            if length is not None and extent is None:
                extents[part] = length
            rest = None
            continue
        extents[part] = np.minimum(length, rest) if _is_array(length, rest) else min(length, rest)
        rest = ceil_div(rest, length)
    extents[0 if relation.inner_to_outer else count - 1] = rest
    return extents


def _is_array(*values: Number) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


@dataclass(frozen=True, slots=True)
class FollowSplit(Step):
    """Tile a loop as an earlier split did, with its inner levels merged into `n_split` + 1 parts."""

    tag: ClassVar[str] = "FSP"

    iter: int
    source_step: int
    n_split: int

    def apply(self, state: State) -> State:
        """Re-reads the source split every time, so changing that one changes this one."""
        if not 0 <= self.source_step < len(state.steps):
            raise ScheduleError(f"follow-split: there is no step {self.source_step}")
        source = state.steps[self.source_step]
        name = state.stage(self.stage).op.name
        if not isinstance(source, Split):
            raise ScheduleError(f"{name}: step {self.source_step} is no split, so it cannot be followed")
        if not 1 <= self.n_split <= len(source.lengths) + 1:
            raise ScheduleError(
                f"{name}: a split into {len(source.lengths) + 1} parts cannot be followed into {self.n_split + 1}"
            )
        last: Number | None = 1
        for length in source.lengths[self.n_split - 1 :]:
            last = None if last is None or length is None else last * length
        lengths = (*source.lengths[: self.n_split - 1], last)
        return split_loop(state, self.stage, self.iter, lengths, True)


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Compute a stage inside a loop of one of its readers, as much of it as one turn of that loop needs."""

    tag: ClassVar[str] = "CA"

    target_stage: int
    target_iter: int

    def apply(self, state: State) -> State:
        """The stage's extents become unknown until bounds are inferred."""
        _iterator(state, self.target_stage, self.target_iter)
        name = state.stage(self.stage).op.name
        if self.target_stage <= self.stage:
            raise ScheduleError(
                f"{name}: can only be computed inside a later stage, not {state.stages[self.target_stage].op.name}"
            )
        if isinstance(state.stages[self.target_stage].location, Inlined):
            raise ScheduleError(f"{name}: {state.stages[self.target_stage].op.name} is inlined and has no loops")
        if self.stage in state.dag.output_ids:
            raise ScheduleError(f"{name}: an output cannot be computed inside another stage")
        return _relocated(state, self.stage, Attached(self.target_stage, self.target_iter))


def _relocated(state: State, stage_id: int, location: Location) -> State:
    stage = state.stage(stage_id)
    if not stage.is_compute:
        raise ScheduleError(f"{stage.op.name}: an input has no loops to place")
    iters = tuple(replace(iterator, extent=None) for iterator in stage.iters)
    return state.with_stage(stage_id, replace(stage, iters=iters, location=location))


@dataclass(frozen=True, slots=True)
class ComputeRoot(Step):
    """Give a stage a loop nest of its own again."""

    tag: ClassVar[str] = "CR"

    def apply(self, state: State) -> State:
        """Undoes `ComputeAt`."""
        return _relocated(state, self.stage, Root())


@dataclass(frozen=True, slots=True)
class ComputeInline(Step):
    """Compute an elementwise stage wherever it is read."""

    tag: ClassVar[str] = "CI"

    def apply(self, state: State) -> State:
        """The stage's loops disappear."""
        stage = state.stage(self.stage)
        if not stage.is_compute or stage.has_reduce_iter or self.stage in state.dag.output_ids:
            raise ScheduleError(
                f"{stage.op.name}: only a computed stage that is neither reduction nor output can be inlined"
            )
        for index in range(len(stage.iters)):
            for inner in state.attached_at(self.stage, index):
                raise ScheduleError(
                    f"{stage.op.name}: {state.stages[inner].op.name} is computed inside it; move that first"
                )
        return state.with_stage(self.stage, replace(stage, location=Inlined()))


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Compute a stage into a buffer of its own first; the stage then only copies."""

    tag: ClassVar[str] = "CHW"

    scope: str = "local"

    def apply(self, state: State) -> State:
        """The computation takes the stage's number, the copy the next one; both start from naive loops."""
        stage = state.stage(self.stage)
        if stage.relations or not isinstance(stage.location, Root):
            raise ScheduleError(f"{stage.op.name}: add the write cache before transforming the stage")
        try:
            dag = state.dag.cache_write(self.stage, self.scope)
        except DefinitionError as error:
            raise ScheduleError(str(error)) from None
        fresh = tuple(initial_stage(op) for op in dag.ops[self.stage : self.stage + 2])
        shifted = tuple(_shifted(other, self.stage) for other in state.stages)
        return replace(state, dag=dag, stages=(*shifted[: self.stage], *fresh, *shifted[self.stage + 1 :]))


def _shifted(stage: Stage, from_id: int) -> Stage:
    place = stage.location
    if isinstance(place, Attached) and place.stage >= from_id:
        return replace(stage, location=Attached(place.stage + 1, place.iter))
    return stage


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ScheduleError(f"{value!r} is no whole number")
    return value


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ScheduleError(f"{value!r} is no list of numbers")
    return tuple(map(_whole, value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ScheduleError(f"{value!r} is no text")
    return value


_FIELD_READERS: dict[str, Callable[[Any], Any]] = {
    "iters": _numbers,
    "order": _numbers,
    "lengths": _numbers,
    "inner_to_outer": lambda value: bool(_whole(value)),
    "text": _text,
    "scope": _text,
}
"""How a field is read back; a field that is not listed is a whole number."""


def step_from_row(row: Sequence[Any]) -> Step:
    """The step that `Step.to_row` wrote.

    Raises: ScheduleError for an unknown tag, a wrong number of fields, or a field of another type.
    """
    if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in _BY_TAG:
        raise ScheduleError(f"unknown transform step {row!r}; known tags: {', '.join(sorted(_BY_TAG))}")
    kind = _BY_TAG[row[0]]
    names = [item.name for item in fields(kind)]
    if len(row) - 1 != len(names):
        raise ScheduleError(f"the step {row!r} must have {len(names)} fields after its tag")
    return kind(**{name: _FIELD_READERS.get(name, _whole)(value) for name, value in zip(names, row[1:], strict=True)})


def dump_steps(steps: Iterable[Step]) -> str:
    """The steps as one JSON text, the form that records keep."""
    return json.dumps([step.to_row() for step in steps], separators=(",", ":"))


def load_steps(text: str) -> tuple[Step, ...]:
    """The steps of `dump_steps`.

    Raises: ScheduleError when the text is not a list of steps.
    """
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScheduleError(f"transform steps are not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ScheduleError("transform steps must be a JSON list")
    return tuple(step_from_row(row) for row in rows)
