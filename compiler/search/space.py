"""`SketchSpace`: all programs of one sketch, each a row of integers.

For a row in normal form, its steps and the replayed state agree. A group of rows with the same placement is replayed
once, with arrays for tile sizes; fuse and annotation steps are written only when a single row is made concrete.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar, cast

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.bounds import infer_stage_bounds
from retune.compiler.schedule.choices import LoopChoices
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import needs_multi_level_tiling, reduces_rows
from retune.compiler.schedule.state import Annotation, Inlined, IterKind, Number, Root, State, replay
from retune.compiler.schedule.statements import StageNest, statement_nests
from retune.compiler.schedule.steps import UNROLL_PRAGMA, Annotate, Fuse, Pragma, Split, Step
from retune.compiler.search.annotate import annotated_steps, template_state
from retune.compiler.search.factorize import covering, sample_factorizations
from retune.compiler.search.genome import Layout, Mask, Rows, SplitColumns, cumulative, random_true, settled_depth
from retune.compiler.search.gpu.widths import read_width, with_width
from retune.compiler.search.legality import legal, promising
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.placement import placements_of
from retune.compiler.search.register_tile import settled_unroll
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.rules.base import search_kind
from retune.compiler.search.rules.tensor_core import unrolls
from retune.compiler.te.tensor import ComputeOp

_UNROLL_DIGITS = 10
"""No unroll limit has as many digits."""


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """Loop choices that the structure of one stage allows: `depth` outermost loops may run in parallel, loop `vector`
    may be a vector loop (-1: none).
    """

    stage: int
    depth: int
    vector: int


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows of one placement in normal form, with their bounds and loop choices."""

    rows: Rows
    nests: tuple[StageNest, ...]
    choices: LoopChoices


