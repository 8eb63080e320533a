"""Register double buffering: tensor-core fragments are loaded a step before they are multiplied.

The last step of an iteration loads the fragments of the next iteration's first step, after the barrier: a warp then has
something to multiply while the others arrive. The last iteration loads once more, unused.

    before: for k: wait; barrier; copy ahead; unroll s in 2: (f = s[k % 3, s]; c += f)
    after:  wait; barrier; f[0] = s[0, 0]; for k: copy ahead; f[1] = s[k % 3, 1]; c += f[0]; wait; barrier;
            f[0] = s[(k + 1) % 3, 0]; c += f[1]
"""

from dataclasses import dataclass, replace

from retune.compiler.ir.expr import Buffer, Expr, const
from retune.compiler.ir.rewrite import allocate, has_stmt, peel_allocations, rewrite, statements_of
from retune.compiler.ir.stmt import Barrier, For, LoopFunction, LoopKind, Stmt, block, map_exprs
from retune.compiler.ir.tensor_core import CommitGroup, Mma, WaitGroup
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.software_pipelining import copies_of, select_copy

_SETS = 2
"""Fragments that are multiplied, and those loaded meanwhile."""


def double_buffer_registers(function: LoopFunction) -> LoopFunction:
    """Give the fragments of pipelined loops a second set of registers; loops with an odd number of steps are unchanged,
    since the sets would swap from iteration to iteration.
    """
    loops = frozenset(name for name, _ in function.pipelines)
    if not loops:
        return function

    def load_ahead(loop: For) -> Stmt | None:
        steps = _steps_of(loop) if loop.var.name in loops else None
        return None if steps is None else steps.ahead()

    return replace(function, body=rewrite(function.body, {For: load_ahead}))


@dataclass(frozen=True, slots=True)
class _Steps:
    """A pipelined loop: it waits, starts copies (`started`); in each step the lanes load and multiply `buffers`."""

    main: For
    wait: WaitGroup
    started: tuple[Stmt, ...]
    step: For
    lane: For
    buffers: tuple[Buffer, ...]
    loads: Stmt
    products: Stmt

    def ahead(self) -> Stmt:
        # The prologue loads the first step of the first iteration.
        first: tuple[Stmt, ...] = (self.wait, Barrier(), self.lanes(self.load(const(0), 0)))
        body: list[Stmt] = [*self.started]
        for number in range(self.step.extent - 1):
            body.append(self.lanes(block(self.load(self.main.var, number + 1), self.multiply(number))))
        next_iteration = self.load(self.main.var + 1, 0)
        body.extend((self.wait, Barrier(), self.lanes(block(next_iteration, self.multiply(self.step.extent - 1)))))
        sets = [copies_of(buffer, _SETS) for buffer in self.buffers]
        return allocate(sets, block(*first, replace(self.main, body=block(*body))))

    def lanes(self, body: Stmt) -> Stmt:
        """`body` in all lanes of a warp."""
        return replace(self.lane, body=body)

    def load(self, iteration: Expr, number: int) -> Stmt:
        """The statement that loads the fragments of a step."""
        named: dict[Expr, Expr] = {self.main.var: iteration, self.step.var: const(number)}
        moved = map_exprs(self.loads, lambda expr: substitute(expr, named))
        return select_copy(moved, self.buffers, const(number % _SETS), _SETS)

    def multiply(self, number: int) -> Stmt:
        """The statement that multiplies the fragments of a step."""
        moved = map_exprs(self.products, lambda expr: substitute(expr, {self.step.var: const(number)}))
        return select_copy(moved, self.buffers, const(number % _SETS), _SETS)


def _steps_of(main: For) -> _Steps | None:
    """The parts of a pipelined loop; None for other loops, and where an iteration has an odd number of steps."""
    match statements_of(main.body):
        case (
            WaitGroup() as wait,
            Barrier(),
            *started,
            CommitGroup() as commit,
            For(kind=LoopKind.UNROLL, body=For(kind=LoopKind.THREAD_X) as lane) as step,
            # With an odd number the sets would swap roles each iteration, and register numbers must be literals.
        ) if step.extent % _SETS == 0:
            buffers, body = peel_allocations(lane.body, "local")
            statements = statements_of(body)
            first = next((n for n, stmt in enumerate(statements) if has_stmt(Mma, stmt)), 0)
            if not buffers or not first:
                return None
            loads, products = block(*statements[:first]), block(*statements[first:])
            return _Steps(main, wait, (*started, commit), step, lane, buffers, loads, products)
    return None
