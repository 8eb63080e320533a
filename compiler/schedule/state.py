"""`State`: the loop nest of every stage of a compute graph after transform steps.

A state is immutable. Numbers are polymorphic: an extent is an int, or an int64 array with one entry per program.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import ClassVar, Protocol

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.affine import Number as Number
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.reduction import Axis, AxisKind
from retune.compiler.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, WithoutLoops

SHARED_SUFFIX = ".shared"
"""The end of the names of stages that the threads of a GPU block fill together: `CacheRead` appends its scope."""


class IterKind(IntEnum):
    """What a loop runs over."""

    SPATIAL = 0
    REDUCTION = 1
    MIXED = 2
    SPECIAL = 3


class Annotation(IntEnum):
    """How a loop runs. The numbers are those of TVM's logs."""

    NONE = 0
    UNROLL = 1
    VECTORIZE = 2
    PARALLEL = 3
    VTHREAD = 4
    BLOCK_X = 5
    THREAD_X = 6
    BLOCK_Y = 7
    THREAD_Y = 8
    BLOCK_Z = 9
    THREAD_Z = 10
    TENSORIZE = 11


BLOCK_LOOPS = (Annotation.BLOCK_X, Annotation.BLOCK_Y, Annotation.BLOCK_Z)
THREAD_LOOPS = (Annotation.THREAD_X, Annotation.THREAD_Y, Annotation.THREAD_Z)
"""Annotations of loops over the blocks of a grid, and over the threads of a block."""
ANNOTATION_TEXT = {
    Annotation.NONE: "for", Annotation.UNROLL: "unroll", Annotation.VECTORIZE: "vectorize",
    Annotation.PARALLEL: "parallel", Annotation.VTHREAD: "vthread", Annotation.BLOCK_X: "blockIdx.x",
    Annotation.BLOCK_Y: "blockIdx.y", Annotation.BLOCK_Z: "blockIdx.z", Annotation.THREAD_X: "threadIdx.x",
    Annotation.THREAD_Y: "threadIdx.y", Annotation.THREAD_Z: "threadIdx.z", Annotation.TENSORIZE: "tensorize",
}  # fmt: skip
"""How a loop of each kind is printed."""


@dataclass(frozen=True, slots=True)
class Iterator:
    name: str
    extent: Number | None
    """None while unknown: a sketch's tile size, or a loop of a stage that was just attached."""
    kind: IterKind
    annotation: Annotation = Annotation.NONE


@dataclass(frozen=True, slots=True)
class Root:
    """The stage has its own loop nest."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """The stage is computed wherever it is read."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The stage is computed inside loop number `iter` of stage `stage`."""

    stage: int
    iter: int


Location = Root | Inlined | Attached


@dataclass(frozen=True, slots=True)
class SplitRelation:
    """`parent = parts`: an axis and the parts of its split."""

    parent: str
    parts: tuple[str, ...]
    """Outermost first."""
    lengths: tuple[Number | None, ...]
    """Extents of all parts but the first (inner_to_outer) or but the last."""
    inner_to_outer: bool


@dataclass(frozen=True, slots=True)
class FuseRelation:
    """`fused` runs over all of `parts`, the last fastest."""

    parts: tuple[str, ...]
    fused: str


Relation = SplitRelation | FuseRelation


@dataclass(frozen=True, slots=True)
class Alignment:
    """A step along `axis` moves `offset` elements more than a multiple of `factor` in the stage's buffer."""

    axis: str
    factor: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The differences between the programs of a family in one operation, after a reduction was factored by many
    lengths.

    The operation itself is that of the largest program.
    """

    extents: Mapping[str, Number]
    """The true extents of its axes, by name."""
    memoized: tuple[Axis, ...] = ()
    """Axes that its body reads and that are not its own."""
    relations: tuple[Relation, ...] = ()
    """The relations that make those of its own axes."""
    sizes: Mapping[str, Number] = field(default_factory=dict)
    """Extents of everything in the relations."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The loops of one operation, outermost first, their relations to its axes, and its location."""

    op: Operation
    iters: tuple[Iterator, ...]
    location: Location = Root()
    relations: tuple[Relation, ...] = ()
    unroll_limit: Number = 0
    alignment: Alignment | None = None
    family: Family | None = None
    pipeline: tuple[str, Number] | None = None
    """A loop, and the number of its iterations whose copies are in flight or ready."""

    def extent_of(self, axis: Axis) -> Number:
        """The extent of an axis of the operation, an array where programs differ."""
        return axis.extent if self.family is None else self.family.extents.get(axis.name, axis.extent)

    @property
    def shape(self) -> tuple[Number, ...]:
        return tuple(map(self.extent_of, self.op.axes)) if isinstance(self.op, ComputeOp) else self.op.shape

    @property
    def is_compute(self) -> bool:
        """Whether the stage computes something; inputs have no loops."""
        return isinstance(self.op, ComputeOp)

    @property
    def is_tiled(self) -> bool:
        """Whether the number of loops differs from the number of axes."""
        # TVM's definition: a fusion changes the number of loops too, so a fused stage counts as tiled.
        return isinstance(self.op, ComputeOp) and len(self.iters) != len(self.op.axes) + len(self.op.reduce_axes)

    @property
    def has_reduce_iter(self) -> bool:
        return any(iterator.kind in (IterKind.REDUCTION, IterKind.MIXED) for iterator in self.iters)


