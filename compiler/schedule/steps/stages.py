"""In: a state. Out: the state with one stage more, and the graph that has it.

Always: stages behind the new one are renumbered, and everything computed inside a loop stays there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from compiler.errors import DefinitionError, ScheduleError
from compiler.schedule import graph_edits
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.relations import axis_exprs, loop_sizes, overrunning
from compiler.schedule.state import Attached, IterKind, Root, Stage, State, initial_stage
from compiler.schedule.steps.base import Step, iterator_of, refuse_annotated, refuse_attached
from compiler.te.tensor import Axis, AxisKind, ComputeOp


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Compute a stage into a buffer of its own first; the stage then only copies."""

    tag: ClassVar[str] = "CHW"

    scope: str = "local"

    def apply(self, state: State) -> State:
        """The computation takes the stage's number, the copy the next one; both start from naive loops."""
        stage = state.stage(self.stage)
        if not _untouched(stage):
            raise ScheduleError(f"{stage.op.name}: add the write cache before transforming the stage")
        refuse_annotated(stage, "add a write cache")
        try:
            dag = graph_edits.cache_write(state.dag, self.stage, self.scope)
        except DefinitionError as error:
            raise ScheduleError(str(error)) from None
        fresh = {number: initial_stage(dag.ops[number]) for number in (self.stage, self.stage + 1)}
        for index in range(len(fresh[self.stage + 1].iters), len(stage.iters)):
            for inner in state.attached_at(self.stage, index):
                raise ScheduleError(
                    f"{stage.op.name}: cannot add a write cache: {state.stages[inner].op.name} is computed inside its "
                    f"loop {stage.iters[index].name}, which the copy lacks; move that first"
                )
        return _with_new_stage(state, dag, self.stage, fresh)


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Copy a tensor into a buffer from which some of its readers then read."""

    tag: ClassVar[str] = "CHR"

    scope: str
    readers: tuple[int, ...]

    def apply(self, state: State) -> State:
        """The copy takes the next number; the readers' loops stay as they are."""
        name = state.stage(self.stage).op.name
        known = state.dag.readers[self.stage]
        if not self.readers or len(set(self.readers)) != len(self.readers):
            raise ScheduleError(f"{name}: a read cache needs each of its readers once; got {list(self.readers)}")
        for reader in self.readers:
            if reader not in known:
                names = ", ".join(f"{number} ({state.stages[number].op.name})" for number in known) or "none"
                raise ScheduleError(f"{name}: {state.stage(reader).op.name} does not read it; stages that do: {names}")
        dag = graph_edits.cache_read(state.dag, self.stage, self.scope, self.readers)
        return _with_new_stage(state, dag, self.stage + 1, {self.stage + 1: initial_stage(dag.ops[self.stage + 1])})


@dataclass(frozen=True, slots=True)
class Rfactor(Step):
    """Reduce in two steps, with one reduction loop an axis of the first result."""

    tag: ClassVar[str] = "RF"

    iter: int
    factor_iter: int

    def apply(self, state: State) -> State:
        """`C[i] = Σ k0 k1` becomes `C.rf[i, k0] = Σ k1` and `C.repl[i] = Σ k0 C.rf[i, k0]`. The first takes the stage's
        number, the second the next one; both start from naive loops.
        """
        factored = iterator_of(state, self.stage, self.iter)
        stage = state.stages[self.stage]
        op = stage.op
        if not isinstance(op, ComputeOp) or factored.kind is not IterKind.REDUCTION:
            raise ScheduleError(f"{op.name}: the loop {factored.name} does not reduce; factor a reduction loop")
        if not 0 <= self.factor_iter <= len(op.axes):
            raise ScheduleError(
                f"{op.name}: the factored loop can be axis 0 to {len(op.axes)} of the new tensor, "
                f"not {self.factor_iter}"
            )
        spatial = {iterator.name for iterator in stage.iters if iterator.kind is IterKind.SPATIAL}
        if spatial != {axis.name for axis in op.axes} or any(it.kind is IterKind.MIXED for it in stage.iters):
            raise ScheduleError(f"{op.name}: factor the reduction before tiling or fusing spatial loops")
        refuse_annotated(stage, "factor the reduction")
        refuse_attached(state, self.stage, "factor the reduction")
        dag = graph_edits.rfactor(state.dag, self.stage, _factoring(stage, op, factored.name, self.factor_iter))
        first, second = (initial_stage(dag.ops[number]) for number in (self.stage, self.stage + 1))
        if isinstance(stage.location, Attached):
            second = replace(second, iters=tuple(replace(iterator, extent=None) for iterator in second.iters))
        fresh = {self.stage: first, self.stage + 1: replace(second, location=stage.location)}
        return _with_new_stage(state, dag, self.stage, fresh)


def _factoring(stage: Stage, op: ComputeOp, factored: str, position: int) -> graph_edits.Factoring:
    """What the reduction loops of a stage mean for its reduce axes."""
    sizes: dict[str, int] = {}
    for name, extent in loop_sizes(
        stage.relations, {axis.name: axis.extent for axis in (*op.axes, *op.reduce_axes)}
    ).items():
        if not isinstance(extent, int):
            raise ScheduleError(
                f"{op.name}: the length of {name} is {'unknown' if extent is None else 'one of a family'}; "
                "a reduction is factored one program at a time, with every length known"
            )
        sizes[name] = extent
    taken = {axis.name for axis in op.axes}
    loops: dict[str, Axis] = {}
    for iterator in stage.iters:
        if iterator.kind is not IterKind.REDUCTION:
            continue
        name = iterator.name.replace(".", "_").replace("@", "_")
        while name in taken:
            name += "_"
        taken.add(name)
        kind = AxisKind.SPATIAL if iterator.name == factored else AxisKind.REDUCE
        loops[iterator.name] = Axis(name, sizes[iterator.name], kind)
    values = axis_exprs(stage.relations, sizes, {**{axis.name: axis for axis in op.axes}, **loops})
    inside = tuple(values[name] < size for name, size in overrunning(stage.relations, sizes))
    rest = tuple(axis for name, axis in loops.items() if name != factored)
    return graph_edits.Factoring(
        loops[factored], position, rest, {axis: values[axis.name] for axis in op.reduce_axes}, inside
    )


def _untouched(stage: Stage) -> bool:
    names = [iterator.name for iterator in stage.iters]
    return isinstance(stage.location, Root) and names == [it.name for it in initial_stage(stage.op).iters]


def _with_new_stage(state: State, dag: ComputeDAG, new: int, fresh: Mapping[int, Stage]) -> State:
    """The state over `dag`, which has one operation more at number `new`; `fresh` are the stages that start anew."""
    old = [*range(new), None, *range(new, len(state.stages))]
    stages = []
    for number, before in enumerate(old):
        if number in fresh:
            stage = fresh[number]
        elif before is not None:
            stage = replace(state.stages[before], op=dag.ops[number])
        else:
            raise AssertionError("the new stage must be among the fresh ones")
        stages.append(_shifted(stage, new))
    return replace(state, dag=dag, stages=tuple(stages))


def _shifted(stage: Stage, from_id: int) -> Stage:
    place = stage.location
    if isinstance(place, Attached) and place.stage >= from_id:
        return replace(stage, location=Attached(place.stage + 1, place.iter))
    return stage
