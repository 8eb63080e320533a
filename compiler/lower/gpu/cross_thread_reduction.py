"""Cross-thread reductions: each thread reduces a part; parts are joined by a tree or by warp shuffles.

The order of a sum is fixed, so that a program computes the same bits each time. Threads of a warp shuffle where the
reduction fills whole warps or fits in a warp; otherwise, and between warps, results go through shared memory.
    before: for k.0 in 8: threadIdx.x k.1 in 32: b[i] = b[i] + a[i, k.0 * 32 + k.1]
    after:  local b.part: b.part[] = 0
            for k.0 in 8: threadIdx.x k.1 in 32: b.part[] = b.part[] + a[i, k.0 * 32 + k.1]
            local b.other
            b.other[] = shuffle b.part[] of 16 further in 32; b.part[] = b.part[] + b.other[]
            …
            b.other[] = shuffle b.part[] of 1 further in 32; b.part[] = b.part[] + b.other[]
            b[i] = b.part[]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from retune.compiler.ir.expr import Buffer, Expr, Load, Var, const
from retune.compiler.ir.rewrite import allocate
from retune.compiler.ir.stmt import THREAD_KINDS, For, If, LoopKind, Shuffle, Stmt, block
from retune.compiler.ir.tensor_core import WARP
from retune.compiler.lower.nests import (
    NestLoop,
    first_reduction,
    join_into,
    points_of,
    stores,
    wrap_in_guards,
    wrap_in_loops,
)
from retune.compiler.te.reduction import Reduce, as_body

_Along = TypeVar("_Along")


@dataclass(frozen=True, slots=True)
class CrossThreadReduction:
    """The plan of a reduction: into element `point` of `partials`, with `around` around its loop number `level`."""

    partials: tuple[Buffer, ...]
    point: tuple[Expr, ...]
    level: int
    around: Callable[[Stmt], Stmt]


@dataclass(frozen=True, slots=True)
class ThreadLoop:
    """A dimension of the block with `extent` threads; this thread has `number`."""

    kind: LoopKind
    number: Expr
    extent: int


def plan_cross_thread_reduction(
    body: Reduce,
    results: Sequence[tuple[Buffer, str]],
    starts: Sequence[Expr],
    loops: Sequence[NestLoop],
    target: tuple[Expr, ...],
    guards: list[Expr],
    threads: tuple[Sequence[ThreadLoop], Mapping[LoopKind, int]],
) -> CrossThreadReduction:
    """The plan for the reduction `body` into element `target` of `results`, which exists where `guards` hold. Each
    result comes with the type of its partial results.

    `threads` are the loops over threads around it, each of whose threads joins something else, and the threads of the
    block along each dimension.
    """
    others, sizes = threads
    level = first_reduction(loops)
    inner = [loop for loop in loops[level:] if not loop.reduces]
    points = points_of(loops)
    point: tuple[Expr, ...] = tuple(loop.var for loop in points)
    shape = tuple(loop.extent for loop in points)
    partials = tuple(Buffer(f"{buffer.name}.part", shape, dtype, "local") for buffer, dtype in results)
    reducing = (loop for loop in loops if loop.reduces and loop.kind in THREAD_KINDS)
    across = [ThreadLoop(loop.kind, loop.var, loop.extent) for loop in reducing]
    # Shuffles need no memory and no barrier, so they come first; a tree works for every number of threads.
    join = _WarpShuffle if _in_warps(across, others, sizes) else _TreeReduction
    plan = join(body, partials, point, across, others, alone=results[0][0].scope != "local")

    def wrap(update: Stmt) -> Stmt:
        first = wrap_in_loops(points, stores(partials, point, starts), [])
        result = wrap_in_guards(guards, stores([buffer for buffer, _ in results], target, plan.results()))
        joined = allocate(plan.scratch, block(*plan.statements(), result))
        return allocate(partials, block(first, update, wrap_in_loops(inner, joined, [])))

    return CrossThreadReduction(partials, point, level, wrap)


def _in_warps(across: Sequence[ThreadLoop], others: Sequence[ThreadLoop], sizes: Mapping[LoopKind, int]) -> bool:
    """Whether each reduction's threads are one whole group of a warp, or whole warps."""
    # Threads are numbered along x first: a group along another dimension would straddle warps.
    if len(across) != 1 or across[0].kind is not LoopKind.THREAD_X:
        return False
    # A loop shorter than the block would leave threads out of an instruction that a warp executes together.
    if any(loop.extent != sizes[loop.kind] for loop in (*across, *others)):
        return False
    extent, threads = across[0].extent, prod(sizes.values())
    # The groups of a shuffle are powers of two; a block of at most one warp may be one group of any length.
    if threads <= WARP:
        return extent == threads or extent & (extent - 1) == 0
    return threads % WARP == 0 and (extent % WARP == 0 or WARP % extent == 0)


