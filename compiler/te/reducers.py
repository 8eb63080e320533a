"""Reductions over axes, each the whole body of a compute.

A reduction may be done in any order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

from retune.compiler.core.dtype import NARROW, arithmetic_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir import expr as ir
from retune.compiler.ir.expr import Const, Expr, Operand
from retune.compiler.te.compute import equal, isnan, logical_and, logical_not, logical_or, maximum, minimum
from retune.compiler.te.reduction import Axis, AxisKind, Combiner, Reduce, ReducedValue, as_body, largest, smallest

Axes = Axis | Sequence[Axis]


class Reduction(Protocol):
    """Reduces one value with a well-known operation."""

    def __call__(self, source: Operand, axis: Axes | Operand) -> Expr:
        """`source` reduced over `axis`, one or several reduce axes; or, as in TVM, combined with a value."""


Values = Operand | tuple[Operand, ...]
Join = Callable[..., Values]


def _reduction(combiner: str, combine: Callable[[Operand, Operand], Expr]) -> Reduction:
    def reduce(source: Operand, axis: Axes | Operand) -> Expr:
        if isinstance(axis, (Expr, float)) and not isinstance(axis, Axis):
            return combine(source, axis)
        return Reduce(combiner, _term(combiner, source), _reduce_axes(combiner, axis))

    reduce.__doc__ = (
        f"The {combiner} of `source` over `axis`, which is one reduce axis or several. With a value in place of "
        "the axis, as in TVM, that of these two."
    )
    return reduce


def _term(name: str, value: Operand) -> Expr:
    """A value to reduce. Raises: DefinitionError for a type that only stores numbers."""
    expr = ir.as_expr(value)
    if expr.dtype in NARROW:
        raise DefinitionError(f"{name} of {expr.dtype}: cast the terms to {arithmetic_type(expr.dtype)} or wider")
    return expr


def _reduce_axes(name: str, axis: object) -> tuple[Axis, ...]:
    if not isinstance(axis, (Axis, Sequence)):
        raise DefinitionError(f"{name}: {axis!r} is not a reduce axis; make it with reduce_axis")
    axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
    for item in axes:
        if not isinstance(item, Axis) or item.kind is not AxisKind.REDUCE:
            raise DefinitionError(f"{name}: {item} is not a reduce axis; make it with reduce_axis")
    return axes


@dataclass(frozen=True, slots=True)
class Reducer:
    """A custom reduction, see `comm_reducer`."""

    function: Join
    identity: Values | Join
    name: str

    @overload
    def __call__(self, source: Operand, axis: Axes) -> Expr: ...
    @overload
    def __call__(self, source: tuple[Operand, ...], axis: Axes) -> tuple[Expr, ...]: ...
    def __call__(self, source: Operand | tuple[Operand, ...], axis: Axes) -> Expr | tuple[Expr, ...]:
        """`source`, a value or a tuple of values, reduced over `axis`, one or several reduce axes.

        Raises: DefinitionError when joining two values gives another number of values, or other types.
        """
        together = isinstance(source, tuple)
        values = tuple(_term(self.name, value) for value in (source if isinstance(source, tuple) else (source,)))
        if not values:
            raise DefinitionError(f"{self.name}: there are no values to reduce")
        dtypes = tuple(value.dtype for value in values)
        marks = [str(index) if len(values) > 1 else "" for index in range(len(values))]
        lhs, rhs = (
            tuple(ir.Var(f"{side}{mark}", dtype) for mark, dtype in zip(marks, dtypes, strict=True)) for side in "xy"
        )
        try:
            joined = self.function(lhs, rhs) if together else self.function(lhs[0], rhs[0])
        except (TypeError, IndexError) as error:  # a function of tuples got one value, or tuples of another length
            source_text = f"a tuple of {len(values)} values" if together else "one value"
            raise DefinitionError(
                f"{self.name} cannot reduce {source_text}: {error}; argmax and argmin reduce (index, value)"
            ) from error
        results = self._cast(joined, dtypes, together)
        start = self.identity(*dtypes) if callable(self.identity) else self.identity
        identities = self._cast(start, dtypes, together)
        # A kernel starts from the identity before it has read anything, so it must be known.
        if not all(isinstance(identity, Const) for identity in identities):
            raise DefinitionError(f"{self.name}: the identity {as_body(identities)} must be literals")
        starts = tuple(identity for identity in identities if isinstance(identity, Const))
        reduction = Reduce(Combiner(lhs, rhs, results, starts), as_body(values), _reduce_axes(self.name, axis))
        return tuple(ReducedValue(reduction, index) for index in range(len(values))) if together else reduction

    def _cast(self, values: Any, dtypes: tuple[str, ...], together: bool) -> tuple[Expr, ...]:
        """The result of the function or the identity as expressions of the types `dtypes`."""
        items = tuple(values) if together and isinstance(values, (tuple, list)) else (values,)
        if len(items) != len(dtypes):
            raise DefinitionError(f"{self.name}: joining tuples of {len(dtypes)} values gives {len(items)}")
        results = []
        for index, (item, dtype) in enumerate(zip(items, dtypes, strict=True)):
            if isinstance(item, float) and not ir.is_float(dtype) and not item.is_integer():
                raise DefinitionError(f"{self.name}: {item} is no {dtype}")
            result = ir.as_expr(item, dtype)
            if result.dtype != dtype:
                suffix = f" number {index}" if len(dtypes) > 1 else ""
                raise DefinitionError(
                    f"{self.name}: joining two values{suffix} of {dtype} gives {result.dtype}; cast the result"
                )
            results.append(result)
        return tuple(results)


def comm_reducer(function: Join, identity: Values | Join, name: str = "reduce") -> Reducer:
    """A custom reduction: `function` joins two values, in any order; `identity`, a literal or a function of the type,
    leaves every value as it is.

    A reduction of tuples joins two tuples; its identity gets one type a value and returns as many values. It is used
    with a tuple, and the compute that returns it makes as many tensors:

            larger = comm_reducer(lambda x, y: (select(x[1] > y[1], x[0], y[0]), maximum(x[1], y[1])),
                                  lambda index, value: (largest(index), smallest(value)), "larger")
            places, values = compute((n,), lambda i: larger((k, data[i, k]), axis=k))
    """
    return Reducer(function, identity, name)


sum = _reduction("sum", lambda x, y: ir.as_expr(x) + y)
prod = _reduction("prod", lambda x, y: ir.as_expr(x) * y)
max = _reduction("max", maximum)
min = _reduction("min", minimum)


def _first(beats: Callable[[Expr, Expr], Expr]) -> Join:
    """Joins two (index, value): the value that `beats` the other; the lower index of equal values."""

    def join(x: tuple[Expr, Expr], y: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        # Associative and commutative, as a reduction may run in any order: NaNs win, ties go to the lower index.
        nan = logical_and(isnan(x[1]), logical_not(isnan(y[1])))
        both = logical_and(isnan(x[1]), isnan(y[1]))
        tie = logical_and(logical_or(equal(x[1], y[1]), both), x[0] < y[0])
        wins = logical_or(beats(x[1], y[1]), nan, tie)
        return ir.select(wins, x[0], y[0]), ir.select(wins, x[1], y[1])

    return join


# The index of the identity is the largest, so that an element that equals the extreme itself wins the tie.
argmax = comm_reducer(_first(lambda x, y: x > y), lambda index, value: (largest(index), smallest(value)), "argmax")
"""(index, value) of the largest value: the lowest index among equals. A NaN counts as larger than any number."""

argmin = comm_reducer(_first(lambda x, y: x < y), lambda index, value: (largest(index), largest(value)), "argmin")
"""(index, value) of the smallest value: the lowest index among equals. A NaN counts as smaller than any number."""