@dataclass(frozen=True, eq=False)
class SketchSpace:
    """All programs of one sketch: the steps of `sketch`, then a step list of `placements`, each with tile sizes."""

    dag: ComputeDAG
    hardware: HardwareParams
    options: SearchOptions
    sketch: tuple[Step, ...]
    placements: tuple[tuple[Step, ...], ...]
    layout: Layout

    has_registers: ClassVar[bool] = False
    """Whether a program's threads share the registers of a GPU, and may spill."""

    @classmethod
    def of(cls, dag: ComputeDAG, context: SketchContext, sketch: State) -> "SketchSpace":
        """The space of a sketch; placements whose bounds cannot be inferred are left out."""
        steps = annotated_steps(sketch, dag, context)
        state = template_state(dag, steps)
        stages = tuple(
            number
            for number, stage in enumerate(state.stages)
            if stage.is_compute and not isinstance(stage.location, Inlined) and stage.iters
        )
        unrolled = tuple(stage for stage in stages if unrolls(state.stages[stage]))
        layout = cls._layout(dag, context, state, steps, stages, unrolled)
        placements = cls._placements(state, context.options)
        space = cls(dag, context.hardware, context.options, steps, placements, layout)
        return replace(space, placements=tuple(space._sound_placements()))

    @staticmethod
    def _layout(
        dag: ComputeDAG,
        context: SketchContext,
        state: State,  # noqa: ARG004 of a GPU's programs it tells the widths
        steps: Sequence[Step],
        stages: tuple[int, ...],
        unrolled: tuple[int, ...],
    ) -> Layout:
        splits = tuple(
            (number, _covering(dag, steps[:number], step, context.options), parts)
            for number, step, parts in open_splits(steps)
        )
        return Layout.of(splits, stages, unrolled)

    @staticmethod
    def _placements(state: State, options: SearchOptions) -> tuple[tuple[Step, ...], ...]:
        """The step lists that may follow the sketch."""
        return placements_of(state, options.max_location_variants)

    def _sound_placements(self) -> Iterator[tuple[Step, ...]]:
        # The structure alone decides whether bounds can be inferred, so one program of each placement suffices.
        smallest = replay(self.dag, self._fill(self._smallest))
        for placement in self.placements:
            try:
                infer_stage_bounds(_apply(smallest, placement))
            except ScheduleError:
                continue
            yield placement

    @property
    def _smallest(self) -> Rows:
        """The row (1, G) whose inner tiles are single points and that unrolls nothing."""
        smallest = np.ones((1, self.layout.width), dtype=np.int64)
        for split in self.layout.splits:
            smallest[0, split.start] = split.extent
        for width in self.layout.widths:
            smallest[0, width.column] = width.choices[0]
        for _, column in self.layout.unroll:
            smallest[0, column] = 0
        return smallest

    @cached_property
    def _filtered(self) -> tuple[bool, ...]:
        """For every placement, whether the static filters apply: not if the definition alone exceeds them."""
        groups = [self._group(self._smallest, number) for number in range(len(self.placements))]
        return tuple(
            bool(promising(group.nests, group.choices, self.hardware, self.options, 1).all()) for group in groups
        )

    @cached_property
    def facts(self) -> tuple[tuple[LoopFacts, ...], ...]:
        """For every placement, the facts of each stage."""
        sketch = template_state(self.dag, self.sketch)
        states = (_apply(sketch, placement) for placement in self.placements)
        return tuple(tuple(_loop_facts(state, stage) for stage, _ in self.layout.parallel) for state in states)

    @property
    def deepest(self) -> int:
        """The most loops that any stage may run in parallel."""
        return max((fact.depth for facts in self.facts for fact in facts), default=0)

    @property
    def unroll_limits(self) -> tuple[int, ...]:
        """Possible values of an unroll column."""
        limits: tuple[int, ...] = getattr(self.options, search_kind(self.hardware).unroll_limits)
        return limits

    @property
    def statements(self) -> int:
        """How many statements a program has."""
        state = template_state(self.dag, self.sketch)
        return sum(stage.is_compute and not isinstance(stage.location, Inlined) for stage in state.stages)

    def legal(self, group: Group) -> Mask:
        """Mask of the rows of a group that may be proposed."""
        good = legal(group.nests, group.choices, self.hardware, self.options, len(group.rows))
        if self.options.static_filters and self._filtered[int(group.rows[0, self.layout.placement])]:
            good &= promising(group.nests, group.choices, self.hardware, self.options, len(group.rows))
        return good

    def sample(self, rng: np.random.Generator, count: int, placements: int | None = None) -> Rows:
        """Draw rows: uniform factorizations, sensible parallel depths, at most `placements` placements evenly."""
        return self._draw(rng, count, placements)

    def _draw(self, rng: np.random.Generator, count: int, placements: int | None = None) -> Rows:
        rows = np.ones((count, self.layout.width), dtype=np.int64)
        if not self.placements:
            return rows[:0]
        for split in self.layout.splits:
            drawn = sample_factorizations(rng, count, split.extent, split.parts - 1, self.options.max_innermost)
            rows[:, split.columns] = drawn
        # A stratified sample: every placement gets the same number of rows, up to one.
        every = len(self.placements)
        chosen = np.arange(every) if placements is None else rng.permutation(every)[:placements]
        rows[:, self.layout.placement] = chosen[rng.permutation(count) % len(chosen)]
        for width in self.layout.widths:
            rows[:, width.column] = rng.choice(np.array(width.choices, dtype=np.int64), size=count)
        limits = np.array(self.unroll_limits, dtype=np.int64)
        for _, column in self.layout.unroll:
            rows[:, column] = rng.choice(limits, size=count)
        for placement in range(len(self.placements)):
            which = np.flatnonzero(rows[:, self.layout.placement] == placement)
            if len(which) and self.layout.parallel:
                rows[which] = self._with_parallel(rng, rows[which], placement)
        return rows

    def _with_parallel(self, rng: np.random.Generator, rows: Rows, placement: int) -> Rows:
        """Draw a parallel depth for every root stage: enough chunks for every core, not many more."""
        state = self._replay(rows, placement)
        least, most = self.hardware.num_cores, self.hardware.num_cores * self.options.max_parallel_ratio
        for fact, (stage, column) in zip(self.facts[placement], self.layout.parallel, strict=True):
            extents = [iterator.extent for iterator in state.stages[stage].iters[: fact.depth]]
            pieces = cumulative(extents, len(rows))
            # At least one chunk per core, and no further loop once the outer ones make `max_parallel_ratio` chunks per
            # core.
            sensible = (pieces[:, 1:] >= least) & (pieces[:, :-1] < most)
            drawn = random_true(rng, sensible) + 1
            rows[:, column] = np.where(drawn > 0, drawn, fact.depth)
        return rows

    def groups(self, rows: Rows) -> Iterator[tuple[Rows, Group]]:
        """Replay rows by placement; yields the row indices (N,) and the group in normal form."""
        for placement in np.unique(rows[:, self.layout.placement]):
            which = np.flatnonzero(rows[:, self.layout.placement] == placement)
            yield which, self._group(rows[which], int(placement))

    def _group(self, rows: Rows, placement: int) -> Group:
        nests = statement_nests(self._replay(rows, placement))
        rows = rows.copy()
        by_stage = {nest.stage: nest for nest in nests}
        vector_columns = dict(self.layout.vector)
        for fact, (stage, column) in zip(self.facts[placement], self.layout.parallel, strict=True):
            if stage not in by_stage:  # inlined
                rows[:, [column, vector_columns[stage]]] = 0
                continue
            nest = by_stage[stage]
            own = [loop.extent for loop in nest.loops[len(nest.loops) - nest.own :]]
            vector = vector_columns[stage]
            # A loop of one iteration is no vector loop: the flag is cleared, so that equal programs have equal rows.
            wide = np.asarray(own[fact.vector] if fact.vector >= 0 else 1) > 1
            rows[:, vector] *= wide
            # A loop is either the vector loop or in parallel; the vector loop comes first.
            allowed = np.where(rows[:, vector] > 0, min(fact.depth, max(fact.vector, 0)), fact.depth)
            rows[:, column] = settled_depth(own, np.minimum(rows[:, column], allowed))
        for stage, column in self.layout.unroll:
            limits, vector_flags = rows[:, column], rows[:, vector_columns[stage]]
            nest = by_stage[stage]
            rows[:, column] = settled_unroll(nest, vector_flags, limits, self.options.unroll_limits, self.hardware)
        # On one core parallel loops make no difference: depths become 0, so that equal programs have equal rows.
        if self.hardware.num_cores == 1:
            for _, column in self.layout.parallel:
                rows[:, column] = 0
        return Group(rows, nests, self._choices(rows))

    def _choices(self, rows: Rows) -> LoopChoices:
        layout = self.layout
        parallel: dict[int, Number] = {stage: rows[:, column] for stage, column in layout.parallel}
        vector: dict[int, Number] = {stage: rows[:, column] for stage, column in layout.vector}
        unroll: dict[int, Number] = {stage: rows[:, column] for stage, column in layout.unroll}
        return LoopChoices(parallel, vector, unroll)

    def _replay(self, rows: Rows, placement: int) -> State:
        return replay(self.dag, (*self._fill(rows), *self.placements[placement]))

    def _fill(self, rows: Rows) -> list[Step]:
        """The steps of the sketch with the tile sizes and widths of all rows."""
        steps = list(self.sketch)
        for split in self.layout.splits:
            lengths = tuple(np.ascontiguousarray(column) for column in rows[:, split.lengths].T)
            steps[split.step] = replace(cast(Split, steps[split.step]), lengths=lengths)
        for width in self.layout.widths:
            steps[width.step] = with_width(steps[width.step], rows[:, width.column].copy())
        return steps

    def steps(self, row: Rows) -> tuple[Step, ...]:
        """The concrete program of one row (G,) in normal form."""
        placement = int(row[self.layout.placement])
        steps = list(self.sketch)
        for split in self.layout.splits:
            lengths = tuple(int(length) for length in row[split.lengths])
            steps[split.step] = replace(cast(Split, steps[split.step]), lengths=lengths)
        for width in self.layout.widths:
            steps[width.step] = with_width(steps[width.step], int(row[width.column]))
        steps.extend(self.placements[placement])
        shift: dict[int, int] = {}
        for stage, column in self.layout.parallel:
            depth = int(row[column])
            if depth > 1:
                steps.append(Fuse(stage, tuple(range(depth))))
                # Fusing `depth` loops moved the inner loops outward by `depth - 1`.
                shift[stage] = depth - 1
            if depth:
                steps.append(Annotate(stage, 0, int(Annotation.PARALLEL)))
        steps.extend(Pragma(stage, 0, f"{UNROLL_PRAGMA}{int(row[column])}") for stage, column in self.layout.unroll)
        loops = {fact.stage: fact.vector for fact in self.facts[placement]}
        for stage, column in self.layout.vector:
            if row[column]:
                steps.append(Annotate(stage, loops[stage] - shift.get(stage, 0), int(Annotation.VECTORIZE)))
        return tuple(steps)

    def row_of(self, steps: Sequence[Step]) -> Rows | None:
        """The row (G,) whose program is exactly `steps`; None if they are not of this sketch."""
        row = np.zeros(self.layout.width, dtype=np.int64)
        if len(steps) < len(self.sketch) or not self.placements:
            return None
        splits = {split.step: split for split in self.layout.splits}
        widths = {width.step: width for width in self.layout.widths}
        for number, (sketch_step, step) in enumerate(zip(self.sketch, steps, strict=False)):
            if number in splits:
                if not _read_lengths(row, splits[number], sketch_step, step):
                    return None
            elif number in widths:
                if not read_width(row, widths[number], sketch_step, step):
                    return None
            elif sketch_step != step:
                return None
        tail = tuple(steps[len(self.sketch) :])
        fitting = [number for number, moves in enumerate(self.placements) if tail[: len(moves)] == moves]
        if not fitting:
            return None
        # One placement may be a prefix of another: the longest match counts.
        row[self.layout.placement] = max(fitting, key=lambda number: len(self.placements[number]))
        self._read_choices(row, tail)
        # A round trip decides: steps in another order, or not in normal form, are not of this space.
        return row if row.min() >= 0 and self.steps(row) == tuple(steps) else None

    def _read_choices(self, row: Rows, steps: Sequence[Step]) -> None:
        """Read the fuse and annotation steps into `row`, ignoring unknown ones."""
        parallel, vector, unroll = dict(self.layout.parallel), dict(self.layout.vector), dict(self.layout.unroll)
        fused: dict[int, int] = {}
        for step in steps:
            if isinstance(step, Fuse):
                fused[step.stage] = len(step.iters)
            elif isinstance(step, Annotate) and step.annotation == Annotation.PARALLEL and step.stage in parallel:
                row[parallel[step.stage]] = fused.get(step.stage, 1)
            elif isinstance(step, Annotate) and step.annotation == Annotation.VECTORIZE and step.stage in vector:
                row[vector[step.stage]] = 1
            elif isinstance(step, Pragma) and step.stage in unroll and step.text.startswith(UNROLL_PRAGMA):
                limit = step.text.removeprefix(UNROLL_PRAGMA)
                row[unroll[step.stage]] = int(limit) if limit.isdecimal() and len(limit) < _UNROLL_DIGITS else -1