@dataclass(frozen=True)
class _Join:
    """Joins the partial results of the threads of a block, element `point` of `partials`, along the dimensions
    `across`. `alone`: only the first thread needs the result.
    """

    body: Reduce
    partials: Sequence[Buffer]
    point: tuple[Expr, ...]
    across: Sequence[ThreadLoop]
    others: Sequence[ThreadLoop]
    alone: bool

    @property
    def loops(self) -> tuple[ThreadLoop, ...]:
        return (*self.others, *self.across)

    @property
    def indices(self) -> list[Var]:
        return [Var(f"{loop.kind}.t") for loop in self.loops]

    @property
    def own_partials(self) -> list[Expr]:
        return [Load(buffer, self.point) for buffer in self.partials]

    def over(self, extents: Sequence[int], stmt: Stmt) -> Stmt:
        """The statement in the first `extents` threads along the dimensions."""
        for loop, var, extent in zip(reversed(self.loops), reversed(self.indices), reversed(extents), strict=True):
            stmt = For(var, extent, loop.kind, stmt)
        return stmt

    def buffers(self, ending: str, shape: tuple[int, ...], scope: str) -> tuple[Buffer, ...]:
        """A buffer for every result."""
        names = [buffer.name.removesuffix(".part") for buffer in self.partials]
        pairs = zip(names, self.partials, strict=True)
        return tuple(Buffer(f"{name}.{ending}", shape, buffer.dtype, scope) for name, buffer in pairs)

    def with_value(self, values: Sequence[Expr], buffers: Sequence[Buffer], target: tuple[Expr, ...]) -> Stmt:
        return join_into(replace(self.body, source=as_body(values)), buffers, target)


class _TreeReduction(_Join):
    """A tree of halvings in shared memory, where neighbors along x are contiguous, in separate banks."""

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """The shared buffers: an element for every thread."""
        return self.buffers("all", self.in_memory_order([loop.extent for loop in self.loops]), "shared")

    def in_memory_order(self, values: Sequence[_Along]) -> tuple[_Along, ...]:
        """`values`, one per loop, reordered z, y, x (x contiguous)."""
        order = sorted(range(len(self.loops)), key=lambda number: -THREAD_KINDS.index(self.loops[number].kind))
        return tuple(values[number] for number in order)

    def results(self) -> list[Expr]:
        done = self.in_memory_order([*(loop.number for loop in self.others), *(const(0) for _ in self.across)])
        return [Load(buffer, done) for buffer in self.scratch]

    def statements(self) -> list[Stmt]:
        """Every thread stores its partial result; then the remaining threads are halved, dimension by dimension."""
        counts = [loop.extent for loop in self.loops]
        own_index: list[Expr] = list(self.indices)
        result = [self.over(counts, stores(self.scratch, self.in_memory_order(own_index), self.own_partials))]
        # The barriers between these steps come from `insert_barriers`.
        for dim in range(len(self.others), len(counts)):
            for offset in _halvings(counts[dim]):
                partner = self.in_memory_order([*own_index[:dim], own_index[dim] + offset, *own_index[dim + 1 :]])
                leaf = self.with_value(
                    [Load(buffer, partner) for buffer in self.scratch], self.scratch, self.in_memory_order(own_index)
                )
                result.append(self.over([*counts[:dim], counts[dim] - offset, *counts[dim + 1 :]], leaf))
                counts[dim] = offset
            own_index[dim] = const(0)
        return result


