"""Build the loop IR of a concrete state, without optimization: it computes what the definition says.

Loops of one iteration disappear. A reduction is initialized just before its outermost loop; a reduction of 16-bit
floats joins its terms in float32, in a separate buffer, and is rounded once. A loop that runs past the end of its axis
gets a guard. A stage with several results has a buffer for each; a reduction of several values keeps its operands in
registers until all of them are known. A stage that calls a function is that call, outside of all loops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, Load, Var, as_expr, cast, const
from retune.compiler.ir.rewrite import allocate
from retune.compiler.ir.stmt import Allocate, For, Invoke, LoopFunction, LoopKind, Stmt, block, map_exprs
from retune.compiler.ir.visit import substitute, transform, variables
from retune.compiler.lower.nests import (
    NestLoop,
    first_reduction,
    join_into,
    known_extent,
    known_extents,
    loop_var,
    loop_vars,
    points_of,
    stores,
    wrap_in_guards,
    wrap_in_loop,
    wrap_in_loops,
)
from retune.compiler.lower.rank import order_shape, rank
from retune.compiler.lower.scatter import scatter
from retune.compiler.schedule.bounds import fused_parts_of, infer_stage_bounds
from retune.compiler.schedule.inlining import inline_body
from retune.compiler.schedule.linear import Linear, LoopKey
from retune.compiler.schedule.reads import held_types, stored_types
from retune.compiler.schedule.relations import axis_exprs, buffer_strides, overrunning, rejoin_factors
from retune.compiler.schedule.state import (
    ANNOTATION_TEXT,
    Annotation,
    Attached,
    FuseRelation,
    IterKind,
    Number,
    Root,
    State,
)
from retune.compiler.te.reduction import Reduce, values_of
from retune.compiler.te.tensor import (
    PARTIAL_SUMS,
    RANKS,
    SCATTERS,
    ComputeOp,
    ExternOp,
    Handle,
    PlaceholderOp,
    ScanOp,
    Tensor,
    TensorRead,
    WithoutLoops,
)

_KINDS = {
    Annotation.NONE: LoopKind.SERIAL,
    Annotation.UNROLL: LoopKind.UNROLL,
    Annotation.VECTORIZE: LoopKind.VECTOR,
    Annotation.PARALLEL: LoopKind.PARALLEL,
}


def build_loops(state: State, name: str) -> LoopFunction:
    """The loops of `state` as a kernel called `name`; parameters are the graph's inputs and then its outputs.

    Raises: ScheduleError when bounds cannot be inferred, LoweringError for a loop kind that CPUs lack.
    """
    return LoopBuilder(state).function(name)


class LoopBuilder:
    """Makes the loops of a state; a subclass makes those of GPUs."""

    kinds: ClassVar[Mapping[Annotation, LoopKind]] = _KINDS
    most_held = 1 << 16
    """Most sums in a buffer of the thread; more are in the workspace, as many as the stage has results."""
    # A temporary has one value a lane: the loop around a sum may be a vector.
    scope_of_sum = "register"
    device = "a CPU"
    advice = "use parallel, vectorize or unroll, or a target cuda"

    def __init__(self, state: State) -> None:
        if any(stage.family is not None for stage in state.stages):
            raise LoweringError("one program is lowered at a time; pick its tile sizes first")
        self.state = state
        self.bounds = infer_stage_bounds(state)
        self.fused_parts = fused_parts_of(self.bounds)
        own_loops = (loop for stage_bounds in self.bounds.values() for loop in stage_bounds.own)
        # Variables of loops with one iteration would hide equal indices from the simplifier: they become the literal 0.
        self.trivial = {loop.key for loop in own_loops if known_extent(loop.extent) == 1}
        self.strides: dict[int, tuple[int, ...]] = {}
        self.sums: dict[int, tuple[Buffer, ...]] = {}
        # The buffer of a state has an element a step; a stage that updates it writes the current element.
        self.step_of = {
            state.dag.id_of(update): op.step for op in state.dag.ops if isinstance(op, ScanOp) for update in op.updates
        }
        self.buffers = self.make_buffers()

    def make_buffers(self) -> list[tuple[Buffer, ...]]:
        buffers: list[tuple[Buffer, ...]] = []
        used_names: set[str] = set()
        dag = self.state.dag
        for stage_id, node in enumerate(dag.nodes):
            name = node.tensor.op.name if stage_id in dag.output_ids else node.op.name
            while name in used_names:
                name = f"{name}.{stage_id}"
            used_names.add(name)
            names = [name] if len(node.tensors) == 1 else [f"{name}.v{index}" for index in range(len(node.tensors))]
            bounds = self.bounds.get(stage_id)
            attached = isinstance(self.state.stages[stage_id].location, Attached) and bounds is not None
            local = attached and self.scope_of(stage_id) == "local"
            dtypes = held_types(node.op) if local else stored_types(node.op)
            stage_buffers = []
            for buffer_name, tensor, shape, dtype in zip(names, node.tensors, node.op.shapes, dtypes, strict=True):
                if attached and bounds is not None:
                    shape = self._allocate(stage_id, tuple(known_extent(extent) for extent in bounds.region.extents))
                    stage_buffers.append(Buffer(buffer_name, shape, dtype, self.scope_of(stage_id)))
                    continue
                inner = not isinstance(node.op, PlaceholderOp) and tensor not in dag.outputs
                shape = self._allocate(stage_id, shape)
                stage_buffers.append(
                    Buffer(buffer_name, shape, dtype if inner else tensor.dtype, "workspace" if inner else "global")
                )
            buffers.append(tuple(stage_buffers))
        self._share_states(buffers)
        return buffers

    def _share_states(self, buffers: list[tuple[Buffer, ...]]) -> None:
        """Let the first values and the updates of states be written into the results of their scans."""
        dag = self.state.dag
        for number, op in enumerate(dag.ops):
            if isinstance(op, ScanOp):
                for tensors in zip(op.inits, op.states, op.updates, buffers[number], strict=True):
                    *parts, buffer = tensors
                    for part in parts:
                        stage_id, index = dag.id_of(part), part.value_index
                        buffers[stage_id] = (*buffers[stage_id][:index], buffer, *buffers[stage_id][index + 1 :])

    def scope_of(self, stage_id: int) -> str:  # noqa: ARG002
        """The scope of the result of a stage inside the loops of another."""
        return "local"

    def _buffer(self, tensor: Tensor) -> Buffer:
        return self.buffers[self.state.dag.id_of(tensor)][tensor.value_index]

    def _allocate(self, stage_id: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a stage's buffer; a buffer with padding between its rows is flat and has strides."""
        padded = buffer_strides(self.state.stages[stage_id], shape)
        if padded is None:
            return shape
        strides = tuple(map(known_extent, padded))
        self.strides[stage_id] = strides
        return (shape[0] * strides[0],)

    def buffer_indices(self, stage_id: int, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The indices of an element in the stage's buffer."""
        if stage_id in self.step_of:
            return (self.step_of[stage_id], *indices)
        if stage_id not in self.strides:
            return indices
        position: Expr = const(0)
        for index, stride in zip(indices, self.strides[stage_id], strict=True):
            position = position + index * stride
        return (position,)

    def function(self, name: str) -> LoopFunction:
        return self.describe(name, block(*(stmt for _, stmt in self.statements())))

    def statements(self) -> list[tuple[int, Stmt]]:
        """The calls of functions and the loop nests, with their stages, in the order in which they run."""
        dag = self.state.dag
        called = [i for i, op in enumerate(dag.ops) if isinstance(op, WithoutLoops)]
        nests = [i for i in self.bounds if isinstance(self.state.stages[i].location, Root) and i not in dag.scan_of]
        # Stages are numbered in topological order, so producers run first.
        return [(i, self.call(i) if i in called else self.nest(i)) for i in sorted((*called, *nests))]

    def scan(self, stage_id: int, op: ScanOp) -> Stmt:
        """The loop over the steps of a scan, with the nests of its stages."""
        dag, stages = self.state.dag, self.state.stages
        inside = [i for i in sorted(self.bounds) if isinstance(stages[i].location, Root)]
        body = block(*(self.nest(i) for i in inside if dag.scan_of.get(i) == stage_id))
        body = map_exprs(body, lambda expr: substitute(expr, {op.step: op.step + op.first}))
        return For(op.step, op.steps, LoopKind.STEPS, body)

    def describe(self, name: str, body: Stmt) -> LoopFunction:
        dag = self.state.dag
        params = tuple(map(self._buffer, (*dag.inputs, *dag.outputs)))
        # A state's buffer is that of several stages.
        workspace = dict.fromkeys(
            buffer
            for i, stage in enumerate(self.state.stages)
            if isinstance(stage.location, Root)
            for buffer in (*self.buffers[i], *self.sums.get(i, ()))
            if buffer.scope == "workspace"
        )
        called = [i for i, op in enumerate(dag.ops) if isinstance(op, ExternOp)]
        function_inputs = {producer for stage_id in called for producer, _ in dag.reads[stage_id]}
        # A function expects its inputs in their own layout.
        free = frozenset(self.buffers[i][0].name for i in dag.layout_free - function_inputs)
        limits = tuple(
            (buffer.name, known_extent(self.state.stages[i].unroll_limit))
            for i in sorted(self.bounds)
            for buffer in (*self.buffers[i], *self.sums.get(i, ()))
        )
        return LoopFunction(name, params, tuple(workspace), body, len(dag.outputs), free, limits)

    def call(self, stage_id: int) -> Stmt:
        """The call of a registered function, with its inputs and results, or the steps of a scan."""
        op = self.state.stages[stage_id].op
        if isinstance(op, ScanOp):
            return self.scan(stage_id, op)
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
        op = self.state.stages[stage_id].op
        if not isinstance(op, ComputeOp):
            raise LoweringError(f"{op.name} is an input and has no loops")
        if (scattered := self.scatter(stage_id, op)) is not None:
            return scattered
        loops = self.loops_of(stage_id)
        values, local, absolute = self.points(stage_id, op)
        attached = isinstance(self.state.stages[stage_id].location, Attached)
        target = self.buffer_indices(stage_id, tuple((local if attached else absolute)[axis] for axis in op.axes))
        guards = self.guards_of(stage_id, op, values, absolute)
        buffers = self.buffers[stage_id]
        body = self.value(stage_id, absolute)
        if not isinstance(body, Reduce) or not any(loop.reduces and loop.extent > 1 for loop in loops):
            # A sum of one term needs no start: it is a plain store.
            source = body.source if isinstance(body, Reduce) else body
            return self.wrap(stage_id, loops, stores(buffers, target, values_of(source)), guards, None)
        return self.reduction(stage_id, loops, body, target, guards)

    def scatter(self, stage_id: int, op: ComputeOp) -> Stmt | None:
        """The loops of a reduction that scatters or ranks, whatever its schedule; None for other stages."""
        stage = self.state.stages[stage_id]
        inside = any(self.state.attached_at(stage_id, loop) for loop in range(len(stage.iters)))
        known = SCATTERS in op.attrs or RANKS in op.attrs
        if not known or not isinstance(stage.location, Root) or stage_id in self.strides or inside:
            return None
        variable = {axis: loop_var((stage_id, axis.name)) for axis in (*op.axes, *op.reduce_axes)}
        body = self.value(stage_id, dict(variable.items()))
        if not isinstance(body, Reduce):
            return None
        buffers = self.buffers[stage_id]
        if SCATTERS in op.attrs:
            return scatter(body, op.axes, variable, buffers, self.starts(stage_id, body))
        ranked = op.attrs[RANKS]
        order = Buffer(f"{buffers[0].name}.order", order_shape(op.axes, ranked), "int32", "workspace")
        ranks = rank(body, op.axes, ranked, variable, buffers[0], order)
        if ranks is not None:
            self.sums[stage_id] = (order,)
        return ranks

    def points(self, stage_id: int, op: ComputeOp) -> tuple[dict[str, Expr], dict[Expr, Expr], dict[Expr, Expr]]:
        """Over the loops' variables: everything that the axes were split or fused into, by name; the axes relative to
        the region's start; and the axes themselves.
        """
        values = self.local_exprs(stage_id)
        local: dict[Expr, Expr] = {axis: values[axis.name] for axis in (*op.axes, *op.reduce_axes)}
        absolute = dict(local)
        for axis, low in zip(op.axes, self.bounds[stage_id].region.mins, strict=True):
            absolute[axis] = local[axis] + self.start(low)
        stage = self.state.stages[stage_id]
        if isinstance(stage.location, Root):
            absolute.update((joined, values[name]) for name, joined in rejoin_factors(stage) if name in values)
        return values, local, absolute

    def reduction(
        self, stage_id: int, loops: list[NestLoop], body: Reduce, target: tuple[Expr, ...], guards: list[Expr]
    ) -> Stmt:
        """The loops of a stage that reduces into element `target` of its buffers."""
        buffers, first = self.buffers[stage_id], first_reduction(loops)
        spatial = [loop for loop in loops[first:] if not loop.reduces]
        spatial_vars = {loop.var for loop in spatial} | {var for loop in spatial for var, _, _ in loop.parts}
        outer_vars = {loop.var for loop in loops[:first]} | {var for loop in loops[:first] for var, _, _ in loop.parts}
        # The initial values run outside the reduction loops: a guard over a reduction variable cannot apply to them.
        init_guards = [
            guard
            for guard in guards
            if variables(guard) & (spatial_vars | outer_vars)
            == variables(guard) & {v for lp in loops for v in loop_vars(lp)}
        ]
        # Guards on outer loops alone are tested once, around all initial values.
        init_outer = [guard for guard in init_guards if not variables(guard) & spatial_vars]
        inner = [guard for guard in init_guards if guard not in init_outer]

        def for_each(leaf: Stmt) -> Stmt:
            return wrap_in_guards(init_outer, wrap_in_loops(spatial, leaf, inner))

        sums, point = self.sums_of(stage_id, loops, target)
        init = for_each(stores(sums, point, self.starts(stage_id, body)))
        # Sums in the stage's own buffers are complete there.
        is_in_place = sums == buffers
        result = [] if is_in_place else [for_each(stores(buffers, target, [Load(buffer, point) for buffer in sums]))]
        scopes = [buffer for buffer in sums if not is_in_place and buffer.scope != "workspace"]
        update = join_into(body, sums, point)
        init_and_store = (first, lambda stmt: allocate(scopes, block(init, stmt, *result)))
        return self.wrap(stage_id, loops, update, guards, init_and_store)

    def sums_of(
        self, stage_id: int, loops: Sequence[NestLoop], target: tuple[Expr, ...]
    ) -> tuple[tuple[Buffer, ...], tuple[Expr, ...]]:
        """The buffers and element in which a reduction joins its terms: `target` of its own, or wider buffers."""
        stage, buffers = self.state.stages[stage_id], self.buffers[stage_id]
        sum_types = held_types(stage.op)
        if sum_types == tuple(buffer.dtype for buffer in buffers):
            return buffers, target
        points = points_of(loops)
        shape, scope = tuple(loop.extent for loop in points), "local" if points else self.scope_of_sum
        if prod(shape) <= self.most_held or isinstance(stage.location, Attached):
            target = tuple(loop.var for loop in points)
        else:
            shape, scope = buffers[0].shape, "workspace"
        pairs = zip(buffers, sum_types, strict=True)
        sums = self.sums[stage_id] = tuple(
            Buffer(f"{buffer.name}.part", shape, dtype, scope) for buffer, dtype in pairs
        )
        return sums, target

    def starts(self, stage_id: int, body: Reduce) -> list[Expr]:
        """The initial values of a reduction, one a result."""
        dtypes = self.state.stages[stage_id].op.dtypes
        return [const(start, dtype) for start, dtype in zip(body.identities, dtypes, strict=True)]

    def wrap(
        self,
        stage_id: int,
        loops: list[NestLoop],
        leaf: Stmt,
        guards: list[Expr],
        around: tuple[int, Callable[[Stmt], Stmt]] | None,
    ) -> Stmt:
        """The loops around `leaf`, with their inner stages; `around` = (number, wrap) wraps that loop."""
        stmt, pending = leaf, list(guards)
        for level in range(len(loops) - 1, -1, -1):
            loop = loops[level]
            inside = self.state.attached_at(stage_id, level)
            own_vars = loop_vars(loop)
            # A guard closes at the innermost loop whose variable it tests. Before attached stages all guards close:
            # they do not restrict what those compute.
            closing = [guard for guard in pending if variables(guard) & own_vars or inside]
            pending = [guard for guard in pending if guard not in closing]
            stmt = wrap_in_guards(closing, stmt)
            # Wrapped last to first, so that stages run in topological order.
            for inner in reversed(inside):
                stmt = block(self.nest(inner), stmt)
                for buffer in reversed(self.buffers[inner]):
                    stmt = Allocate(buffer, stmt)
            stmt = wrap_in_loop(loop, stmt)
            if around is not None and level == around[0]:
                stmt = around[1](wrap_in_guards(pending, stmt))
                pending = []
        return wrap_in_guards(pending, stmt)

    def loops_of(self, stage_id: int) -> list[NestLoop]:
        """The loops of a stage, outermost first."""
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        sizes = {loop.key[1]: known_extent(loop.extent) for loop in bounds.own}
        fused = {relation.fused: relation.parts for relation in stage.relations if isinstance(relation, FuseRelation)}
        loops = []
        for iterator, extent in zip(stage.iters, bounds.iter_extents, strict=True):
            if iterator.annotation not in self.kinds:
                raise LoweringError(
                    f"{stage.op.name}: the loop {iterator.name} is bound to {ANNOTATION_TEXT[iterator.annotation]}, "
                    f"which {self.device} lacks; {self.advice}"
                )
            var = loop_var((stage_id, iterator.name))
            parts = self._parts(stage_id, iterator.name, fused, sizes, var) if iterator.name in fused else ()
            if iterator.kind is IterKind.MIXED and known_extent(extent) > 1:
                raise LoweringError(
                    f"{stage.op.name}: the loop {iterator.name} mixes axes of the result with reduce axes; "
                    "fuse only loops of one kind"
                )
            reduces = iterator.kind is not IterKind.SPATIAL and iterator.kind is not IterKind.SPECIAL
            loops.append(NestLoop(var, known_extent(extent), self.kinds[iterator.annotation], reduces, parts))
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
        # Mixed-radix digits of the fused loop, the innermost first; the outermost needs no remainder.
        for position, leaf in enumerate(reversed(leaves)):
            quotient = value // stride
            last = position == len(leaves) - 1
            parts.append((loop_var((stage_id, leaf)), quotient if last else quotient % sizes[leaf], sizes[leaf]))
            stride *= sizes[leaf]
        return tuple(reversed(parts))

    def local_exprs(self, stage_id: int) -> dict[str, Expr]:
        """Every axis relative to the region's start, and its splits and fusions, over the loops' variables."""
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        loops: dict[str, Expr] = {
            loop.key[1]: const(0) if known_extent(loop.extent) == 1 else loop_var(loop.key) for loop in bounds.own
        }
        return axis_exprs(stage.relations, known_extents(bounds.sizes), loops)

    def guards_of(
        self, stage_id: int, op: ComputeOp, values: Mapping[str, Expr], absolute: Mapping[Expr, Expr]
    ) -> list[Expr]:
        """Conditions that keep a loop inside what it was split from, and a region at the edge inside the tensor."""
        stage, bounds = self.state.stages[stage_id], self.bounds[stage_id]
        extents: dict[LoopKey, Number] = {key: part.extent for key, part in self.fused_parts.items()}
        extents.update((loop.key, loop.extent) for loop in (*bounds.outer, *bounds.own))
        guards = [values[name] < size for name, size in overrunning(stage.relations, known_extents(bounds.sizes))]
        # A region has the same size everywhere, so at the edges of the tensor a part of it may be outside.
        for axis, low, extent in zip(op.axes, bounds.region.mins, bounds.region.extents, strict=True):
            start, end = low.limits(extents)
            if known_extent(end) + known_extent(extent) > axis.extent:
                guards.append(absolute[axis] < axis.extent)
            if known_extent(start) < 0:
                guards.append(as_expr(0) <= absolute[axis])
        return [guard for guard in guards if variables(guard)]

    def start(self, form: Linear) -> Expr:
        """A region's first point; loops of one iteration are 0 and are left out."""
        total: Expr = const(known_extent(form.const))
        for key, coefficient in form.terms.items():
            if key in self.fused_parts:
                total = total + self.local_exprs(key[0])[key[1]] * known_extent(coefficient)
            elif key not in self.trivial:
                total = total + loop_var(key) * known_extent(coefficient)
        return total

    def value(self, stage_id: int, axes: Mapping[Expr, Expr]) -> Expr:
        """The stage's body over loop variables and buffers, each element read in the type of its tensor."""
        body = inline_body(self.state, stage_id)

        def load(node: Expr) -> Expr | None:
            if not isinstance(node, TensorRead):
                return None
            producer = self.state.dag.id_of(node.tensor)
            indices = node.indices
            if isinstance(self.state.stages[producer].location, Attached):
                # The buffer of an attached stage holds only its region: indices count from the region's start.
                mins = self.bounds[producer].region.mins
                indices = tuple(index - self.start(low) for index, low in zip(indices, mins, strict=True))
            value = Load(self._buffer(node.tensor), self.buffer_indices(producer, indices))
            # A local buffer may hold sums in a wider type than the tensor's; they are complete when it is read.
            return value if PARTIAL_SUMS in node.tensor.op.attrs else cast(node.dtype, value)

        if isinstance(body, Reduce):
            source = transform(substitute(body.source, axes), load)
            return replace(body, source=source)
        return transform(substitute(body, axes), load)
