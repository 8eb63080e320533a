"""Build the loop IR of the kernels of a concrete state whose loops are bound to blocks and threads.

Each stage with its own nest is a kernel. A kernel computes what the definition says when loops over blocks or threads
are read as ordinary loops; a reduction over threads has a partial result in each thread, and a join. There are no
barriers yet.

Stages outside of the loops over threads, and stages called `.shared`, are shared by the threads of a block; other inner
stages belong to one thread.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Expr, Var, const
from retune.compiler.ir.rewrite import statements_of
from retune.compiler.ir.stmt import BLOCK_KINDS, THREAD_KINDS, For, LoopFunction, LoopKind, Stmt, map_exprs
from retune.compiler.ir.visit import substitute, variables
from retune.compiler.lower.build_loops import LoopBuilder
from retune.compiler.lower.gpu.cross_thread_reduction import ThreadLoop, plan_cross_thread_reduction
from retune.compiler.lower.nests import NestLoop, join_into, known_extent, loop_var
from retune.compiler.schedule.reads import held_types
from retune.compiler.schedule.state import SHARED_SUFFIX, Annotation, Attached, State
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, ExternOp

_THREADS = {
    Annotation.THREAD_X: LoopKind.THREAD_X,
    Annotation.THREAD_Y: LoopKind.THREAD_Y,
    Annotation.THREAD_Z: LoopKind.THREAD_Z,
}
MOST_HELD = 255
"""Most sums of a thread at a time: it has no more registers."""


def build_kernels(state: State, name: str, builder: "type[KernelBuilder] | None" = None) -> tuple[LoopFunction, ...]:
    """The kernels of `state` in the order in which they run, as functions of all its inputs, outputs and workspace,
    made by `builder`.

    Raises: ScheduleError when bounds cannot be inferred, LoweringError for loops that a GPU cannot run.
    """
    for op in state.dag.ops:
        if isinstance(op, ExternOp):
            raise LoweringError(f"{op.name}: calls the function {op.call.function}, which a GPU kernel cannot")
    kernel_builder = (builder or KernelBuilder)(state)
    nests = [nest for _, stmt in kernel_builder.statements() for nest in _launches(stmt)]
    return tuple(kernel_builder.describe(f"{name}_kernel{number}", nest) for number, nest in enumerate(nests))


def _launches(stmt: Stmt) -> Iterator[Stmt]:
    """What each kernel runs: a statement, or of the steps of a scan each statement of each step."""
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.STEPS:
        yield stmt
        return
    for step in range(stmt.extent):

        def at_step(expr: Expr, var: Var = stmt.var, step: int = step) -> Expr:
            return substitute(expr, {var: const(step)})

        for part in statements_of(stmt.body):
            yield map_exprs(part, at_step)


class KernelBuilder(LoopBuilder):
    """The loops of a state for a GPU."""

    def scatter(self, stage_id: int, op: ComputeOp) -> Stmt | None:  # noqa: ARG002
        """None: threads that write to the same element would race."""
        return None

    kinds: ClassVar[Mapping[Annotation, LoopKind]] = {
        Annotation.NONE: LoopKind.SERIAL,
        Annotation.UNROLL: LoopKind.UNROLL,
        Annotation.VECTORIZE: LoopKind.VECTOR,
        Annotation.VTHREAD: LoopKind.VTHREAD,
        Annotation.BLOCK_X: LoopKind.BLOCK_X,
        Annotation.BLOCK_Y: LoopKind.BLOCK_Y,
        Annotation.BLOCK_Z: LoopKind.BLOCK_Z,
        **_THREADS,
    }
    most_held = MOST_HELD
    scope_of_sum = "local"
    device = "a GPU"
    advice = "bind it to blockIdx, threadIdx or vthread"

    def scope_of(self, stage_id: int) -> str:
        """Shared by the threads of a block, or local to one thread."""
        among_threads = any(loop.annotation in _THREADS for loop in self.bounds[stage_id].outer)
        named = self.state.stages[stage_id].op.name.endswith(SHARED_SUFFIX)
        return "shared" if named or not among_threads else "local"

    def loops_of(self, stage_id: int) -> list[NestLoop]:
        """The loops of a stage, checked against the abilities of blocks and threads."""
        stage = self.state.stages[stage_id]
        attached = isinstance(stage.location, Attached)
        private = attached and self.scope_of(stage_id) == "local"
        loops: list[NestLoop] = []
        for loop in super().loops_of(stage_id):
            where = f"{stage.op.name}: the loop {loop.var} over {loop.kind}"
            if loop.kind in BLOCK_KINDS and attached:
                raise LoweringError(f"{where} lies inside another stage's kernel; bind the outermost stage to blocks")
            if loop.kind in BLOCK_KINDS and loop.reduces and loop.extent > 1:
                raise LoweringError(
                    f"{where} reduces, but blocks cannot join results; reduce over threads or factor it"
                )
            if loop.kind in THREAD_KINDS and loop.reduces and loop.extent == 1:
                loop = replace(loop, kind=LoopKind.SERIAL)  # every thread has the whole result
            elif loop.kind in THREAD_KINDS and private and not loop.reduces:
                raise LoweringError(f"{where} computes what one thread has for itself; compute it further out")
            if loop.kind in (*BLOCK_KINDS, *THREAD_KINDS) and any(loop.kind is other.kind for other in loops):
                raise LoweringError(f"{where} is the second one over {loop.kind}; fuse the two, or bind one elsewhere")
            loops.append(loop)
        return loops

    def reduction(
        self, stage_id: int, loops: list[NestLoop], body: Reduce, target: tuple[Expr, ...], guards: list[Expr]
    ) -> Stmt:
        """The loops of a reduction; a reduction over threads is done in parts, which are then joined."""
        across = [loop for loop in loops if loop.reduces and loop.kind in THREAD_KINDS]
        if not across:
            return super().reduction(stage_id, loops, body, target, guards)
        op, buffers = self.state.stages[stage_id].op, self.buffers[stage_id]
        name = op.name
        outer_threads = self._threads_around(stage_id, loops)
        for loop in across:
            if any(outer_loop.kind is loop.kind for outer_loop in outer_threads):
                raise LoweringError(f"{name}: {loop.var} reduces over {loop.kind} inside another loop over {loop.kind}")
        reducing = {var for loop in loops if loop.reduces for var in (loop.var, *(part for part, _, _ in loop.parts))}
        outer = [guard for guard in guards if not variables(guard) & reducing]
        starts = self.starts(stage_id, body)
        sizes = self._block_around(stage_id)
        results = list(zip(buffers, held_types(op), strict=True))
        plan = plan_cross_thread_reduction(body, results, starts, loops, target, outer, (outer_threads, sizes))
        update = join_into(body, plan.partials, plan.point)
        return self.wrap(stage_id, loops, update, guards, (plan.level, plan.around))

    def _block_around(self, stage_id: int) -> dict[LoopKind, int]:
        """The threads of the block, along each dimension, of the kernel that computes the stage."""
        sizes = dict.fromkeys(THREAD_KINDS, 1)
        # The stages of a kernel share one launch: along each dimension the longest loop decides.
        for other in self.bounds:
            if self._root_of(other) == self._root_of(stage_id):
                for loop in self.loops_of(other):
                    if loop.kind in sizes:
                        sizes[loop.kind] = max(sizes[loop.kind], loop.extent)
        return sizes

    def _root_of(self, stage_id: int) -> int:
        """The stage with its own nest inside whose loops the stage is computed."""
        location = self.state.stages[stage_id].location
        return self._root_of(location.stage) if isinstance(location, Attached) else stage_id

    def _threads_around(self, stage_id: int, loops: list[NestLoop]) -> list[ThreadLoop]:
        """The dimensions with more than one thread around a reduction of the stage."""
        dimensions: dict[LoopKind, ThreadLoop] = {}
        for loop in self.bounds[stage_id].outer:  # of a fused loop these are the parts, the innermost last
            extent = known_extent(loop.extent)
            if loop.annotation in _THREADS and extent > 1:
                kind = _THREADS[loop.annotation]
                before = dimensions.get(kind, ThreadLoop(kind, const(0), 1))
                dimensions[kind] = ThreadLoop(kind, before.number * extent + loop_var(loop.key), before.extent * extent)
        for own_loop in loops:
            if own_loop.kind in THREAD_KINDS and not own_loop.reduces and own_loop.extent > 1:
                dimensions[own_loop.kind] = ThreadLoop(own_loop.kind, own_loop.var, own_loop.extent)
        return list(dimensions.values())
