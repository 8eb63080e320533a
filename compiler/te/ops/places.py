"""In: tensors, and indices into them or a search for some. Out: tensor expressions.

Always: an index that is read is counted from the end where it is negative, and clipped, so that no data makes a kernel
read outside of a tensor. What is scattered to an index outside is left out.

Nothing is written to a place that is not known beforehand: a scatter asks for each element of the result which updates
go there, so its time grows with the elements times the updates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.ops.reduce import argmax, argmin
from retune.compiler.te.tensor import Axis, Tensor

_last = te.comm_reducer(
    lambda x, y: (te.select(x[1] > y[1], x[0], y[0]), te.maximum(x[1], y[1])),
    lambda value, _: (te.const(0, value), te.const(-1, "int64")),
    "last",
)


def _from_front(index: Expr, extent: int) -> Expr:
    wide = te.cast("int64", index)
    return te.select(wide < 0, wide + extent, wide)


def _inside(index: Expr, extent: int) -> Expr:
    return te.minimum(te.maximum(_from_front(index, extent), 0), extent - 1)


def arg_reduction(call: OpCall) -> Tensor:
    """Where along `axis` the first largest or smallest element is."""
    find = argmax if call.op == "arg_max" else argmin
    return find(call.tensor(0), call.integer("axis"), bool(call.attrs.get("keepdims")), "int64", call.name)[0]


def top_k(call: OpCall) -> Tensor:
    """Places of the k largest (smallest) along `axis`: an element's rank is how many come before it.

    Ranks among n elements are n^2 comparisons. So long as that is many times more than k, the elements are cut into
    blocks of some k, and only the best k of each block go on, which takes some 8 k n comparisons in all.
    """
    source, axis, k = call.tensor(0), call.integer("axis"), call.integer("k")
    largest, block = bool(call.attrs.get("largest")), max(_LEAST_BLOCK, 4 * k)
    left = _Candidates(source, None, axis)
    level = 0
    while left.count > 2 * block:
        kept = _best_of_blocks(left, block, k, largest, f"{call.name}_{level}")
        left, level = _Candidates(_values_at(source, kept, axis, f"{call.name}_{level}_values"), kept, axis), level + 1
    best = _best_of_blocks(left, left.count, k, largest, call.name)
    return te.compute(call.shape, lambda *i: best[(*i[:axis], te.const(0), *i[axis:])], name=call.name)


_LEAST_BLOCK = 64


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Elements that may be among the best: their `values`, and the places they come from, counted along `axis`; a place
    of -1 stands for no element. Without `places` the values are the source itself. With places both have two axes in
    place of `axis`: blocks, and what is left of a block.
    """

    values: Tensor
    places: Tensor | None
    axis: int

    @property
    def count(self) -> int:
        """How many there are along the axis."""
        extents = self.values.shape[self.axis : self.axis + (1 if self.places is None else 2)]
        return math.prod(extents)

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of the axes before and behind."""
        return self.values.shape[: self.axis], self.values.shape[self.axis + (1 if self.places is None else 2) :]

    def at(self, before: Sequence[Expr], number: Expr, behind: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Value and place of a candidate."""
        if self.places is None:
            return self.values[(*before, number, *behind)], te.cast("int64", number)
        size = self.places.shape[self.axis + 1]
        point = (*before, number // size, number % size, *behind)
        return self.values[point], self.places[point]


def _best_of_blocks(left: _Candidates, block: int, k: int, largest: bool, name: str) -> Tensor:
    """The places of the best k of every block, in order: the axis becomes two, blocks and k; -1 where a block has no
    more.
    """
    first, last = left.around
    axis, blocks = left.axis, -(-left.count // block)
    values, places = _cut(left, blocks, block, name)
    shape = (*first, blocks, block, *last)
    other, found = te.reduce_axis(block, "r"), te.reduce_axis(block, "q")

    def moved(indices: Sequence[Expr], number: Expr) -> tuple[Expr, ...]:
        return (*indices[: axis + 1], number, *indices[axis + 2 :])

    def rank(*i: Expr) -> Expr:
        there = moved(i, other)
        mine, theirs = values[i], values[there]
        ahead = mine < theirs if largest else theirs < mine
        tie = te.logical_and(te.equal(mine, theirs), places[there] < places[i])
        counts = te.logical_and(places[there] >= 0, te.logical_or(ahead, tie))
        return te.sum(te.cast("int32", counts), other)

    ranks = te.compute(shape, rank, name=f"{name}_rank")

    def place(*i: Expr) -> Expr:
        there = moved(i, found)
        here = te.logical_and(te.equal(ranks[there], te.cast("int32", i[axis + 1])), places[there] >= 0)
        return te.max(te.select(here, places[there], te.const(-1, "int64")), found)

    return te.compute((*first, blocks, k, *last), place, name=f"{name}_best")


def _cut(left: _Candidates, blocks: int, block: int, name: str) -> tuple[Tensor, Tensor]:
    """Values and places of the candidates in blocks; the last block is filled up with what is no element."""
    first, last = left.around
    axis, count, shape = left.axis, left.count, (*first, blocks, block, *last)

    def candidate(i: Sequence[Expr]) -> tuple[Expr, tuple[Expr, Expr]]:
        number = i[axis] * block + i[axis + 1]
        return number, left.at(i[:axis], number, i[axis + 2 :])

    def value(*i: Expr) -> Expr:
        number, (found, _) = candidate(i)
        return te.if_then_else(number < count, found, te.const(0, left.values.dtype))

    def place(*i: Expr) -> Expr:
        number, (_, found) = candidate(i)
        return te.if_then_else(number < count, found, te.const(-1, "int64"))

    return te.compute(shape, value, name=f"{name}_cut"), te.compute(shape, place, name=f"{name}_cut_places")


def _values_at(source: Tensor, places: Tensor, axis: int, name: str) -> Tensor:
    """The elements at these places; any where there is none."""

    def body(*i: Expr) -> Expr:
        return source[(*i[:axis], te.maximum(places[i], 0), *i[axis + 2 :])]

    return te.compute(places.shape, body, name=name)


def gather(call: OpCall) -> Tensor:
    """Slices of the first operand along `axis`, one for each index."""
    source, indices = call.tensor(0), call.tensor(1)
    axis, rank = call.integer("axis"), len(indices.shape)

    def body(*i: Expr) -> Expr:
        index = _inside(indices[i[axis : axis + rank]], source.shape[axis])
        return source[(*i[:axis], index, *i[axis + rank :])]

    return te.compute(call.shape, body, name=call.name)


def gather_elements(call: OpCall) -> Tensor:
    """The element at each index along `axis`."""
    source, indices = call.tensor(0), call.tensor(1)
    axis = call.integer("axis")

    def body(*i: Expr) -> Expr:
        return source[(*i[:axis], _inside(indices[i], source.shape[axis]), *i[axis + 1 :])]

    return te.compute(call.shape, body, name=call.name)


def gather_nd(call: OpCall) -> Tensor:
    """A slice for each row of indices into the dimensions after the first `batch_dims`."""
    source, indices = call.tensor(0), call.tensor(1)
    batch, rows, named = call.integer("batch_dims"), len(indices.shape) - 1, indices.shape[-1]

    def body(*i: Expr) -> Expr:
        found = [_inside(indices[(*i[:rows], te.const(d))], source.shape[batch + d]) for d in range(named)]
        return source[(*i[:batch], *found, *i[rows:])]

    return te.compute(call.shape, body, name=call.name)


def scatter_elements(call: OpCall) -> Tensor:
    """The first operand with updates joined to it at indices along `axis`."""
    source, indices, updates = (call.tensor(place) for place in range(3))
    axis = call.integer("axis")
    along = te.reduce_axis(indices.shape[axis], "r")

    def hit(i: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        point = (*i[:axis], along, *i[axis + 1 :])
        near = [i[d] < indices.shape[d] for d in range(len(i)) if d != axis and indices.shape[d] < source.shape[d]]
        same = te.equal(_from_front(indices[point], source.shape[axis]), i[axis])
        inside = te.if_then_else(te.logical_and(*near), same, te.const(False)) if near else same
        return inside, updates[point]

    return _scattered(call, source, hit, [along])


def scatter_nd(call: OpCall) -> Tensor:
    """The first operand with slices of updates joined to it, each at a row of indices."""
    source, indices, updates = (call.tensor(place) for place in range(3))
    named = indices.shape[-1]
    rows = [te.reduce_axis(extent, f"r{d}") for d, extent in enumerate(indices.shape[:-1])]

    def hit(i: tuple[Expr, ...]) -> tuple[Expr, Expr]:
        same = [te.equal(_from_front(indices[(*rows, te.const(d))], source.shape[d]), i[d]) for d in range(named)]
        return te.logical_and(*same), updates[(*rows, *i[named:])]

    return _scattered(call, source, hit, rows)


def _scattered(
    call: OpCall, source: Tensor, hit: Callable[[tuple[Expr, ...]], tuple[Expr, Expr]], axes: list[Axis]
) -> Tensor:
    """`hit` says of an element whether the update at the reduce axes goes there, and gives that update."""
    how = call.text("reduction")
    if not axes:
        return te.compute(call.shape, lambda *i: _joined(how, source[i], *hit(i)), name=call.name)
    if how != "none":
        neutral = {"add": te.const(0, call.dtype), "mul": te.const(1, call.dtype)}
        reducer = {"add": te.sum, "mul": te.prod, "max": te.max, "min": te.min}[how]

        def total(*i: Expr) -> Expr:
            here, update = hit(i)
            return reducer(te.if_then_else(here, update, neutral.get(how, source[i])), axes)

        joined = te.compute(call.shape, total, name=f"{call.name}_updates")
        return te.compute(call.shape, lambda *i: _joined(how, source[i], te.const(True), joined[i]), name=call.name)

    def latest(*i: Expr) -> tuple[Expr, ...]:
        here, update = hit(i)
        number: Expr = te.const(0)
        for axis in axes:
            number = number * axis.extent + axis
        value = te.if_then_else(here, update, te.const(0, call.dtype))
        return _last((value, te.if_then_else(here, number, -1)), axes)

    values, numbers = te.compute(call.shape, latest, name=f"{call.name}_updates")
    return te.compute(call.shape, lambda *i: te.select(numbers[i] < 0, source[i], values[i]), name=call.name)


def _joined(how: str, old: Expr, here: Expr, update: Expr) -> Expr:
    combined = {
        "none": lambda: update,
        "add": lambda: old + update,
        "mul": lambda: old * update,
        "max": lambda: te.maximum(old, update),
        "min": lambda: te.minimum(old, update),
    }[how]()
    return te.select(here, combined, old)
