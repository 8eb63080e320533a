"""Lowers reductions that rank the elements of an axis to a merge sort.

    before: for i: for r: rank[i] = rank[i] + (1 if r comes before i else 0)
    after:  sort runs of 32 elements by counting; merge them to runs of 64, 128, …; for p: rank[order[p]] = p

A rank is the number of elements that come before. The order is total, so both give the same ranks; the sort needs
n log n comparisons instead of n^2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from retune.compiler.ir.expr import INDEX, BinaryOp, Buffer, Cast, Expr, Load, Var, binary, cast, const, select
from retune.compiler.ir.rewrite import allocate
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, Store, block
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.nests import stores
from retune.compiler.te.reduction import Axis, Reduce

_FEWEST = 192
"""With fewer elements to rank, vectors count faster."""
_RUN = 32
_PARALLEL = 1 << 14
"""Elements that are worth several threads."""


def order_shape(axes: Sequence[Axis], ranked: int) -> tuple[int, ...]:
    """The shape of the buffer of orders that `rank` needs: a merge reads one half and writes the other."""
    outer_extents = (axis.extent for number, axis in enumerate(axes) if number != ranked)
    return (*outer_extents, 2, axes[ranked].extent)


def rank(
    body: Reduce, axes: Sequence[Axis], ranked: int, variable: Mapping[Axis, Var], ranks: Buffer, order: Buffer
) -> Stmt | None:
    """The loops that write the ranks along axis number `ranked` of the `axes`; None where counting is as good.

    `body` is written over the variables of the axes and counts the elements for which its condition holds; `order` is
    memory of the shape `order_shape`.
    """
    count = axes[ranked].extent
    if count < _FEWEST or not isinstance(body.source, Cast):
        return None
    element, other = variable[axes[ranked]], variable[body.axes[0]]
    # An axis of one element has no loop: a serial loop around a parallel loop is not legal.
    point = {axis: const(0) if axis.extent == 1 else variable[axis] for axis in axes}
    condition = substitute(body.source.value, {variable[axis]: point[axis] for axis in axes})
    row = tuple(point[axis] for number, axis in enumerate(axes) if number != ranked)
    sort = _Sort(ranks.name, condition, element, other, order, row, count)
    position, ranked_element = sort.position, Var(f"{element.name}.left")
    target = tuple(ranked_element if number == ranked else point[axis] for number, axis in enumerate(axes))
    at_position = cast(INDEX, sort.load(const(sort.levels % 2), position))
    write = Let(ranked_element, at_position, count, stores([ranks], target, [position]))
    stmt: Stmt = block(sort.loops(), For(position, count, LoopKind.SERIAL, write))
    outer = [axis for number, axis in enumerate(axes) if number != ranked and axis.extent > 1]
    is_large = prod(axis.extent for axis in axes) >= _PARALLEL
    for axis in reversed(outer):
        kind = LoopKind.PARALLEL if is_large and axis is outer[0] else LoopKind.SERIAL
        stmt = For(variable[axis], axis.extent, kind, stmt)
    return stmt


@dataclass(frozen=True)
class _Sort:
    """The merge sort of one row of `count` elements: their numbers, in order, at `row` of the buffer `order`.

    `condition` holds where element number `other` comes before element number `element`. A level of merges reads one
    half of the buffer and writes the other; the last level writes half number `levels` % 2.
    """

    name: str
    condition: Expr
    element: Var
    other: Var
    order: Buffer
    row: tuple[Expr, ...]
    count: int

    @property
    def levels(self) -> int:
        return (-(-self.count // _RUN) - 1).bit_length()

    @cached_property
    def position(self) -> Var:
        return Var(f"{self.element.name}.place")

    def loops(self) -> Stmt:
        """Sort runs of `_RUN` elements, then merge them."""
        full, remainder = divmod(self.count, _RUN)
        runs = For(self.position, full, LoopKind.SERIAL, self._run(self.position * _RUN, _RUN))
        return block(runs, *([self._run(const(full * _RUN), remainder)] if remainder else []), self._merges())

    def load(self, half: Expr, index: Expr) -> Load:
        return Load(self.order, (*self.row, half, index))

    def _store(self, half: Expr, index: Expr, number: Expr) -> Stmt:
        return Store(self.order, (*self.row, half, index), cast(self.order.dtype, number))

    def _precedes(self, number: Expr, than: Expr) -> Expr:
        return substitute(self.condition, {self.other: number, self.element: than})

    def _run(self, start: Expr, length: int) -> Stmt:
        """Sort the `length` elements from `start` on: count for each how many come before."""
        element, inner = self.element, Var(f"{self.element.name}.run")
        counts = Buffer(f"{self.name}.counts", (length,), INDEX, "local")
        counted = Load(counts, (element,))
        term = cast(INDEX, self._precedes(start + inner, start + element))
        clear = For(element, length, LoopKind.VECTOR, Store(counts, counted.indices, const(0)))
        add = For(element, length, LoopKind.VECTOR, Store(counts, counted.indices, counted + term))
        write = self._store(const(0), start + counted, start + element)
        return allocate(
            [counts],
            block(clear, For(inner, length, LoopKind.SERIAL, add), For(element, length, LoopKind.SERIAL, write)),
        )

    def _merges(self) -> Stmt:
        """Merge neighboring runs, level by level: each step writes the smaller of the next elements of two runs."""
        level, position, count = Var(f"{self.element.name}.level"), self.position, self.count
        cursors = Buffer(f"{self.name}.cursors", (4,), INDEX, "local")
        left, right, middle, end = (Load(cursors, (const(number),)) for number in range(4))

        def move(cursor: Load, value: Expr) -> Stmt:
            return Store(cursors, cursor.indices, value)

        width = binary(BinaryOp.SHL, _RUN, level)
        begin = block(
            move(left, position),
            move(middle, _least(position + width, count)),
            move(right, middle),
            move(end, _least(position + width * 2, count)),
        )
        # Beyond the end of a run the last element is read, and not taken.
        first, second = Var(f"{self.element.name}.left"), Var(f"{self.element.name}.right")
        takes = Var(f"{self.element.name}.takes")
        open_left, open_right = binary(BinaryOp.LT, left, middle), binary(BinaryOp.LT, right, end)
        comes_first = binary(BinaryOp.AND, open_right, self._precedes(second, first))
        taken = select(open_left, cast(INDEX, comes_first), const(1))
        half = level % 2
        step: Stmt = block(
            self._store(1 - half, position, first + (second - first) * takes),
            move(left, left + 1 - takes),
            move(right, right + takes),
        )
        step = Let(takes, taken, 2, step)
        for var, cursor in ((second, right), (first, left)):
            step = Let(var, cast(INDEX, self.load(half, _least(cursor, count - 1))), count, step)
        merge = For(position, count, LoopKind.SERIAL, block(If(binary(BinaryOp.EQ, position, end), begin), step))
        return allocate([cursors], For(level, self.levels, LoopKind.SERIAL, block(move(end, const(0)), merge)))


def _least(value: Expr, bound: int) -> Expr:
    return binary(BinaryOp.MIN, value, const(bound))
