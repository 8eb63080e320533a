"""Steps that add a stage, such as caches and factored reductions.

Later stages are renumbered, and stages computed inside a loop stay there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from retune.compiler.core.errors import DefinitionError, ScheduleError
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule import graph_edits
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.relations import axis_exprs, loop_sizes, overrunning
from retune.compiler.schedule.state import (
    Attached,
    Family,
    IterKind,
    Number,
    Relation,
    Root,
    SplitRelation,
    Stage,
    State,
    initial_stage,
)
from retune.compiler.schedule.steps.base import Step, iterator_of, refuse_annotated, refuse_attached, refuse_family
from retune.compiler.te.reduction import Axis, AxisKind
from retune.compiler.te.tensor import ComputeOp, ExternOp, WithoutLoops


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Compute a stage into a new buffer first, one for each result; the stage itself then only copies."""

    tag: ClassVar[str] = "CHW"

    scope: str = "local"

    def apply(self, state: State) -> State:
        """The computation takes the stage's number, the copy the next; both start from naive loops."""
        stage = state.stage(self.stage)
        # Both new stages start from naive loops, so earlier steps of the stage would be lost.
        if not is_untouched(stage):
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
        return with_new_stages(state, dag, self.stage, fresh)


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Copy a tensor, or the results that the readers read, into a buffer that `readers` read instead."""

    tag: ClassVar[str] = "CHR"
    only_readers: ClassVar[bool] = True

    scope: str
    readers: tuple[int, ...]

    def apply(self, state: State) -> State:
        """The copy takes the next number; the readers' loops stay as they are."""
        name = state.stage(self.stage).op.name
        refuse_family(state.stages[self.stage], "cache it")
        all_readers = state.dag.readers[self.stage]
        if not self.readers or len(set(self.readers)) != len(self.readers):
            raise ScheduleError(f"{name}: a read cache needs each of its readers once; got {list(self.readers)}")
        for reader in self.readers:
            if reader not in all_readers:
                names = ", ".join(f"{number} ({state.stages[number].op.name})" for number in all_readers) or "none"
                raise ScheduleError(f"{name}: {state.stage(reader).op.name} does not read it; stages that do: {names}")
            if isinstance(state.stages[reader].op, WithoutLoops):
                what = "a function's call" if isinstance(state.stages[reader].op, ExternOp) else "a scan"
                raise ScheduleError(f"{name}: {state.stages[reader].op.name} is {what} and reads no cache")
        try:
            dag = graph_edits.cache_read(state.dag, self.stage, self.scope, self.readers)
        except DefinitionError as error:
            raise ScheduleError(str(error)) from None
        return with_new_stages(state, dag, self.stage + 1, {self.stage + 1: initial_stage(dag.ops[self.stage + 1])})