def _apply(state: State, steps: Sequence[Step]) -> State:
    for step in steps:
        state = state.apply(step)
    return state


def _loop_facts(state: State, stage: int) -> LoopFacts:
    described = state.stages[stage]
    if isinstance(described.location, Inlined):
        return LoopFacts(stage, 0, -1)
    kinds = [iterator.kind for iterator in described.iters]
    plain = [iterator.annotation is Annotation.NONE for iterator in described.iters]
    free = {number for number, kind in enumerate(kinds) if kind is IterKind.SPATIAL and plain[number]}
    taken = [number for number in range(len(kinds)) if state.attached_at(stage, number)]
    depth = 0
    if isinstance(described.location, Root):
        # Fusing past a loop with a stage inside it would compute that stage more often.
        while depth < len(kinds) and depth in free and depth - 1 not in taken:
            depth += 1
    spatial = sorted(free)
    # No stage may be computed inside the vector loop, so it must be further in than all attachments.
    vector = spatial[-1] if spatial and all(number < spatial[-1] for number in taken) else -1
    # Lowering vectorizes such sums itself; lanes of several rows took up to 15 s to build.
    if reduces_rows(state.dag, stage) and not needs_multi_level_tiling(state.dag, stage):
        vector = -1
    return LoopFacts(stage, depth, vector)