class _WarpShuffle(_Join):
    """Shuffles in each warp, then shuffles of the warps' results in the first warp."""

    @property
    def extent(self) -> int:
        return self.across[0].extent

    @property
    def shared(self) -> tuple[Buffer, ...]:
        """An element for every warp, where there are several."""
        shape = (*(loop.extent for loop in self.others), self.extent // WARP)
        return self.buffers("all", shape, "shared") if self.extent > WARP else ()

    @property
    def other(self) -> tuple[Buffer, ...]:
        """Buffers for the values of another thread."""
        return self.buffers("other", (), "local")

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """The buffers that the plan allocates."""
        return (*self.other, *self.shared)

    @property
    def stored_results(self) -> list[Expr]:
        """The elements in which the first warp stores the results for the others."""
        done = (*(loop.number for loop in self.others), const(0))
        return [Load(buffer, done) for buffer in self.shared]

    def results(self) -> list[Expr]:
        return self.own_partials if self.alone or not self.shared else self.stored_results

    def statements(self) -> list[Stmt]:
        """The shuffles in every warp; then the first warp shuffles the warps' results."""
        extents = [loop.extent for loop in self.loops]
        indices = tuple(self.indices)
        result = self.shuffles(min(self.extent, WARP))
        if self.shared:
            to_shared = stores(self.shared, (*indices[:-1], indices[-1] // WARP), self.own_partials)
            result.append(self.over(extents, If(indices[-1] % WARP < 1, to_shared)))
            from_shared = stores(self.partials, self.point, [Load(buffer, indices) for buffer in self.shared])
            warps = self.extent // WARP
            result.append(self.over([*extents[:-1], warps], from_shared))
            result.extend(self.shuffles(warps))
            if not self.alone:
                result.append(self.over([*extents[:-1], 1], stores(self.shared, indices, self.own_partials)))
        elif not self.alone:
            result.append(self.shuffle(None, self.width(self.extent)))
            result.append(stores(self.partials, self.point, [Load(buffer, ()) for buffer in self.other]))
        return result

    def width(self, count: int) -> int:
        """Threads of a group in which the first `count` are joined."""
        return count if count == self.extent and count & (count - 1) == 0 else WARP

    def shuffles(self, count: int) -> list[Stmt]:
        """Join the values of the first `count` threads of each group; if a power of two, others may join anything."""
        result: list[Stmt] = []
        active = count
        for offset in _halvings(count):
            result.append(self.shuffle(offset, self.width(count)))
            leaf = self.with_value([Load(buffer, ()) for buffer in self.other], self.partials, self.point)
            # If the count is no power of two, some threads have no partner in this step.
            if count & (count - 1):
                leaf = self.over([*(loop.extent for loop in self.others), active - offset], leaf)
            result.append(leaf)
            active = offset
        return result

    def shuffle(self, distance: int | None, width: int) -> Stmt:
        """Every thread gets the values of another."""
        pairs = zip(self.other, self.own_partials, strict=True)
        return block(*(Shuffle(buffer, (), value, distance, width) for buffer, value in pairs))


def _halvings(count: int) -> list[int]:
    """The distances at which values are joined: the first half of `count` takes in the second, and so on."""
    distances = []
    while count > 1:
        # The largest power of two below the count: after it all halves are even.
        count = 1 << ((count - 1).bit_length() - 1)
        distances.append(count)
    return distances
