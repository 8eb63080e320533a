"""Operators that search for indices or follow them: arg_max, top_k, gather, scatter.

An index that is read counts from the end where it is negative and is clipped, so that no data makes a kernel read
outside of a tensor. What is scattered to an index outside is left out. A scatter is defined as a reduction: each
element of the result asks which updates go there. On CPUs `retune.compiler.lower.scatter` visits each update once.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import add, mul
from typing import cast

import numpy as np

from retune.compiler import te
from retune.compiler.ir.dims import same
from retune.compiler.ir.expr import Expr, is_float
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, Shape
from retune.compiler.ops.reduce import argmax, argmin
from retune.compiler.te.reduction import Axis, Reduce, smallest
from retune.compiler.te.reduction import largest as largest_of
from retune.compiler.te.tensor import RANKS, SCATTERS, Tensor

REDUCTIONS = ("none", "add", "mul", "max", "min")
"""How a scattered element joins the one that is there."""
Point = tuple[Expr, ...]
_JOIN: Mapping[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _require_indices(call: OpCall) -> None:
    call.require(call.types[1].dtype.startswith(("int", "uint")), "the indices must be integers")


def _require_smaller(call: OpCall, shape: Shape, axis: int) -> None:
    """The indices may be larger than the first operand along `axis` alone."""
    outer_shape = call.types[0].shape
    fits = len(shape) == len(outer_shape) and all(
        inner <= outer for dim, (inner, outer) in enumerate(zip(shape, outer_shape, strict=True)) if dim != axis
    )
    call.require(fits, f"the indices may be larger than the first operand along axis {axis} alone")


def _from_front(index: Expr, extent: int) -> Expr:
    # In int64, since a narrow index type may not hold the extent.
    wide = te.cast("int64", index)
    return te.select(wide < 0, wide + extent, wide)


def inside(index: Expr, extent: int) -> Expr:
    """The index counted from the front, the nearest one for those outside."""
    return te.minimum(te.maximum(_from_front(index, extent), 0), extent - 1)


def inside_array(indices: Array, extent: int) -> Array:
    """Indices counted from the front, the nearest one for those outside."""
    indices = indices.astype("int64")
    return np.asarray(np.clip(np.where(indices < 0, indices + extent, indices), 0, extent - 1))


def _arg_reduction(name: str, find: Callable[..., tuple[Tensor, ...]], numpy: Callable[..., Array]) -> Op:
    """The index of the first extreme element along an axis."""

    def lower(call: OpCall) -> Lowered:
        axis, shape, keep = call.require_axis(), call.types[0].shape, call.flag("keepdims")
        reduced = (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :])
        return Lowered(reduced, "int64", lambda x: find(x, axis, keep, "int64", call.name)[0])

    def evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
        return numpy(arrays[0], axis=call.integer("axis"), keepdims=call.flag("keepdims"))

    return Op(name, 1, FusionKind.REDUCTION, lower, evaluate, {"axis": int, "keepdims": bool})


def _top_k(call: OpCall) -> Lowered:
    """The indices of the k largest (smallest) along `axis`, in order; a NaN is larger than every number.

    The rank of an element is the number of elements before it. The elements are cut into blocks of some k, and only the
    best k of each block go on. Where a block is ranked by counting, as on GPUs, that takes some 8 k n comparisons, and
    n log k where `retune.compiler.lower.rank` sorts it.
    """
    (x,) = call.types
    axis, k = call.require_axis(), call.integer("k")
    call.require(0 <= k <= x.shape[axis], f"there are no {k} elements along axis {axis}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])

    def build(source: Tensor) -> Tensor:
        # At each level every element is ranked in its block of 4 k, and a quarter goes on: a geometric series.
        largest, block = call.flag("largest"), max(_LEAST_BLOCK, 4 * k)
        left = _Candidates(source, None, axis)
        level = 0
        while left.count > 2 * block:
            name = f"{call.name}_{level}"
            kept = _best_of_blocks(left, block, k, largest, name)
            left, level = _Candidates(_values_at(source, kept, axis, largest, name), kept, axis), level + 1
        best = _best_of_blocks(left, left.count, k, largest, call.name)
        return te.compute(shape, lambda *i: best[(*i[:axis], te.const(0), *i[axis:])], name=call.name)

    return Lowered(shape, "int64", build)


_LEAST_BLOCK = 64


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Elements that may be among the best: their `values`, and their `indices` along `axis`, of which equal elements
    have the lower one first. An index of -1 stands for no element.
    Without `indices` the values are the source itself. With them both have two axes in place of `axis`: blocks, and
    the elements kept of a block.
    """

    values: Tensor
    indices: Tensor | None
    axis: int

    @property
    def count(self) -> int:
        """How many there are along the axis."""
        extents = self.values.shape[self.axis : self.axis + (1 if self.indices is None else 2)]
        return math.prod(extents)

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The extents of the axes before and after."""
        return self.values.shape[: self.axis], self.values.shape[self.axis + (1 if self.indices is None else 2) :]

    def at(self, before: Sequence[Expr], number: Expr, behind: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Value and index of a candidate."""
        if self.indices is None:
            return self.values[(*before, number, *behind)], te.cast("int64", number)
        size = self.indices.shape[self.axis + 1]
        point = (*before, number // size, number % size, *behind)
        return self.values[point], self.indices[point]


def _worst(dtype: str, largest: bool) -> Expr:
    """A value that comes after every different element."""
    if largest:
        return te.const(smallest(dtype), dtype)
    return te.const(math.nan if is_float(dtype) else largest_of(dtype), dtype)


def _best_of_blocks(left: _Candidates, block: int, k: int, largest: bool, name: str) -> Tensor:
    """The indices of the best k of every block, in order: the axis becomes two, blocks and k; -1 where a block has no
    more.
    """
    first, last = left.around
    axis, blocks = left.axis, -(-left.count // block)
    values, indices = _cut(left, blocks, block, largest, name)
    shape = (*first, blocks, block, *last)
    other, ranked = te.reduce_axis(block, "r"), te.reduce_axis(block, "q")

    def at_number(point: Sequence[Expr], number: Expr) -> tuple[Expr, ...]:
        return (*point[: axis + 1], number, *point[axis + 2 :])

    def rank(*i: Expr) -> Expr:
        low, high = values[i], values[at_number(i, other)]
        low, high = (low, high) if largest else (high, low)
        # The earlier of equal elements comes first, so all ranks differ.
        is_earlier = te.logical_and(other < i[axis + 1], te.logical_not(_exceeds(low, high)))
        return te.sum(te.cast("int32", te.logical_or(_exceeds(high, low), is_earlier)), other)

    ranks = te.compute(shape, rank, f"{name}_rank", {RANKS: axis + 1})

    def index(*i: Expr) -> Expr:
        point = at_number(i, ranked)
        # Exactly one element has the rank.
        return te.max(te.select(te.equal(ranks[point], i[axis + 1]), indices[point], nothing), ranked)

    nothing = te.const(smallest("int64"), "int64")
    return te.compute((*first, blocks, k, *last), index, f"{name}_best", {SCATTERS: True})


def _exceeds(x: Expr, y: Expr) -> Expr:
    """Whether `x` is larger; a NaN is larger than every number, and equal to another one."""
    # Negated, because a comparison with a NaN is false.
    return te.logical_and(te.logical_not(x <= y), te.logical_not(te.isnan(y)))


def _cut(left: _Candidates, blocks: int, block: int, largest: bool, name: str) -> tuple[Tensor, Tensor]:
    """Values and indices of the candidates in blocks, the last of which is filled up with what is no element."""
    first, last = left.around
    axis, count, shape = left.axis, left.count, (*first, blocks, block, *last)

    def cut(i: Sequence[Expr], part: int, otherwise: Expr) -> Expr:
        number = i[axis] * block + i[axis + 1]
        return te.if_then_else(number < count, left.at(i[:axis], number, i[axis + 2 :])[part], otherwise)

    worst, nothing = _worst(left.values.dtype, largest), te.const(-1, "int64")
    values = te.compute(shape, lambda *i: cut(i, 0, worst), name=f"{name}_cut")
    return values, te.compute(shape, lambda *i: cut(i, 1, nothing), name=f"{name}_cut_indices")


def _values_at(source: Tensor, indices: Tensor, axis: int, largest: bool, name: str) -> Tensor:
    """The elements at the indices; the worst value where there is none."""

    def body(*i: Expr) -> Expr:
        value = source[(*i[:axis], te.maximum(indices[i], 0), *i[axis + 2 :])]
        return te.if_then_else(indices[i] < 0, _worst(source.dtype, largest), value)

    return te.compute(indices.shape, body, name=f"{name}_values")


def _top_k_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    axis = call.integer("axis")
    if not call.flag("largest"):
        order = np.argsort(x, axis=axis, kind="stable")
    else:
        # Flipped before and after: descending, with the first of equal elements first.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.take(order, np.arange(call.integer("k")), axis=axis)


def _gather(call: OpCall) -> Lowered:
    """Slices of x along an axis, one for each index: the indices' dimensions take the place of the axis.

    Negative indices count from the end, those outside are clipped.
    """
    x, indices = call.types
    axis, rank = call.require_axis(), len(indices.shape)
    _require_indices(call)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    call.require(x.shape[axis] != 0 or 0 in shape, f"there are no elements along axis {axis}")

    def build(source: Tensor, where: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            index = inside(where[i[axis : axis + rank]], source.shape[axis])
            return source[(*i[:axis], index, *i[axis + rank :])]

        return te.compute(shape, body, name=call.name)

    return Lowered(shape, x.dtype, build)


def _gather_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, indices = arrays
    axis = call.integer("axis")
    return np.take(x, inside_array(indices, x.shape[axis]), axis=axis)


def _gather_elements(call: OpCall) -> Lowered:
    """For each index the element of x at the index along an axis, and at the index's own position along the others.

    The result has the indices' shape, which is larger than the operand's along the axis at most.
    """
    x, indices = call.types
    axis = call.require_axis()
    _require_indices(call)
    _require_smaller(call, indices.shape, axis)

    def build(source: Tensor, where: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            return source[(*i[:axis], inside(where[i], source.shape[axis]), *i[axis + 1 :])]

        return te.compute(indices.shape, body, name=call.name)

    return Lowered(indices.shape, x.dtype, build)


def _gather_elements_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, indices = arrays
    return np.asarray(x[_points(call, x, indices)])


def _points(call: OpCall, x: Array, indices: Array) -> tuple[Array, ...]:
    axis = call.integer("axis")
    points = [np.asarray(grid) for grid in np.indices(indices.shape)]
    points[axis] = inside_array(indices, x.shape[axis])
    return tuple(points)


def _gather_nd(call: OpCall) -> Lowered:
    """Slices of x, one for each row of indices into its dimensions after the first `batch_dims`."""
    x, indices = call.types
    batch = call.integer("batch_dims")
    _require_indices(call)
    fits = x.shape[:batch] == indices.shape[:batch] and batch < len(indices.shape)
    fits = fits and batch + indices.shape[-1] <= len(x.shape)
    call.require(fits, "the indices name more dimensions than there are, or the batches differ")
    rows, named = len(indices.shape) - 1, indices.shape[-1]
    shape = (*indices.shape[:-1], *x.shape[batch + named :])

    def build(source: Tensor, where: Tensor) -> Tensor:
        def body(*i: Expr) -> Expr:
            gathered = [inside(where[(*i[:rows], te.const(d))], source.shape[batch + d]) for d in range(named)]
            return source[(*i[:batch], *gathered, *i[rows:])]

        return te.compute(shape, body, name=call.name)

    return Lowered(shape, x.dtype, build)


def _rows(indices: Array, extents: Sequence[int]) -> list[Array]:
    return [inside_array(indices[..., dim], extent) for dim, extent in enumerate(extents)]


def _gather_nd_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, indices = arrays
    batch = call.integer("batch_dims")
    named = indices.shape[-1]
    own = [np.asarray(grid) for grid in np.indices(indices.shape[:-1])[:batch]]
    return np.asarray(x[(*own, *_rows(indices, x.shape[batch : batch + named]))])


def _scatter_elements(call: OpCall) -> Lowered:
    """x with updates joined to it at the indices along an axis; without a reduction the last update of an element wins.

    The indices have the updates' shape, or an extent of 1 along axes, except `axis`, whose updates share an index.
    """
    x, where, new = call.types
    axis = call.require_axis()
    _require_indices(call)
    _require_smaller(call, new.shape, axis)
    fits = len(where.shape) == len(new.shape) and all(
        same(index, extent) or (same(index, 1) and d != axis)
        for d, (index, extent) in enumerate(zip(where.shape, new.shape, strict=True))
    )
    fits = fits and new.dtype == x.dtype and call.text("reduction") in REDUCTIONS
    call.require(fits, f"needs an update for each index, and one of the reductions {REDUCTIONS}")
    shared = [d for d, extent in enumerate(where.shape) if not same(extent, new.shape[d])]
    reach = (*new.shape[:axis], x.shape[axis], *new.shape[axis + 1 :])

    def build(source: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        along = te.reduce_axis(indices.shape[axis], "r")

        def hit(i: Point) -> Expr:
            point = [te.const(0) if d in shared else i[d] for d in range(len(i))]
            point[axis] = along
            return te.equal(_from_front(indices[tuple(point)], source.shape[axis]), i[axis])

        def update(i: Point, row: Point) -> Expr:
            return updates[(*i[:axis], *row, *i[axis + 1 :])]

        return _Scatter(call, source, reach, shared, (along,), hit, update).build()

    return Lowered(x.shape, x.dtype, build)


def _scatter_elements_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, indices, updates = arrays
    return _joined_array(call, x, _points(call, x, np.broadcast_to(indices, updates.shape)), updates)


def _scatter_nd(call: OpCall) -> Lowered:
    """x with slices of updates joined to it, one for each row of indices into the first dimensions of x."""
    x, where, new = call.types
    _require_indices(call)
    named = where.shape[-1] if where.shape else len(x.shape) + 1
    fits = named <= len(x.shape) and new.shape == (*where.shape[:-1], *x.shape[named:]) and new.dtype == x.dtype
    call.require(fits, "needs a slice of the first operand's type for each row of indices")
    call.require(call.text("reduction") in REDUCTIONS, f"the reduction is none of {REDUCTIONS}")

    def build(source: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
        rows = [te.reduce_axis(extent, f"r{d}") for d, extent in enumerate(indices.shape[:-1])]

        def hit(i: Point) -> Expr:
            same = [te.equal(_from_front(indices[(*rows, te.const(d))], source.shape[d]), i[d]) for d in range(named)]
            return te.logical_and(*same)

        def update(i: Point, row: Point) -> Expr:
            return updates[(*row[: len(rows)], *i[named:])]

        shared = range(named, len(source.shape))
        axes = tuple(rows) or (te.reduce_axis(1, "r"),)
        return _Scatter(call, source, source.shape, shared, axes, hit, update).build()

    return Lowered(x.shape, x.dtype, build)


def _scatter_nd_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    x, indices, updates = arrays
    return _joined_array(call, x, tuple(_rows(indices, x.shape[: indices.shape[-1]])), updates)


def _joined_array(call: OpCall, x: Array, points: tuple[Array, ...], updates: Array) -> Array:
    result = x.copy()
    if call.text("reduction") == "none":
        result[points] = updates
    else:
        _JOIN[call.text("reduction")].at(result, points, updates)
    return result


@dataclass(frozen=True, slots=True)
class _Scatter:
    """A scatter into `source`, of which updates reach the elements below `reach`. Elements that differ along the axes
    `shared` alone get the same updates, numbered by the reduction `axes`: `hit` says of an element whether the update
    at the axes goes there, `update` is the update of an element with a number.
    """

    call: OpCall
    source: Tensor
    reach: Shape
    shared: Collection[int]
    axes: tuple[Axis, ...]
    hit: Callable[[Point], Expr]
    update: Callable[[Point, Point], Expr]

    def build(self) -> Tensor:
        """The source with its updates."""
        source, how = self.source, self.call.text("reduction")
        if how == "none":
            return self._last()
        reducer = {"add": te.sum, "mul": te.prod, "max": te.max, "min": te.min}[how]
        join: Callable[[Expr, Expr], Expr] = {"add": add, "mul": mul, "max": te.maximum, "min": te.minimum}[how]
        joined = self._reduce(source.shape, reducer, lambda i: self.update(i, self.axes))
        return te.compute(source.shape, lambda *i: join(source[i], joined[i]), name=self.call.name)

    def _last(self) -> Tensor:
        """Each element's last update, found by number: the maximum, in whatever order updates are visited."""
        count = math.prod(axis.extent for axis in self.axes)
        dtype = "int32" if isinstance(count, int) and count < 1 << 31 else "int64"
        number: Expr = te.const(0)
        for axis in self.axes:
            number = number * axis.extent + axis
        shape = tuple(1 if d in self.shared else extent for d, extent in enumerate(self.source.shape))
        numbers = self._reduce(shape, te.max, lambda _: te.cast(dtype, number))

        def body(*i: Expr) -> Expr:
            last = numbers[tuple(te.const(0) if d in self.shared else index for d, index in enumerate(i))]
            rest, row = te.maximum(te.cast("int64", last), 0), list[Expr]()
            for axis in reversed(self.axes):
                row.insert(0, rest % axis.extent if axis != self.axes[0] else rest)
                rest = rest // axis.extent
            near, update, old = self._is_near(i), self.update(i, tuple(row)), self.source[i]
            # Vectors read every element's own update; rows are read if they have one.
            if not self.shared and not near:
                return te.select(last >= 0, update, old)
            return te.if_then_else(te.logical_and(*near, last >= 0), update, old)

        return te.compute(self.source.shape, body, name=self.call.name)

    def _reduce(self, shape: Shape, reducer: Callable[..., Expr], value: Callable[[Point], Expr]) -> Tensor:
        """The values of the updates that go to each element, reduced."""

        def body(*i: Expr) -> Expr:
            near, hit, term = self._is_near(i), self.hit(i), value(i)
            # Lazily, since beyond the indices there is none to read.
            hit = te.if_then_else(te.logical_and(*near), hit, te.const(False)) if near else hit
            (neutral,) = cast(Reduce, reducer(term, self.axes)).identities
            return reducer(te.if_then_else(hit, term, te.const(neutral, term.dtype)), self.axes)

        return te.compute(shape, body, f"{self.call.name}_updates", {SCATTERS: True})

    def _is_near(self, i: Point) -> list[Expr]:
        """The tests that an element may have updates."""
        pairs = zip(self.reach, self.source.shape, strict=True)
        return [i[d] < extent for d, (extent, whole) in enumerate(pairs) if not same(extent, whole)]


_INJECTIVE, _OPAQUE = FusionKind.INJECTIVE, FusionKind.OPAQUE

OPERATORS = (
    _arg_reduction("arg_max", argmax, np.argmax),
    _arg_reduction("arg_min", argmin, np.argmin),
    Op("top_k", 1, _OPAQUE, _top_k, _top_k_array, {"axis": int, "k": int, "largest": bool}),
    Op("gather", 2, _INJECTIVE, _gather, _gather_array, {"axis": int}),
    Op("gather_elements", 2, _INJECTIVE, _gather_elements, _gather_elements_array, {"axis": int}),
    Op("gather_nd", 2, _INJECTIVE, _gather_nd, _gather_nd_array, {"batch_dims": int}),
    Op("scatter_elements", 3, _OPAQUE, _scatter_elements, _scatter_elements_array, {"axis": int, "reduction": str}),
    Op("scatter_nd", 3, _OPAQUE, _scatter_nd, _scatter_nd_array, {"reduction": str}),
)