class Step(Protocol):
    """The interface of transform steps for a state; the classes are in `retune.compiler.schedule.steps`.

    `only_readers`: the step changes how others read the stage, and leaves the stage itself unchanged.
    """

    only_readers: ClassVar[bool]

    @property
    def stage(self) -> int:
        """Number of the stage that is transformed."""

    def apply(self, state: "State") -> "State":
        """The state after this step; does not record it."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Stages in the graph's order, and the steps so far. `dag` is the graph after stage-adding steps."""

    dag: ComputeDAG
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...] = field(default=())

    @classmethod
    def initial(cls, dag: ComputeDAG) -> "State":
        """The naive program: every operation has its own loop nest over its axes."""
        return cls(dag, tuple(initial_stage(op) for op in dag.ops))

    def apply(self, step: Step) -> "State":
        """The state after `step`, which is appended to the history.

        Raises: ScheduleError when the step does not fit.
        """
        op = self.stage(step.stage).op
        if isinstance(op, WithoutLoops) and not step.only_readers:
            what = f"calls the function {op.call.function}" if isinstance(op, ExternOp) else "is a scan"
            raise ScheduleError(f"{op.name}: it {what} and has no loops to transform; schedule the stages around it")
        # States are immutable and share stages, so thousands of candidates of a sketch cost little memory.
        after = step.apply(self)
        return State(after.dag, after.stages, (*self.steps, step))

    @property
    def concrete(self) -> bool:
        """Whether every tile size is known."""
        return all(
            length is not None
            for stage in self.stages
            for relation in stage.relations
            if isinstance(relation, SplitRelation)
            for length in relation.lengths
        )

    def stage(self, stage_id: int) -> Stage:
        """Stage number `stage_id`.

        Raises: ScheduleError when there is none.
        """
        if not 0 <= stage_id < len(self.stages):
            raise ScheduleError(f"there is no stage {stage_id}; the program has {len(self.stages)}")
        return self.stages[stage_id]

    def with_stage(self, stage_id: int, stage: Stage) -> "State":
        return State(self.dag, (*self.stages[:stage_id], stage, *self.stages[stage_id + 1 :]), self.steps)

    def attached_at(self, stage_id: int, iter_id: int) -> tuple[int, ...]:
        """Numbers of the stages computed inside that loop, ascending."""
        location = Attached(stage_id, iter_id)
        return tuple(index for index, stage in enumerate(self.stages) if stage.location == location)

    def move_attachments(self, stage_id: int, moved: Callable[[int], int]) -> "State":
        """The state with every attachment to `stage_id` renumbered by `moved` (old loop number → new)."""

        def relocate(stage: Stage) -> Stage:
            location = stage.location
            if isinstance(location, Attached) and location.stage == stage_id:
                return replace(stage, location=Attached(stage_id, moved(location.iter)))
            return stage

        return State(self.dag, tuple(map(relocate, self.stages)), self.steps)

    def __str__(self) -> str:
        inputs = [stage.op.name for stage in self.stages if isinstance(stage.op, PlaceholderOp)]
        lines = [f"Placeholder: {', '.join(inputs)}"]
        for stage_id, stage in enumerate(self.stages):
            if stage.is_compute and isinstance(stage.location, Root):
                lines.extend(self._stage_lines(stage_id, 0))
            elif isinstance(stage.op, ExternOp):
                lines.append(f"{stage.op.name} = {stage.op.call}")
            elif isinstance(stage.op, ScanOp):
                lines.append(f"{stage.op.name} = scan({', '.join(update.name for update in stage.op.updates)})")
        return "\n".join(lines)

    def _stage_lines(self, stage_id: int, depth: int) -> Iterable[str]:
        stage = self.stages[stage_id]
        if not (isinstance(stage.unroll_limit, int) and stage.unroll_limit == 0):
            yield f"{'  ' * depth}{stage.op.name} auto_unroll: {stage.unroll_limit}"
        if stage.alignment is not None:
            align = stage.alignment
            yield f"{'  ' * depth}{stage.op.name} storage_offset: {align.offset} of {align.factor} at {align.axis}"
        if stage.pipeline is not None:
            yield f"{'  ' * depth}{stage.op.name} pipeline: {stage.pipeline[1]} iterations of {stage.pipeline[0]}"
        for index, iterator in enumerate(stage.iters):
            # As TVM prints states, which compares them by this text: loops of one iteration do not count.
            trivial = isinstance(iterator.extent, int) and iterator.extent == 1
            if not trivial:
                extent = "(None)" if iterator.extent is None else f"(0,{iterator.extent})"
                yield f"{'  ' * depth}{ANNOTATION_TEXT[iterator.annotation]} {iterator.name} {extent}"
                depth += 1
            for attached in self.attached_at(stage_id, index):
                yield from self._stage_lines(attached, depth)
        yield f"{'  ' * depth}{stage.op.name} = ..."


def initial_stage(op: Operation, family: Family | None = None) -> Stage:
    """The naive loops of an operation: spatial axes in order, then reduce axes."""
    stage = Stage(op, (), family=family)
    if not isinstance(op, ComputeOp):
        return stage
    kinds = {AxisKind.SPATIAL: IterKind.SPATIAL, AxisKind.REDUCE: IterKind.REDUCTION}
    axes = (*op.axes, *op.reduce_axes)
    return replace(stage, iters=tuple(Iterator(axis.name, stage.extent_of(axis), kinds[axis.kind]) for axis in axes))


def replay(dag: ComputeDAG, steps: Iterable[Step]) -> State:
    """The naive program after `steps`. Raises: ScheduleError when a step does not fit."""
    state = State.initial(dag)
    for step in steps:
        state = state.apply(step)
    return state
