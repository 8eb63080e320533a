"""Axes and reductions: the expressions of a compute's body that no other code has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from retune.compiler.ir.expr import BOOL, INDEX, BinaryOp, Const, Expr, Var, binary, is_float
from retune.compiler.ir.visit import promote, substitute


class AxisKind(IntEnum):
    """Whether an axis indexes the result or is summed over."""

    SPATIAL = 0
    REDUCE = 1


@dataclass(frozen=True, slots=True)
class Axis(Expr):
    """One loop axis of a compute, running over 0 .. extent-1."""

    name: str
    extent: int
    kind: AxisKind
    dtype: str = field(init=False, compare=False, default=INDEX)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Values(Expr):
    """Several values side by side: the body of a compute with several results, or the source of its reduction."""

    items: tuple[Expr, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.items[0].dtype)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


def values_of(expr: Expr) -> tuple[Expr, ...]:
    """The values side by side in `expr`: its items if it is a `Values`, else `expr` alone."""
    return expr.items if isinstance(expr, Values) else (expr,)


def as_body(values: Sequence[Expr]) -> Expr:
    """The values as one expression, the inverse of `values_of`."""
    return values[0] if len(values) == 1 else Values(tuple(values))


@dataclass(frozen=True, slots=True)
class Combiner:
    """How a custom reduction joins two values, or two tuples of values: `results` over the variables `lhs` and `rhs`,
    one of each for every value.

    It must be associative and commutative; `identities` leave all values as they are.
    """

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    results: tuple[Expr, ...]
    identities: tuple[Const, ...]

    def __str__(self) -> str:
        return f"reduce<{as_body(self.results)}, {as_body(self.identities)}>"


_COMBINE = {"sum": BinaryOp.ADD, "prod": BinaryOp.MUL, "fmax": BinaryOp.FMAX, "max": BinaryOp.MAX, "min": BinaryOp.MIN}


def smallest(dtype: str) -> float:
    """The least value of a type, the identity of `max`."""
    if is_float(dtype) or dtype == BOOL:
        return -np.inf if is_float(dtype) else False
    return int(np.iinfo(dtype).min)


def largest(dtype: str) -> float:
    """The greatest value of a type, the identity of `min`."""
    if is_float(dtype) or dtype == BOOL:
        return np.inf if is_float(dtype) else True
    return int(np.iinfo(dtype).max)


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """`combiner` (sum, prod, max, min, fmax or custom) over `axes` of `source`; only allowed as the whole body of a
    compute. A combiner of several values reduces a `Values` of as many. A sum or product of floats may be rounded to
    another `dtype` once it is complete.
    """

    combiner: str | Combiner
    source: Expr
    axes: tuple[Axis, ...]
    dtype: str = ""

    def __post_init__(self) -> None:
        if not self.dtype:
            object.__setattr__(self, "dtype", self.source.dtype)

    @property
    def identities(self) -> tuple[float, ...]:
        """The numbers that the combiner leaves unchanged, one a value."""
        if isinstance(self.combiner, Combiner):
            return tuple(identity.value for identity in self.combiner.identities)
        if self.combiner in ("sum", "prod"):
            return (0 if self.combiner == "sum" else 1,)
        # The identity of a maximum is the least value, so an empty reduction has a defined result.
        return (largest(self.dtype) if self.combiner == "min" else smallest(self.dtype),)

    def join(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> tuple[Expr, ...]:
        """Two values, or tuples of values, joined."""
        if not isinstance(self.combiner, Combiner):
            return (binary(_COMBINE[self.combiner], lhs[0], rhs[0]),)
        operands: dict[Expr, Expr] = dict(zip(self.combiner.lhs, lhs, strict=True))
        operands.update(zip(self.combiner.rhs, rhs, strict=True))
        joined = tuple(substitute(result, operands) for result in self.combiner.results)
        # Where 16-bit floats are held in float32, the other operands become float32 too.
        return (
            joined if all(var.dtype == value.dtype for var, value in operands.items()) else tuple(map(promote, joined))
        )

    def __str__(self) -> str:
        text = f"{self.combiner}({self.source}, axis=[{', '.join(map(str, self.axes))}])"
        return text if self.dtype == self.source.dtype else f"{self.dtype}({text})"


@dataclass(frozen=True, slots=True)
class ReducedValue(Expr):
    """Value number `index` of a reduction of several; a compute takes all of them together, in order."""

    reduction: Reduce
    index: int
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", values_of(self.reduction.source)[self.index].dtype)

    def __str__(self) -> str:
        return f"{self.reduction}.v{self.index}"
