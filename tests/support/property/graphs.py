"""Random compute graphs, with a bound on the rounding error of every output.

They cover every element type and extents such as 1, 3, 7 and 17; each stage reads any earlier ones. Discontinuous
operations (rounding, comparing, casting to integers) are applied to exact values only. For the others `Value.error`
bounds the effect of rounding in another order, fused or not: the tolerance follows from the graph, not from experience.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import sum_type
from retune.compiler.ir.expr import Expr, is_float
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.tensor import ComputeOp, Tensor
from tests.support.property.draws import Source

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

MOST_ELEMENTS = 1200
MOST_POINTS = 12000
LARGEST = 60.0
"""Floats stay below this, so that sums and products do not leave the range of float16."""

LARGEST_ERROR = 0.05
"""A stage that may be further off is not made: a tolerance that wide would prove nothing."""

Index = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor, the largest magnitude of its elements if they are floats, and the bound on a kernel's error."""

    tensor: Tensor
    bound: float = 1.0
    error: float = 0.0

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def exact(self) -> bool:
        return self.error == 0.0

    @property
    def floating(self) -> bool:
        return is_float(self.dtype)

    @property
    def integer(self) -> bool:
        return self.dtype in INTEGERS


@dataclass(frozen=True, slots=True)
class RandomGraph:
    """A graph and, for each of its outputs in order, the largest difference that rounding explains."""

    dag: ComputeDAG
    tolerances: tuple[float, ...]


