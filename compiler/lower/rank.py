"""Reductions that count how many elements of an axis come before each: ranks, by a merge sort.

    before: for i: for r: rank[i] = rank[i] + (1 if r comes before i else 0)
    after:  sort runs of 32 elements by counting; merge them to runs of 64, 128, …; for p: rank[order[p]] = p

The order is total, so the ranks are the same, in n log n comparisons instead of n^2.
"""

from collections.abc import Mapping, Sequence
from math import prod

from retune.compiler.ir.expr import INDEX, BinaryOp, Buffer, Cast, Expr, Load, Var, binary, cast, const, select
from retune.compiler.ir.rewrite import allocate
from retune.compiler.ir.stmt import For, If, Let, LoopKind, Stmt, Store, block
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.nests import stores
from retune.compiler.te.tensor import Axis, Reduce

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
    levels = (-(-count // _RUN) - 1).bit_length()
    level, position = Var(f"{element.name}.level"), Var(f"{element.name}.place")
    cursors = Buffer(f"{ranks.name}.cursors", (4,), INDEX, "local")
    left, right, middle, end = (Load(cursors, (const(number),)) for number in range(4))

    def ordered(half: Expr, index: Expr) -> Load:
        return Load(order, (*row, half, index))

    def moved(cursor: Load, value: Expr) -> Stmt:
        return Store(cursors, cursor.indices, value)

    def narrow(index: Expr) -> Expr:
        return cast(order.dtype, index)

    def precedes(number: Expr, than: Expr) -> Expr:
        return substitute(condition, {other: number, element: than})

    def counted_run(start: Expr, length: int) -> Stmt:
        counts = Buffer(f"{ranks.name}.counts", (length,), INDEX, "local")
        inner, count = Var(f"{element.name}.run"), Load(counts, (element,))
        term = cast(INDEX, precedes(start + inner, start + element))

        def each(kind: LoopKind, stmt: Stmt) -> Stmt:
            return For(element, length, kind, stmt)

        return allocate(
            [counts],
            block(
                each(LoopKind.VECTOR, Store(counts, count.indices, const(0))),
                For(inner, length, LoopKind.SERIAL, each(LoopKind.VECTOR, Store(counts, count.indices, count + term))),
                each(LoopKind.SERIAL, Store(order, (*row, const(0), start + count), narrow(start + element))),
            ),
        )

    width = binary(BinaryOp.SHL, _RUN, level)
    run = block(
        moved(left, position),
        moved(middle, _least(position + width, count)),
        moved(right, middle),
        moved(end, _least(position + width * 2, count)),
    )
    # Beyond the end of a run the last element is read, and not taken.
    first, second = Var(f"{element.name}.left"), Var(f"{element.name}.right")
    takes = Var(f"{element.name}.takes")
    open_left, open_right = binary(BinaryOp.LT, left, middle), binary(BinaryOp.LT, right, end)
    taken = select(open_left, cast(INDEX, binary(BinaryOp.AND, open_right, precedes(second, first))), const(1))
    half = level % 2
    step = block(
        Store(order, (*row, 1 - half, position), narrow(first + (second - first) * takes)),
        moved(left, left + 1 - takes),
        moved(right, right + takes),
    )
    step = Let(takes, taken, 2, step)
    for var, cursor in ((second, right), (first, left)):
        step = Let(var, cast(INDEX, ordered(half, _least(cursor, count - 1))), count, step)
    merge = For(position, count, LoopKind.SERIAL, block(If(binary(BinaryOp.EQ, position, end), run), step))
    sort = block(
        For(position, count // _RUN, LoopKind.SERIAL, counted_run(position * _RUN, _RUN)),
        *([counted_run(const(count // _RUN * _RUN), count % _RUN)] if count % _RUN else []),
        allocate([cursors], For(level, levels, LoopKind.SERIAL, block(moved(end, const(0)), merge))),
    )
    target = tuple(first if number == ranked else point[axis] for number, axis in enumerate(axes))
    write = Let(first, cast(INDEX, ordered(const(levels % 2), position)), count, stores([ranks], target, [position]))
    stmt: Stmt = block(sort, For(position, count, LoopKind.SERIAL, write))
    outer = [axis for number, axis in enumerate(axes) if number != ranked and axis.extent > 1]
    is_large = prod(axis.extent for axis in axes) >= _PARALLEL
    for axis in reversed(outer):
        kind = LoopKind.PARALLEL if is_large and axis is outer[0] else LoopKind.SERIAL
        stmt = For(variable[axis], axis.extent, kind, stmt)
    return stmt


def _least(value: Expr, bound: int) -> Expr:
    return binary(BinaryOp.MIN, value, const(bound))