def open_splits(steps: Sequence[Step]) -> Iterator[tuple[int, Split, int]]:
    """The splits with unknown lengths: number, step, and number of parts."""
    for number, step in enumerate(steps):
        if isinstance(step, Split) and None in step.lengths:
            yield number, step, len(step.lengths) + 1


def _covering(dag: ComputeDAG, before: Sequence[Step], step: Split, options: SearchOptions) -> int:
    """Product of the parts of a split: more than the extent if the extent has no divisor that makes a tile."""
    stage = template_state(dag, before).stages[step.stage]
    loop = stage.iters[step.iter]
    if loop.kind is not IterKind.SPATIAL or not isinstance(stage.op, ComputeOp):
        return step.extent
    return covering(step.extent, options.max_innermost, is_vector=loop.name == stage.op.axes[-1].name)


def _read_lengths(row: Rows, split: SplitColumns, template: Step, step: Step) -> bool:
    """Write the parts of a concrete split into `row`; False unless `step` is the split `template` with lengths."""
    if not isinstance(template, Split) or not isinstance(step, Split) or None in step.lengths:
        return False
    if replace(template, lengths=step.lengths) != step or len(template.lengths) != len(step.lengths):
        return False
    lengths = [int(length) for length in step.lengths if length is not None]
    inner = prod(lengths)
    if inner < 1 or split.extent % inner or min(lengths) < 1:
        return False
    row[split.columns] = [split.extent // inner, *lengths]
    return True