@dataclass(frozen=True, slots=True)
class Rfactor(Step):
    """Reduce in two steps, with one reduction loop as an axis of the first result."""

    tag: ClassVar[str] = "RF"

    iter: int
    factor_iter: int

    def apply(self, state: State) -> State:
        """`C[i] = Σ k0 k1` becomes `C.rf[i, k0] = Σ k1` and `C.repl[i] = Σ k0 C.rf[i, k0]`. The first takes the stage's
        number, the second the next; both start from naive loops.
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
        plain = all(iterator.kind in (IterKind.SPATIAL, IterKind.REDUCTION) for iterator in stage.iters)
        if spatial != {axis.name for axis in op.axes} or not plain:
            raise ScheduleError(f"{op.name}: factor the reduction before tiling or fusing any but its own loops")
        refuse_annotated(stage, "factor the reduction")
        refuse_attached(state, self.stage, "factor the reduction")
        factoring = _factoring(stage, op, factored.name, self.factor_iter)
        dag = graph_edits.rfactor(state.dag, self.stage, factoring.edit)
        first = initial_stage(dag.ops[self.stage], factoring.first)
        second = initial_stage(dag.ops[self.stage + 1], factoring.second)
        # Inside another loop it runs over a region, whose extents bounds inference determines later.
        if isinstance(stage.location, Attached):
            second = replace(second, iters=tuple(replace(iterator, extent=None) for iterator in second.iters))
        fresh = {self.stage: first, self.stage + 1: replace(second, location=stage.location)}
        return with_new_stages(state, dag, self.stage, fresh)


@dataclass(frozen=True, slots=True, eq=False)
class _Factored:
    """The change of the graph, and the differences between programs in the two operations."""

    edit: graph_edits.Factoring
    first: Family | None = None
    second: Family | None = None


def _factoring(stage: Stage, op: ComputeOp, factored: str, position: int) -> _Factored:
    """The factoring of a stage's reduction, from its reduction loops to its reduce axes."""
    sizes: dict[str, Number] = {}
    extents = {axis.name: axis.extent for axis in (*op.axes, *op.reduce_axes)}
    for name, extent in loop_sizes(stage.relations, extents).items():
        if extent is None:
            raise ScheduleError(f"{op.name}: the length of {name} is unknown; fill it in before factoring")
        sizes[name] = extent
    loops = _loop_axes(stage, op, factored, sizes)
    remaining = tuple(axis for name, axis in loops.items() if name != factored)
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(fixed) == len(sizes):
        values = axis_exprs(stage.relations, fixed, {**{axis.name: axis for axis in op.axes}, **loops})
        inside = tuple(values[name] < size for name, size in overrunning(stage.relations, fixed))
        axis_value_map: dict[Expr, Expr] = {axis: values[axis.name] for axis in op.reduce_axes}
        return _Factored(graph_edits.Factoring(loops[factored], position, remaining, axis_value_map, inside))
    # Programs differ in their lengths: the graph has the axes of the largest, and families hold the differences.
    names = {name: axis.name for name, axis in loops.items()}
    axis_map: dict[Expr, Expr] = {axis: loops[axis.name] for axis in op.reduce_axes if axis.name in loops}
    edit = graph_edits.Factoring(loops[factored], position, remaining, axis_map, ())
    first = Family(
        {names[name]: sizes[name] for name in loops},
        tuple(axis for axis in op.reduce_axes if axis.name not in loops),
        tuple(_rename(relation, names) for relation in stage.relations),
        {names.get(name, name): size for name, size in sizes.items()},
    )
    return _Factored(edit, first, Family({f"{names[factored]}_v": sizes[factored]}))


def _loop_axes(stage: Stage, op: ComputeOp, factored: str, sizes: Mapping[str, Number]) -> dict[str, Axis]:
    """The axis that each reduction loop becomes, by the loop's name, as long as in the largest program."""
    loop_names = {iterator.name for iterator in stage.iters}
    # A reduce axis that was not split leaves its name to its loop.
    used_names = {
        axis.name for axis in (*op.axes, *op.reduce_axes) if axis not in op.reduce_axes or axis.name not in loop_names
    }
    loops: dict[str, Axis] = {}
    for iterator in stage.iters:
        if iterator.kind is not IterKind.REDUCTION:
            continue
        name = iterator.name.replace(".", "_").replace("@", "_")
        while name in used_names:
            name += "_"
        used_names.add(name)
        kind = AxisKind.SPATIAL if iterator.name == factored else AxisKind.REDUCE
        loops[iterator.name] = Axis(name, int(np.max(sizes[iterator.name])), kind)
    return loops


def _rename(relation: Relation, names: Mapping[str, str]) -> Relation:
    parts = tuple(names.get(part, part) for part in relation.parts)
    if isinstance(relation, SplitRelation):
        return replace(relation, parts=parts)
    return replace(relation, parts=parts, fused=names.get(relation.fused, relation.fused))


def is_untouched(stage: Stage) -> bool:
    """Whether a stage has its naive loops and its own nest."""
    names = [iterator.name for iterator in stage.iters]
    return isinstance(stage.location, Root) and names == [it.name for it in initial_stage(stage.op).iters]


def with_new_stages(state: State, dag: ComputeDAG, new: int, fresh: Mapping[int, Stage], count: int = 1) -> State:
    """The state over `dag`, with `count` operations more from number `new` on; `fresh` stages start again."""
    old = [*range(new), *(None for _ in range(count)), *range(new, len(state.stages))]
    stages = []
    for number, before in enumerate(old):
        if number in fresh:
            stage = fresh[number]
        elif before is not None:
            stage = replace(state.stages[before], op=dag.ops[number])
        else:
            raise AssertionError("the new stages must be among the fresh ones")
        stages.append(_shift(stage, new, count))
    return replace(state, dag=dag, stages=tuple(stages))


def _shift(stage: Stage, from_id: int, count: int) -> Stage:
    location = stage.location
    if isinstance(location, Attached) and location.stage >= from_id:
        return replace(stage, location=Attached(location.stage + count, location.iter))
    return stage
