"""In: a concrete state. Out: the loop IR of its program.

Always: it computes what the definition says; no optimisation happens here.

Loops of one turn disappear. A reduction is initialised just before its outermost loop. A loop that runs over its axis'
end gets a guard. A stage with several results has a buffer for each; what a reduction of several reads and joins is
held in registers until all of it is known. A stage that calls a function is that call, outside of all loops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import LoweringError
from compiler.ir.expr import Binary, BinaryOp, Buffer, Expr, Load, Var, as_expr, const, is_float
from compiler.ir.stmt import Allocate, For, If, Invoke, Let, LoopFunction, LoopKind, Stmt, Store, block
from compiler.ir.visit import substitute, transform, walk
from compiler.schedule.bounds import digits_of, infer_stage_bounds, inline_body
from compiler.schedule.linear import Linear, LoopKey
from compiler.schedule.relations import axis_exprs, buffer_strides, overrunning
from compiler.schedule.state import (
    ANNOTATION_TEXT,
    Annotation,
    Attached,
    FuseRelation,
    IterKind,
    Number,
    Root,
    State,
)
from compiler.te.tensor import (
    Combiner,
    ComputeOp,
    ExternOp,
    Handle,
    PlaceholderOp,
    Reduce,
    Tensor,
    TensorRead,
    values_of,
)

_KINDS = {
    Annotation.NONE: LoopKind.SERIAL,
    Annotation.UNROLL: LoopKind.UNROLL,
    Annotation.VECTORIZE: LoopKind.VECTOR,
    Annotation.PARALLEL: LoopKind.PARALLEL,
}


def build_loops(state: State, name: str) -> LoopFunction:
    """The loops of `state` as a kernel called `name`; parameters are the graph's inputs and then its outputs.

    Raises: ScheduleError when bounds cannot be inferred, LoweringError for a loop kind that the CPU does not have.
    """
    return _Builder(state).function(name)


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop to emit: the iterator's variable, and the loops it was fused from with how to get them back."""

    var: Var
    extent: int
    kind: LoopKind
    reduces: bool
    parts: tuple[tuple[Var, Expr, int], ...]