class _Growing:
    """A graph under construction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.inputs: list[Tensor] = []
        self.values: list[Value] = []
        self.count = 0

    def pick(self, high: int) -> int:
        return int(self.source.integers(high))

    def chance(self, probability: float) -> bool:
        return bool(self.source.random() < probability)

    def one_of(self, options: tuple[str, ...]) -> str:
        return options[self.pick(len(options))]

    def extent(self) -> int:
        return EXTENTS[self.pick(len(EXTENTS))]

    def shape(self, rank: int) -> tuple[int, ...]:
        """A random shape of not too many elements."""
        shape: list[int] = []
        for _ in range(rank):
            extent = self.extent()
            shape.append(extent if np.prod([*shape, extent]) <= MOST_ELEMENTS else 1)
        return tuple(shape)

    def input(self, shape: tuple[int, ...], dtype: str) -> Value:
        tensor = te.placeholder(shape, dtype, f"x{len(self.inputs)}")
        self.inputs.append(tensor)
        return Value(tensor)

    def compute(
        self,
        shape: tuple[int, ...],
        body: Callable[..., Expr],
        bound: float = 1.0,
        error: float = 0.0,
        free: Value | None = None,
    ) -> Value:
        """A new stage; one that rounds adds that to `error`. `free` is an input whose layout may be chosen."""
        self.count += 1
        attrs = {"layout_free_placeholders": (free.tensor,)} if free is not None else None
        return Value(te.compute(shape, body, f"t{self.count}", attrs), bound, error)

    def again(self, value: Value, shape: tuple[int, ...], body: Callable[..., Expr]) -> Value:
        """A stage that only moves the elements of `value`."""
        return self.compute(shape, body, value.bound, value.error)

    def mapped(self, value: Value, body: Callable[[Expr], Expr], bound: float = 1.0, error: float = 0.0) -> Value:
        """A stage that treats every element alike."""
        return self.compute(value.shape, lambda *i: body(value.tensor[i]), bound, error)


Rule = Callable[[_Growing, Value], Value | None]
"""Makes another stage that reads a value; None where it does not apply."""


def _float_map(graph: _Growing, x: Value) -> Value | None:
    if not x.floating:
        return None
    unit, b, e = EPSILON[x.dtype], x.bound, x.error
    match graph.pick(12):
        case 0:
            return graph.mapped(x, lambda v: te.maximum(v, 0.0), b, e)
        case 1:
            return graph.mapped(x, te.abs, b, e)
        case 2:
            return graph.mapped(x, lambda v: v * 0.75 + 0.25, b + 1, e + 2 * unit * (b + 1))
        case 3:
            return graph.mapped(x, te.tanh, 1.0, e + 8 * unit)
        case 4:
            return graph.mapped(x, te.sigmoid, 1.0, e + 8 * unit)
        case 5:
            return graph.mapped(x, lambda v: te.exp(te.minimum(v, 1.0)), 2.72, 2.72 * (e + 8 * unit))
        case 6:
            return graph.mapped(x, lambda v: te.sqrt(te.abs(v) + 1.0), b + 1, e + 4 * unit * (b + 1))
        case 7:
            return graph.mapped(x, lambda v: te.log(te.abs(v) + 1.0), b + 1, e + 8 * unit * (b + 1))
        case 8:
            return graph.mapped(x, lambda v: te.rsqrt(te.abs(v) + 1.0), 1.0, e + 8 * unit)
        case 9:
            return graph.mapped(x, te.erf, 1.0, 1.13 * e + 8 * unit)
        case 10 if x.exact:
            return graph.mapped(x, (te.floor, te.ceil, te.round)[graph.pick(3)], b + 1)
        case 11 if x.exact:
            return graph.mapped(x, lambda v: te.if_then_else(v < 0.25, v, 0.5), b + 1)
    return None


def _integer_map(graph: _Growing, x: Value) -> Value | None:
    if not x.integer:
        return None
    bodies: tuple[Callable[[Expr], Expr], ...] = (
        lambda v: v + 3,
        lambda v: v * 5,
        lambda v: v - 7,
        lambda v: v ^ 21,
        lambda v: v & 13,
        lambda v: v | 9,
        lambda v: v << 2,
        lambda v: v >> 1,
        lambda v: v // 3,
        lambda v: v % 7,
        lambda v: te.maximum(te.minimum(v, 50), 2),
        lambda v: te.if_then_else(v < 5, v, 9),
        te.abs,
    )
    return graph.mapped(x, bodies[graph.pick(len(bodies))])


def _bool_map(graph: _Growing, x: Value) -> Value | None:
    return graph.mapped(x, te.logical_not) if x.dtype == "bool" else None


def _cast(graph: _Growing, x: Value) -> Value | None:
    to = graph.one_of((*FLOATS, *INTEGERS, "bool"))
    if to == x.dtype:
        return None
    if x.floating:
        if is_float(to):
            return graph.mapped(x, lambda v: te.cast(to, v), x.bound, x.error + EPSILON[to] * x.bound)
        if not x.exact or to in ("bool", "uint8"):
            return None
        return graph.mapped(x, lambda v: te.cast(to, v * 8.0) if x.bound < 8 else te.cast(to, v))
    if is_float(to) and x.integer:
        return graph.mapped(x, lambda v: te.cast(to, v % 16), 16.0)
    return graph.mapped(x, lambda v: te.cast(to, v))


def _partner(graph: _Growing, x: Value) -> tuple[Value, Callable[[Index], Index]]:
    """Something of the type of `x` to join it with, and how it is read at a point of `x`: of the same shape, or
    without some dimensions.
    """
    same = [value for value in graph.values if value.shape == x.shape and value.dtype == x.dtype]
    if graph.chance(0.6):
        return same[graph.pick(len(same))], lambda i: i
    kept = tuple(place for place in range(len(x.shape)) if graph.chance(0.6))
    return graph.input(tuple(x.shape[place] for place in kept), x.dtype), lambda i: tuple(i[p] for p in kept)


def _join(graph: _Growing, x: Value) -> Value | None:
    y, place = _partner(graph, x)

    def joined(body: Callable[[Expr, Expr], Expr], bound: float = 1.0, error: float = 0.0) -> Value:
        return graph.compute(x.shape, lambda *i: body(x.tensor[i], y.tensor[place(i)]), bound, error)

    if x.dtype == "bool":
        operations: tuple[Callable[[Expr, Expr], Expr], ...] = (te.logical_and, te.logical_or, te.not_equal)
        return joined(operations[graph.pick(3)])
    if x.integer:
        return joined(_INTEGER_JOINS[graph.pick(len(_INTEGER_JOINS))])
    unit, b, e = EPSILON[x.dtype], x.bound + y.bound, x.error + y.error
    match graph.pick(7):
        case 0:
            return joined(lambda v, w: v + w, b, e + unit * b)
        case 1:
            return joined(lambda v, w: v - w, b, e + unit * b)
        case 2:
            crossed = x.error * y.bound + y.error * x.bound + x.error * y.error
            return joined(lambda v, w: v * w, x.bound * y.bound, crossed + unit * x.bound * y.bound)
        case 3:
            return joined(te.maximum if graph.chance(0.5) else te.minimum, max(x.bound, y.bound), e)
        case 4:
            quotient = x.error + y.error * x.bound + 4 * unit * x.bound
            return joined(lambda v, w: v / (te.abs(w) + 1.0), x.bound, quotient)
        case 5 if x.exact and y.exact:
            return joined(lambda v, w: v < w)
        case 6 if x.exact and y.exact:
            return joined(lambda v, w: te.if_then_else(te.logical_or(v <= w, te.equal(v, 0.5)), w, v), b)
    return None


_INTEGER_JOINS: tuple[Callable[[Expr, Expr], Expr], ...] = (
    lambda v, w: v + w,
    lambda v, w: v - w,
    lambda v, w: v * w,
    lambda v, w: v ^ w,
    lambda v, w: v & w,
    lambda v, w: v | w,
    lambda v, w: v << (w & 3),
    lambda v, w: v >> (w & 3),
    lambda v, w: v // ((w & 7) + 1),
    lambda v, w: v % ((w & 7) + 1),
    te.maximum,
    te.minimum,
    lambda v, w: v < w,
    lambda v, w: te.equal(v, w),
    lambda v, w: te.if_then_else(v < w, w - v, v),
)


def _choose(graph: _Growing, x: Value) -> Value | None:
    """One of two tensors by a third of bools."""
    tests = [value for value in graph.values if value.dtype == "bool" and value.shape == x.shape]
    if not tests or x.dtype == "bool":
        return None
    test, (y, place) = tests[graph.pick(len(tests))], _partner(graph, x)
    return graph.compute(
        x.shape,
        lambda *i: te.if_then_else(test.tensor[i], x.tensor[i], y.tensor[place(i)]),
        max(x.bound, y.bound),
        max(x.error, y.error),
    )


def _move(graph: _Growing, x: Value) -> Value | None:
    """Transpose, turn round, stride, slice, repeat, take a diagonal, flatten, fold."""
    rank = len(x.shape)
    if rank == 0:
        return graph.again(x, (graph.extent(),), lambda *_: x.tensor[()])
    place, kind = graph.pick(rank), graph.pick(8)
    extent = x.shape[place]

    def at(new: int, index: Callable[[Expr], Expr]) -> Value:
        shape = (*x.shape[:place], new, *x.shape[place + 1 :])
        return graph.again(x, shape, lambda *i: x.tensor[(*i[:place], index(i[place]), *i[place + 1 :])])

    match kind:
        case 0:
            order = [int(place) for place in graph.source.permutation(rank)]
            back = [order.index(place) for place in range(rank)]
            return graph.again(x, tuple(x.shape[p] for p in order), lambda *i: x.tensor[tuple(i[p] for p in back)])
        case 1:
            return at(extent, lambda i: extent - 1 - i)
        case 2:
            step = 2 + graph.pick(2)
            return at((extent + step - 1) // step, lambda i: i * step)
        case 3:
            start = graph.pick(extent)
            return at(extent - start, lambda i: i + start)
        case 4:
            return at(extent + graph.pick(4), lambda i: i % extent)
        case 5 if rank > 1 and x.shape[0] == x.shape[1]:
            return graph.again(x, x.shape[1:], lambda *i: x.tensor[(i[0], *i)])
        case 6 if rank > 1:
            inner = x.shape[1]
            merged = (x.shape[0] * inner, *x.shape[2:])
            return graph.again(x, merged, lambda *i: x.tensor[(i[0] // inner, i[0] % inner, *i[1:])])
        case 7:
            low = next((part for part in (4, 3, 2, 7) if extent % part == 0), 1)
            parts = (*x.shape[:place], extent // low, low, *x.shape[place + 1 :])

            def whole(*i: Expr) -> Expr:
                return x.tensor[(*i[:place], i[place] * low + i[place + 1], *i[place + 2 :])]

            return graph.again(x, parts, whole) if rank < 4 else None
    return None


def _pad(graph: _Growing, x: Value) -> Value | None:
    if not x.shape:
        return None
    place, before, after = graph.pick(len(x.shape)), graph.pick(3), graph.pick(3)
    extent = x.shape[place]

    def body(*i: Expr) -> Expr:
        inside = te.logical_and(i[place] >= before, i[place] < extent + before)
        return te.if_then_else(inside, x.tensor[(*i[:place], i[place] - before, *i[place + 1 :])], 0)

    return graph.again(x, (*x.shape[:place], extent + before + after, *x.shape[place + 1 :]), body)


def _concatenate(graph: _Growing, x: Value) -> Value | None:
    if not x.shape:
        return None
    same = [value for value in graph.values if value.shape[1:] == x.shape[1:] and value.dtype == x.dtype]
    y = same[graph.pick(len(same))]
    if not y.shape:
        return None
    first = x.shape[0]

    def body(*i: Expr) -> Expr:
        return te.if_then_else(i[0] < first, x.tensor[i], y.tensor[(i[0] - first, *i[1:])])

    return graph.compute((first + y.shape[0], *x.shape[1:]), body, max(x.bound, y.bound), max(x.error, y.error))


def _gather(graph: _Growing, x: Value) -> Value | None:
    """Rows picked by an input of integers."""
    if not x.shape:
        return None
    picks, rows = graph.input((graph.extent(),), graph.one_of(INTEGERS)), x.shape[0]

    def body(*i: Expr) -> Expr:
        return x.tensor[(te.cast("int64", picks.tensor[i[0]]) % rows, *i[1:])]

    return graph.again(x, (picks.shape[0], *x.shape[1:]), body)


def _summed(x: Value, terms: int, bound: float, error: float) -> tuple[float, float]:
    """Bound and error of a sum of `terms` values, in any order; two bytes are rounded in the end alone."""
    if not x.floating:
        return 1.0, 0.0
    return terms * bound, terms * (error + EPSILON[sum_type(x.dtype)] * terms * bound + EPSILON[x.dtype] * bound)


def _reduce(graph: _Growing, x: Value) -> Value | None:
    """The sum, product, maximum or minimum along some dimensions."""
    gone = [place for place in range(len(x.shape)) if graph.chance(0.5)] or [len(x.shape) - 1]
    if not x.shape:
        return None
    axes = {place: te.reduce_axis(x.shape[place], f"r{place}") for place in gone}
    kept = [place for place in range(len(x.shape)) if place not in axes]
    terms = int(np.prod([x.shape[place] for place in gone]))

    def read(i: Index) -> Expr:
        return x.tensor[tuple(axes[p] if p in axes else i[kept.index(p)] for p in range(len(x.shape)))]

    shape, loops = tuple(x.shape[place] for place in kept), list(axes.values())
    kind = graph.pick(4)
    if kind == 0 and x.dtype != "bool":
        return graph.compute(shape, lambda *i: te.sum(read(i), loops), *_summed(x, terms, x.bound, x.error))
    if kind == 1 and x.integer:
        return graph.compute(shape, lambda *i: te.prod(read(i), loops))
    largest = te.max if kind == 2 else te.min
    return graph.compute(shape, lambda *i: largest(read(i), loops), x.bound, x.error)


def _window(graph: _Growing, x: Value) -> Value | None:
    """A sliding sum or maximum along the first dimension, with stride, dilation and weights."""
    if not x.shape or x.dtype == "bool":
        return None
    stride, dilation, width = 1 + graph.pick(2), 1 + graph.pick(2), 1 + graph.pick(4)
    length = (x.shape[0] - (width - 1) * dilation - 1) // stride + 1
    if length < 1:
        return None
    k = te.reduce_axis(width, "k")

    def read(i: Index) -> Expr:
        return x.tensor[(i[0] * stride + k * dilation, *i[1:])]

    shape = (length, *x.shape[1:])
    if graph.chance(0.4):
        return graph.compute(shape, lambda *i: te.max(read(i), k), x.bound, x.error)
    weight = graph.input((width, *x.shape[1:]), x.dtype)
    error = x.error + (EPSILON[x.dtype] * x.bound if x.floating else 0.0)
    limits = _summed(x, width, x.bound, error)
    return graph.compute(shape, lambda *i: te.sum(read(i) * weight.tensor[(k, *i[1:])], k), *limits, free=weight)


def _multiply(graph: _Growing, x: Value) -> Value | None:
    """A product with a matrix, either way round; narrow types may be summed in a wider one."""
    if not x.shape or x.dtype == "bool":
        return None
    depth, columns, turned = x.shape[-1], graph.extent(), graph.chance(0.5)
    weight = graph.input((columns, depth) if turned else (depth, columns), x.dtype)
    wide = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}.get(x.dtype, x.dtype)
    wide = wide if graph.chance(0.7) else x.dtype
    k = te.reduce_axis(depth, "k")

    def body(*i: Expr) -> Expr:
        factor = weight.tensor[i[-1], k] if turned else weight.tensor[k, i[-1]]
        return te.sum(te.cast(wide, x.tensor[(*i[:-1], k)]) * te.cast(wide, factor), k)

    bound, error = 1.0, 0.0
    if x.floating:
        bound = depth * x.bound
        error = depth * (x.error + 2 * EPSILON[wide] * x.bound + EPSILON[sum_type(wide)] * bound)
    free = weight if graph.chance(0.6) else None
    return graph.compute((*x.shape[:-1], columns), body, bound, error, free)


RULES: tuple[Rule, ...] = (
    _float_map, _float_map, _integer_map, _bool_map, _cast, _join, _join, _join, _choose, _move, _move, _move, _pad,
    _concatenate, _gather, _reduce, _reduce, _window, _multiply, _multiply,
)  # fmt: skip


def _calm(graph: _Growing, value: Value) -> Value:
    """The value, or its hyperbolic tangent where floats have grown large."""
    if not value.floating or value.bound <= LARGEST:
        return value
    graph.values.append(value)
    return graph.mapped(value, te.tanh, 1.0, value.error + 8 * EPSILON[value.dtype])


def _points(tensor: Tensor) -> int:
    assert isinstance(tensor.op, ComputeOp)
    return int(np.prod([axis.extent for axis in (*tensor.op.axes, *tensor.op.reduce_axes)], dtype=np.int64))


def _fits(value: Value) -> bool:
    """Whether a stage is quick to check and still says something: not too many points, not too far off."""
    small = _points(value.tensor) <= MOST_POINTS and np.prod(value.shape) <= MOST_ELEMENTS
    return bool(small) and value.error <= LARGEST_ERROR


def random_graph(source: Source) -> RandomGraph:
    """A graph of one to six stages."""
    graph = _Growing(source)
    dtype = graph.one_of((*FLOATS, *FLOATS, *INTEGERS, "bool"))
    graph.values.append(graph.input(graph.shape(graph.pick(5)), dtype))
    wanted = 1 + graph.pick(6)
    for _ in range(4 * wanted):
        if graph.count >= wanted:
            break
        far = graph.pick(len(graph.values)) if graph.chance(0.3) else len(graph.values) - 1
        made = RULES[graph.pick(len(RULES))](graph, graph.values[far])
        if made is not None and _fits(made):
            graph.values.append(_calm(graph, made))
    if not any(isinstance(value.tensor.op, ComputeOp) for value in graph.values):
        first = graph.values[0]
        graph.values.append(graph.again(first, first.shape, lambda *i: first.tensor[i]))
    return _finished(graph)


def _finished(graph: _Growing) -> RandomGraph:
    tensors = [value.tensor for value in graph.values if isinstance(value.tensor.op, ComputeOp)]
    dag = ComputeDAG([*graph.inputs, *tensors])
    errors = {id(value.tensor): value.error for value in graph.values}
    return RandomGraph(dag, tuple(2.0 * errors[id(tensor)] for tensor in dag.outputs))


def random_products(source: Source) -> RandomGraph:
    """Two to four matrix products of odd sizes, one stage that reads all of them, and up to two stages more."""
    graph = _Growing(source)
    dtype = graph.one_of(FLOATS)
    wide = "float32" if dtype in ("float16", "bfloat16") and graph.chance(0.7) else dtype
    rows, columns, products = graph.extent(), graph.extent(), list[Value]()
    left = graph.input((rows, graph.extent()), dtype)
    for number in range(2 + graph.pick(3)):
        if graph.chance(0.4):
            left = graph.input((rows, graph.extent()), dtype)
        depth, turned = left.shape[1], graph.chance(0.3)
        right = graph.input((columns, depth) if turned else (depth, columns), dtype)
        products.append(_product(graph, left, right, wide, turned, f"r{number}"))
    graph.values += products
    unit, bound, error = EPSILON[wide], sum(x.bound for x in products), sum(x.error for x in products)
    kind = graph.pick(3)

    def tail(*i: Expr) -> Expr:
        first, *others = (cast("Expr", x.tensor[i]) for x in products)
        for number, other in enumerate(others):
            first = (first + other, first - other, te.maximum(first, other))[(kind + number) % 3]
        return first * te.sigmoid(products[0].tensor[i]) if kind == 2 else first

    error += (len(products) + 8) * unit * bound + (products[0].error * bound / 4 if kind == 2 else 0.0)
    graph.values.append(_calm(graph, graph.compute((rows, columns), tail, bound, error)))
    for _ in range(graph.pick(3)):
        made = RULES[graph.pick(len(RULES))](graph, graph.values[-1])
        if made is not None and _fits(made):
            graph.values.append(_calm(graph, made))
    return _finished(graph)


def _product(graph: _Growing, left: Value, right: Value, wide: str, turned: bool, name: str) -> Value:
    depth, k = left.shape[1], te.reduce_axis(left.shape[1], name)

    def body(i: Expr, j: Expr) -> Expr:
        factor = right.tensor[j, k] if turned else right.tensor[k, j]
        return te.sum(te.cast(wide, left.tensor[i, k]) * te.cast(wide, factor), k)

    shape = (left.shape[0], right.shape[0 if turned else 1])
    return graph.compute(shape, body, depth, depth * EPSILON[wide] * (1 + depth))


def full_inputs(dag: ComputeDAG, seed: int) -> dict[Tensor, np.ndarray]:
    """Values for the inputs: floats between -1 and 1, any integers, bools."""
    rng = np.random.default_rng(seed)
    values: dict[Tensor, np.ndarray] = {}
    for tensor in dag.inputs:
        if is_float(tensor.dtype):
            values[tensor] = rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
        elif tensor.dtype == "bool":
            values[tensor] = rng.integers(0, 2, tensor.shape).astype("bool")
        else:
            limits = np.iinfo(tensor.dtype)
            values[tensor] = rng.integers(limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True)
    return values
