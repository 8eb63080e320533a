"""Simulates the multiplications of warpgroups, which read shared memory while their threads go on.

A fault is whatever a GPU leaves undefined: a partial warpgroup, threads that name different factors, factors that were
written without a proxy fence or are written while they are read, and sums that are accessed before they are waited for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.tensor_core import (
    COLUMNS,
    GROUP,
    GROUP_ROWS,
    GROUP_WARPS,
    MATRIX,
    SUM_ELEMENTS,
    WARP,
    GroupLayout,
    WarpgroupMma,
    WarpgroupWait,
)
from tests.support.simt.checked_memory import Array, Memory, Place
from tests.support.simt.sides import Side
from tests.support.simt.tags import Numbers

_ENDS = (0, GROUP - 1)
"""Threads that stand for a warpgroup where it reads: one of them differs from whichever thread has written."""


def sum_position(lane: int, element: int) -> tuple[int, int]:
    """(row, column) of the `element`-th sum in `lane`."""
    # PTX ISA, accumulators of mma.m16n8: two columns of the upper eight rows, then of the lower.
    return lane // 4 + MATRIX * (element // 2), lane % 4 * 2 + element % 2


@dataclass(frozen=True, slots=True)
class _Read:
    """What warpgroups read of a factor, elements (groups, n), and the global numbers of threads at both ends of each,
    (groups, 2).
    """

    memory: Memory
    places: Numbers
    who: Numbers


@dataclass(frozen=True, slots=True)
class _Started:
    """A multiplication under way in some warpgroups, each given by its first thread, as the `ordinals[i]`-th of it."""

    leaders: Numbers
    ordinals: Numbers
    factors: tuple[_Read, _Read]
    sums: Memory
    held: Numbers


class Warpgroups:
    """The multiplications of the warpgroups of `count` threads, and how many each thread has started."""

    def __init__(self, place: Place, count: int) -> None:
        self.place = place
        self.counts = np.zeros(count, np.int64)
        self.under_way: list[_Started] = []

    def start(
        self,
        stmt: WarpgroupMma,
        numbers: Numbers,
        values: Callable[[Sequence[Expr]], list[Array]],
        side: Callable[[Buffer], Side],
    ) -> None:
        """Begin a multiplication: it is done at once, but what it reads and adds to stays taken until it is waited for.

        Raises: KernelFaultError.
        """
        self.place.check_whole(numbers, GROUP, "warpgroup", "thread")
        shape, depth = stmt.shape, stmt.instruction.depth * stmt.shape.steps
        rows, columns = shape.rows * GROUP_ROWS, shape.columns * COLUMNS
        left, one = self.factor(side(stmt.left), values(stmt.left_at), stmt.left_layout, (rows, depth))
        right, other = self.factor(side(stmt.right), values(stmt.right_at), stmt.right_layout, (columns, depth))
        sums = side(stmt.sums)
        held = sums.memory.neighbors(sums.copies, values(stmt.at), sums.who, shape.sums)
        sums.memory.check_known(held.reshape(-1), np.repeat(sums.who, shape.sums))
        # Those under way add to the same sums, one after the other; to access them otherwise is a fault.
        row, column = _sum_places(shape.rows, shape.columns)
        for step in np.split(np.arange(depth), shape.steps):
            added = np.matmul(one[:, :, step], other[:, :, step].transpose(0, 2, 1))
            sums.memory.data[held] += added[:, row, column].reshape(len(numbers), shape.sums)
        leaders = numbers[::GROUP]
        started = _Started(leaders, self.counts[leaders], (left, right), sums.memory, held.reshape(len(leaders), -1))
        for factor in started.factors:
            factor.memory.take(factor.places, 1)
        sums.memory.take(started.held, 1, reads=True)
        self.counts[numbers] += 1
        self.under_way.append(started)

    def wait(self, stmt: WarpgroupWait, numbers: Numbers, epochs: Numbers) -> None:
        """What the warpgroups have started is done, but for the youngest."""
        self.place.check_whole(numbers, GROUP, "warpgroup", "thread")
        when = dict(zip(numbers.tolist(), epochs.tolist(), strict=True))
        left: list[_Started] = []
        for each in self.under_way:
            waiting = np.isin(each.leaders, numbers)
            done = waiting & (each.ordinals < self.counts[each.leaders] - stmt.pending)
            if done.any():
                now = np.array([when[leader] for leader in each.leaders[done].tolist()], np.int64)
                for factor in each.factors:
                    places, who = factor.places[done], factor.who[done]
                    factor.memory.take(places, -1)
                    # The read ends here: others may write only after a barrier that follows.
                    _note_read(factor.memory, places, who, now)
                each.sums.take(each.held[done], -1, reads=True)
            if not done.all():
                kept = ~done
                factors = tuple(_Read(f.memory, f.places[kept], f.who[kept]) for f in each.factors)
                one, other = factors
                left.append(_Started(each.leaders[kept], each.ordinals[kept], (one, other), each.sums, each.held[kept]))
        self.under_way = left

    def factor(
        self, side: Side, at: Sequence[Array], layout: GroupLayout, shape: tuple[int, int]
    ) -> tuple[_Read, Array]:
        """What warpgroups read of a factor, and its elements in float32, (groups, rows, depth)."""
        starts = side.memory.neighbors(side.copies, at, side.who, 1).reshape(-1, GROUP)
        differs = starts != starts[:, :1]
        if differs.any():
            group, thread = (int(found[0]) for found in np.nonzero(differs))
            raise self.place.fault(
                f"{self.place.who(side.who[group * GROUP + thread])} names another element of {side.memory.buffer} "
                f"than the first thread of its warpgroup, in {self.place.text()}"
            )
        row, depth = np.meshgrid(*map(np.arange, shape), indexing="ij")
        offsets = np.vectorize(layout.offset)(row, depth).reshape(-1)
        who, epochs = side.who.reshape(-1, GROUP), side.epochs.reshape(-1, GROUP)[:, 0]
        first = [np.broadcast_to(index, side.who.shape)[::GROUP] for index in at]
        span = side.memory.neighbors(side.copies[::GROUP], first, who[:, 0], int(offsets.max()) + 1)
        places = span[:, offsets]
        read = _Read(side.memory, places, who[:, list(_ENDS)])
        side.memory.check_fenced(places.reshape(-1), np.repeat(who[:, 0], len(offsets)))
        _note_read(side.memory, places, read.who, epochs)
        return read, side.memory.data[places].reshape(-1, *shape).astype(np.float32)


def _note_read(memory: Memory, places: Numbers, who: Numbers, epochs: Numbers) -> None:
    """Warpgroups read elements (groups, n), with both of their ends `who` (groups, 2)."""
    count = places.shape[1]
    for end in range(len(_ENDS)):
        memory.read_at(places.reshape(-1), np.repeat(who[:, end], count), np.repeat(epochs, count))


def _sum_places(rows: int, columns: int) -> tuple[Numbers, Numbers]:
    """Row and column of every sum of every thread of a warpgroup, (threads, sums)."""
    found = np.empty((2, GROUP_WARPS, WARP, rows, columns, SUM_ELEMENTS), np.int64)
    for lane in range(WARP):
        for element in range(SUM_ELEMENTS):
            found[:, :, lane, :, :, element] = np.array(sum_position(lane, element)).reshape(2, 1, 1, 1)
    found[0] += np.arange(GROUP_WARPS).reshape(-1, 1, 1, 1, 1) * (GROUP_ROWS // GROUP_WARPS)
    found[0] += np.arange(rows).reshape(1, 1, -1, 1, 1) * GROUP_ROWS
    found[1] += np.arange(columns).reshape(1, 1, 1, -1, 1) * COLUMNS
    row, column = found.reshape(2, GROUP, -1)
    return row, column