class _Builder:
    def __init__(self, state: State) -> None:
        if any(stage.family is not None for stage in state.stages):
            raise LoweringError("one program is lowered at a time; pick its tile sizes first")
        self.state = state
        self.bounds = infer_stage_bounds(state)
        self.digits = digits_of(self.bounds)
        every = (loop for found in self.bounds.values() for loop in found.own)
        self.trivial = {loop.key for loop in every if _fixed(loop.extent) == 1}
        self.strides: dict[int, tuple[int, ...]] = {}
        self.buffers = self._make_buffers()

    def _make_buffers(self) -> list[tuple[Buffer, ...]]:
        """A buffer for every result of every stage."""
        buffers: list[tuple[Buffer, ...]] = []
        taken: set[str] = set()
        dag = self.state.dag
        for stage_id, node in enumerate(dag.nodes):
            name = node.tensor.op.name if stage_id in dag.output_ids else node.op.name
            while name in taken:
                name = f"{name}.{stage_id}"
            taken.add(name)
            names = [name] if len(node.tensors) == 1 else [f"{name}.v{place}" for place in range(len(node.tensors))]
            found = self.bounds.get(stage_id)
            attached = isinstance(self.state.stages[stage_id].location, Attached) and found is not None
            made = []
            for each, tensor, shape, dtype in zip(names, node.tensors, node.op.shapes, node.op.dtypes, strict=True):
                if attached and found is not None:
                    shape = self._allocated(stage_id, tuple(_fixed(extent) for extent in found.region.extents))
                    made.append(Buffer(each, shape, dtype, "local"))
                    continue
                inner = not isinstance(node.op, PlaceholderOp) and tensor not in dag.outputs
                shape = self._allocated(stage_id, shape)
                made.append(Buffer(each, shape, dtype, "workspace" if inner else "global"))
            buffers.append(tuple(made))
        return buffers

    def _buffer(self, tensor: Tensor) -> Buffer:
        return self.buffers[self.state.dag.id_of(tensor)][tensor.value_index]

    def _allocated(self, stage_id: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a stage's buffer; one with padding between its rows is a flat one with strides of its own."""
        padded = buffer_strides(self.state.stages[stage_id], shape)
        if padded is None:
            return shape
        strides = tuple(map(_fixed, padded))
        self.strides[stage_id] = strides
        return (shape[0] * strides[0],)

    def _place(self, stage_id: int, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The indices of an element in the stage's buffer."""
        if stage_id not in self.strides:
            return indices
        position: Expr = const(0)
        for index, stride in zip(indices, self.strides[stage_id], strict=True):
            position = position + index * stride
        return (position,)

    def function(self, name: str) -> LoopFunction:
        dag = self.state.dag
        called = [i for i, op in enumerate(dag.ops) if isinstance(op, ExternOp)]
        nests = [i for i in self.bounds if isinstance(self.state.stages[i].location, Root)]
        roots = sorted((*called, *nests))
        params = tuple(map(self._buffer, (*dag.inputs, *dag.outputs)))
        workspace = tuple(buffer for i in roots for buffer in self.buffers[i] if buffer.scope == "workspace")
        body = block(*(self.call(stage_id) if stage_id in called else self.nest(stage_id) for stage_id in roots))
        given = {producer for stage_id in called for producer, _ in dag.reads[stage_id]}
        free = frozenset(self.buffers[i][0].name for i in dag.layout_free - given)
        limits = tuple(
            (buffer.name, _fixed(self.state.stages[i].unroll_limit))
            for i in sorted(self.bounds)
            for buffer in self.buffers[i]
        )
        return LoopFunction(name, params, workspace, body, len(dag.outputs), free, limits)

    def call(self, stage_id: int) -> Stmt:
        """The call of a registered function, with its inputs and results."""
        op = self.state.stages[stage_id].op
        if not isinstance(op, ExternOp):
            raise LoweringError(f"{op.name} calls no function")
        results = self.buffers[stage_id]
        inputs = [self._buffer(tensor) for tensor in op.inputs]
        args = (
            arg if not isinstance(arg, Handle) else (results if arg.is_result else inputs)[arg.index]
            for arg in op.call.args
        )
        return Invoke(op.call.function, tuple(args), frozenset(results))

    def nest(self, stage_id: int) -> Stmt:
        """The loops of one stage with the stages computed inside them."""
        op, bounds = self.state.stages[stage_id].op, self.bounds[stage_id]
        if not isinstance(op, ComputeOp):
            raise LoweringError(f"{op.name} is an input and has no loops")
        loops = self._loops(stage_id)
        values = self._local_exprs(stage_id)
        local: dict[Expr, Expr] = {axis: values[axis.name] for axis in (*op.axes, *op.reduce_axes)}
        absolute = dict(local)
        for axis, low in zip(op.axes, bounds.region.mins, strict=True):
            absolute[axis] = local[axis] + self._start(low)
        attached = isinstance(self.state.stages[stage_id].location, Attached)
        target = self._place(stage_id, tuple((local if attached else absolute)[axis] for axis in op.axes))
        guards = self._guards(stage_id, op, values, absolute)
        buffers = self.buffers[stage_id]
        body = self._value(stage_id, absolute)
        reduces = [loop.reduces and loop.extent > 1 for loop in loops]
        if not isinstance(body, Reduce) or not any(reduces):
            source = body.source if isinstance(body, Reduce) else body
            return self._wrap(stage_id, loops, _stores(buffers, target, values_of(source)), guards, None)
        starts = [const(start, dtype) for start, dtype in zip(body.identities, op.dtypes, strict=True)]
        first = reduces.index(True)
        update = _update(body, buffers, target)
        spatial = [loop for loop in loops[first:] if not loop.reduces]
        spatial_vars = {loop.var for loop in spatial} | {var for loop in spatial for var, _, _ in loop.parts}
        outer_vars = {loop.var for loop in loops[:first]} | {var for loop in loops[:first] for var, _, _ in loop.parts}
        init_guards = [
            guard
            for guard in guards
            if _vars(guard) & (spatial_vars | outer_vars) == _vars(guard) & {v for lp in loops for v in _loop_vars(lp)}
        ]
        init_outer = [guard for guard in init_guards if not _vars(guard) & spatial_vars]
        init = _nested(
            spatial, _stores(buffers, target, starts), [guard for guard in init_guards if guard not in init_outer]
        )
        return self._wrap(stage_id, loops, update, guards, (first, init, init_outer))

    def _wrap(
        self,
        stage_id: int,
        loops: list[_Loop],
        leaf: Stmt,
        guards: list[Expr],
        init: tuple[int, Stmt, list[Expr]] | None,
    ) -> Stmt:
        stmt, pending = leaf, list(guards)
        for level in range(len(loops) - 1, -1, -1):
            loop = loops[level]
            inside = self.state.attached_at(stage_id, level)
            mine = _loop_vars(loop)
            here = [guard for guard in pending if _vars(guard) & mine or inside]
            pending = [guard for guard in pending if guard not in here]
            stmt = _guarded(here, stmt)
            for inner in reversed(inside):
                stmt = block(self.nest(inner), stmt)
                for buffer in reversed(self.buffers[inner]):
                    stmt = Allocate(buffer, stmt)
            stmt = _looped(loop, stmt)
            if init is not None and level == init[0]:
                stmt = _guarded(pending, stmt)
                stmt = block(_guarded(init[2], init[1]), stmt)
                pending = []
        return _guarded(pending, stmt)

    def _loops(self, stage_id: int) -> list[_Loop]:
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        sizes = {loop.key[1]: _fixed(loop.extent) for loop in bounds.own}
        fused = {relation.fused: relation.parts for relation in stage.relations if isinstance(relation, FuseRelation)}
        loops = []
        for iterator, extent in zip(stage.iters, bounds.iter_extents, strict=True):
            if iterator.annotation not in _KINDS:
                raise LoweringError(
                    f"{stage.op.name}: the loop {iterator.name} is bound to {ANNOTATION_TEXT[iterator.annotation]}, "
                    "which a CPU lacks; use parallel, vectorize or unroll"
                )
            var = _loop_var((stage_id, iterator.name))
            parts = self._parts(stage_id, iterator.name, fused, sizes, var) if iterator.name in fused else ()
            if iterator.kind is IterKind.MIXED and _fixed(extent) > 1:
                raise LoweringError(
                    f"{stage.op.name}: the loop {iterator.name} mixes axes of the result with reduce axes; "
                    "fuse only loops of one kind"
                )
            reduces = iterator.kind is not IterKind.SPATIAL and iterator.kind is not IterKind.SPECIAL
            loops.append(_Loop(var, _fixed(extent), _KINDS[iterator.annotation], reduces, parts))
        return loops

    def _parts(
        self, stage_id: int, name: str, fused: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int], value: Expr
    ) -> tuple[tuple[Var, Expr, int], ...]:
        leaves: list[str] = []

        def collect(part: str) -> None:
            for inner in fused.get(part, ()):
                collect(inner)
            if part not in fused:
                leaves.append(part)

        collect(name)
        parts = []
        stride = 1
        for position, leaf in enumerate(reversed(leaves)):
            quotient = value // stride
            last = position == len(leaves) - 1
            parts.append((_loop_var((stage_id, leaf)), quotient if last else quotient % sizes[leaf], sizes[leaf]))
            stride *= sizes[leaf]
        return tuple(reversed(parts))

    def _local_exprs(self, stage_id: int) -> dict[str, Expr]:
        """Every axis relative to the region's start, and everything it was split or fused into, over the loops'
        variables.
        """
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        loops: dict[str, Expr] = {
            loop.key[1]: const(0) if _fixed(loop.extent) == 1 else _loop_var(loop.key) for loop in bounds.own
        }
        return axis_exprs(stage.relations, _fixed_all(bounds.sizes), loops)

    def _guards(
        self, stage_id: int, op: ComputeOp, values: Mapping[str, Expr], absolute: Mapping[Expr, Expr]
    ) -> list[Expr]:
        """Conditions that keep an over-long loop inside what it was split from, and a region at the edge inside the
        tensor.
        """
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        around: dict[LoopKey, Number] = {key: digit.extent for key, digit in self.digits.items()}
        around.update((loop.key, loop.extent) for loop in (*bounds.outer, *bounds.own))
        guards = [values[name] < size for name, size in overrunning(stage.relations, _fixed_all(bounds.sizes))]
        for axis, low, extent in zip(op.axes, bounds.region.mins, bounds.region.extents, strict=True):
            start, end = low.limits(around)
            if _fixed(end) + _fixed(extent) > axis.extent:
                guards.append(absolute[axis] < axis.extent)
            if _fixed(start) < 0:
                guards.append(as_expr(0) <= absolute[axis])
        return [guard for guard in guards if _vars(guard)]

    def _start(self, form: Linear) -> Expr:
        """A region's first point; loops of one turn stand at 0 and are left out."""
        total: Expr = const(_fixed(form.const))
        for key, coefficient in form.terms.items():
            if key in self.digits:
                total = total + self._local_exprs(key[0])[key[1]] * _fixed(coefficient)
            elif key not in self.trivial:
                total = total + _loop_var(key) * _fixed(coefficient)
        return total

    def _value(self, stage_id: int, axes: Mapping[Expr, Expr]) -> Expr:
        """The stage's body over loop variables and buffers."""
        body = inline_body(self.state, stage_id)

        def load(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            producer = self.state.dag.id_of(node.tensor)
            indices = node.indices
            if isinstance(self.state.stages[producer].location, Attached):
                mins = self.bounds[producer].region.mins
                indices = tuple(index - self._start(low) for index, low in zip(indices, mins, strict=True))
            return Load(self._buffer(node.tensor), self._place(producer, indices))

        if isinstance(body, Reduce):
            source = transform(substitute(body.source, axes), load)
            return Reduce(body.combiner, source, body.axes)
        return transform(substitute(body, axes), load)


def _stores(buffers: Sequence[Buffer], target: tuple[Expr, ...], values: Sequence[Expr]) -> Stmt:
    """Write one element of every buffer; no value reads any of them."""
    return block(*(Store(buffer, target, value) for buffer, value in zip(buffers, values, strict=True)))


def _update(body: Reduce, buffers: Sequence[Buffer], target: tuple[Expr, ...]) -> Stmt:
    """Join what is reduced to what the buffers hold. Several results need the old values of each other, and a join
    may need its operands more than once, so these are read first, but where it is plainly `old op new`. An extreme of
    floats that is one's own is not: it keeps NaNs, which the plain ones leave out.
    """
    old = Load(buffers[0], target)
    (result, *others) = body.join([Load(buffer, target) for buffer in buffers], values_of(body.source))
    plain = isinstance(result, Binary) and result.lhs == old and result.rhs == body.source
    if plain and isinstance(body.combiner, Combiner) and is_float(body.dtype):
        plain = isinstance(result, Binary) and result.op not in (BinaryOp.MAX, BinaryOp.MIN)
    if plain and not others:
        return Store(buffers[0], target, result)
    held: list[tuple[Buffer, Expr]] = []
    for side, values in (("new", values_of(body.source)), ("old", [Load(buffer, target) for buffer in buffers])):
        for buffer, value in zip(buffers, values, strict=True):
            held.append((Buffer(f"{buffer.name}.{side}", (), value.dtype, "register"), value))
    loads = [Load(buffer, ()) for buffer, _ in held]
    count = len(buffers)
    reads = [Store(buffer, (), value) for buffer, value in held]
    leaf = block(*reads, _stores(buffers, target, body.join(loads[count:], loads[:count])))
    for buffer, _ in reversed(held):
        leaf = Allocate(buffer, leaf)
    return leaf


def _loop_var(key: LoopKey) -> Var:
    return Var(f"{key[1]}.s{key[0]}")


def _loop_vars(loop: _Loop) -> set[Var]:
    return {loop.var, *(var for var, _, _ in loop.parts)}


def _vars(expr: Expr) -> set[Var]:
    return {node for node in walk(expr) if isinstance(node, Var)}


def _fixed(value: Number) -> int:
    if isinstance(value, int):
        return value
    if value.size != 1:
        raise LoweringError("one program is lowered at a time; pick its tile sizes first")
    return int(value.reshape(()))


def _fixed_all(sizes: Mapping[str, Number]) -> dict[str, int]:
    return {name: _fixed(size) for name, size in sizes.items()}


def _guarded(conditions: list[Expr], stmt: Stmt) -> Stmt:
    for condition in conditions:
        stmt = If(condition, stmt)
    return stmt


def _looped(loop: _Loop, stmt: Stmt) -> Stmt:
    for var, value, extent in reversed(loop.parts):
        stmt = stmt if extent == 1 else Let(var, value, extent, stmt)
    return stmt if loop.extent == 1 else For(loop.var, loop.extent, loop.kind, stmt)


def _nested(loops: list[_Loop], leaf: Stmt, guards: list[Expr]) -> Stmt:
    stmt = _guarded(guards, leaf)
    for loop in reversed(loops):
        stmt = _looped(loop, stmt)
    return stmt
