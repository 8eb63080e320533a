"""In: a reduction over threads. Out: the statements around its loops that start a partial result in each thread and
join these.

Always: the order of the sum is fixed, so a program computes the same bits each time.

    before: for k.0 in 8: threadIdx.x k.1 in 32: b[i] = b[i] + a[i, k.0 * 32 + k.1]
    after:  local b.part: b.part[] = 0
            for k.0 in 8: threadIdx.x k.1 in 32: b.part[] = b.part[] + a[i, k.0 * 32 + k.1]
            shared b.all[32]: threadIdx.x t in 32: b.all[t] = b.part[]
            threadIdx.x t in 16: b.all[t] = b.all[t] + b.all[t + 16]
            …
            threadIdx.x t in 1: b.all[t] = b.all[t] + b.all[t + 1]
            b[i] = b.all[0]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compiler.ir.expr import Buffer, Expr, Load, Var, const
from compiler.ir.stmt import THREAD_KINDS, Allocate, For, LoopKind, Stmt, block
from compiler.lower.nests import NestLoop, first_reduction, guarded, join_into, nested, stores
from compiler.te.tensor import Reduce, as_body


@dataclass(frozen=True, slots=True)
class AcrossThreads:
    """How a reduction is done: into element `point` of `partials`, with `around` around its loop number `level`."""

    partials: tuple[Buffer, ...]
    point: tuple[Expr, ...]
    level: int
    around: Callable[[Stmt], Stmt]


@dataclass(frozen=True, slots=True)
class ThreadLoop:
    """A dimension of the block: `extent` threads along it, of which this is number `place`."""

    kind: LoopKind
    place: Expr
    extent: int


def joined_across(
    body: Reduce,
    results: Sequence[Buffer],
    starts: Sequence[Expr],
    loops: Sequence[NestLoop],
    target: tuple[Expr, ...],
    guards: list[Expr],
    others: Sequence[ThreadLoop],
) -> AcrossThreads:
    """The plan for the reduction `body` into element `target` of `results`, which is there where `guards` hold.

    `others` are the loops over threads around it: for each of their threads something else is joined.
    """
    level = first_reduction(loops)
    inner = [loop for loop in loops[level:] if not loop.reduces]
    points = [loop for loop in inner if loop.extent > 1 and loop.kind not in THREAD_KINDS]
    point: tuple[Expr, ...] = tuple(loop.var for loop in points)
    shape = tuple(loop.extent for loop in points)
    partials = tuple(Buffer(f"{buffer.name}.part", shape, buffer.dtype, "local") for buffer in results)
    reducing = (loop for loop in loops if loop.reduces and loop.kind in THREAD_KINDS)
    across = [ThreadLoop(loop.kind, loop.var, loop.extent) for loop in reducing]
    tree = _Tree(body, partials, point, (*others, *across), len(others))

    def around(update: Stmt) -> Stmt:
        first = nested(points, stores(partials, point, starts), [])
        done = (*(loop.place for loop in others), *(const(0) for _ in across))
        result = guarded(guards, stores(results, target, [Load(buffer, done) for buffer in tree.scratch]))
        joined = _allocated(tree.scratch, block(tree.filled(), *tree.levels(), result))
        return _allocated(partials, block(first, update, nested(inner, joined, [])))

    return AcrossThreads(partials, point, level, around)


def _allocated(buffers: Sequence[Buffer], stmt: Stmt) -> Stmt:
    for buffer in reversed(buffers):
        stmt = Allocate(buffer, stmt)
    return stmt


class _Tree:
    """The joining of what the threads of a block have at `point` of `partials`, along all dimensions but the first
    `kept`.
    """

    def __init__(
        self,
        body: Reduce,
        partials: Sequence[Buffer],
        point: tuple[Expr, ...],
        loops: Sequence[ThreadLoop],
        kept: int,
    ) -> None:
        self.body = body
        self.partials = partials
        self.point = point
        self.loops = loops
        self.kept = kept
        self.turns = [Var(f"{loop.kind}.t") for loop in loops]
        whole = tuple(loop.extent for loop in loops)
        names = [buffer.name.removesuffix(".part") for buffer in partials]
        self.scratch = tuple(
            Buffer(f"{name}.all", whole, buffer.dtype, "shared") for name, buffer in zip(names, partials, strict=True)
        )

    def over(self, extents: Sequence[int], stmt: Stmt) -> Stmt:
        """The statement in the first `extents` threads along the dimensions."""
        for loop, var, extent in zip(reversed(self.loops), reversed(self.turns), reversed(extents), strict=True):
            stmt = For(var, extent, loop.kind, stmt)
        return stmt

    def filled(self) -> Stmt:
        """Every thread leaves its partial result to the others."""
        values = [Load(buffer, self.point) for buffer in self.partials]
        return self.over([loop.extent for loop in self.loops], stores(self.scratch, tuple(self.turns), values))

    def levels(self) -> list[Stmt]:
        """The halvings of what is left, one dimension after the other."""
        found: list[Stmt] = []
        left = [loop.extent for loop in self.loops]
        here: list[Expr] = list(self.turns)
        for dim in range(self.kept, len(left)):
            while left[dim] > 1:
                offset = 1 << ((left[dim] - 1).bit_length() - 1)
                there = (*here[:dim], here[dim] + offset, *here[dim + 1 :])
                source = as_body([Load(buffer, there) for buffer in self.scratch])
                leaf = join_into(replace(self.body, source=source), self.scratch, tuple(here))
                found.append(self.over([*left[:dim], left[dim] - offset, *left[dim + 1 :]], leaf))
                left[dim] = offset
            here[dim] = const(0)
        return found
