"""In: shapes and index expressions. Out: tensors and the operations that make them.

Always: tensors and operations compare by identity, expressions by value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np

from compiler.errors import DefinitionError
from compiler.ir.expr import BOOL, INDEX, BinaryOp, Const, Expr, Operand, Var, as_expr, binary, is_float
from compiler.ir.visit import substitute


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
class TensorRead(Expr):
    """One element of a tensor."""

    tensor: "Tensor"
    indices: tuple[Expr, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.indices))}]"


@dataclass(frozen=True, slots=True)
class Combiner:
    """How a reduction of one's own joins two values: `result` over the variables `lhs` and `rhs`.

    It must be associative and commutative; `identity` leaves every value as it is.
    """

    lhs: Var
    rhs: Var
    result: Expr
    identity: Const

    def __str__(self) -> str:
        return f"reduce<{self.result}, {self.identity}>"


_COMBINE = {"sum": BinaryOp.ADD, "prod": BinaryOp.MUL, "max": BinaryOp.MAX, "min": BinaryOp.MIN}


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """`combiner` (sum, prod, max, min or one's own) over `axes` of `source`; only allowed as the whole body of a
    compute.
    """

    combiner: str | Combiner
    source: Expr
    axes: tuple[Axis, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.source.dtype)

    @property
    def identity(self) -> float:
        """The value that the combiner leaves unchanged."""
        if isinstance(self.combiner, Combiner):
            return self.combiner.identity.value
        if self.combiner in ("sum", "prod"):
            return 0 if self.combiner == "sum" else 1
        low, high = (-np.inf, np.inf) if is_float(self.dtype) else (0, 1)
        if not is_float(self.dtype) and self.dtype != BOOL:
            info = np.iinfo(self.dtype)
            low, high = int(info.min), int(info.max)
        return low if self.combiner == "max" else high

    def combine(self, lhs: Expr, rhs: Expr) -> Expr:
        """Two values joined."""
        if isinstance(self.combiner, Combiner):
            return substitute(self.combiner.result, {self.combiner.lhs: lhs, self.combiner.rhs: rhs})
        return binary(_COMBINE[self.combiner], lhs, rhs)

    def __str__(self) -> str:
        return f"{self.combiner}({self.source}, axis=[{', '.join(map(str, self.axes))}])"


@dataclass(frozen=True, eq=False, slots=True)
class PlaceholderOp:
    """An input. `index_checked` is False while operators read it in a layout that it no longer has."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    index_checked: bool = True

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Inputs have no attributes."""
        return {}


@dataclass(frozen=True, eq=False, slots=True)
class ComputeOp:
    """`body` for every point of `axes`; a reduction runs over `reduce_axes` too."""

    name: str
    axes: tuple[Axis, ...]
    body: Expr
    attrs: Mapping[str, Any]

    @property
    def reduce_axes(self) -> tuple[Axis, ...]:
        """The axes summed over, empty for an elementwise body."""
        return self.body.axes if isinstance(self.body, Reduce) else ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the spatial axes."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def dtype(self) -> str:
        """Element type of the result."""
        return self.body.dtype


Operation = PlaceholderOp | ComputeOp


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """The result of an operation: indexing it with as many expressions as it has dimensions reads one element."""

    op: Operation

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.op.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, in elements."""
        return self.op.shape

    @property
    def dtype(self) -> str:
        """Element type, a NumPy type name."""
        return self.op.dtype

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Expr:
        if not isinstance(indices, tuple):
            indices = (indices,)
        if len(indices) != len(self.shape) and getattr(self.op, "index_checked", True):
            raise DefinitionError(
                f"{self.name} has {len(self.shape)} dimensions but is read with {len(indices)} indices"
            )
        return TensorRead(self, tuple(self._place(index) for index in indices))

    def __iter__(self) -> NoReturn:
        raise DefinitionError(f"{self.name} cannot be iterated over; read it at the axes of a compute")

    def _place(self, value: Operand) -> Expr:
        index = as_expr(value, INDEX) if isinstance(value, int) else as_expr(value)
        if is_float(index.dtype) or index.dtype == BOOL:
            raise DefinitionError(f"{self.name} is read at {index}, which is {index.dtype}; cast it to an integer")
        return index

    def __repr__(self) -> str:
        return f"Tensor({self.name}, shape={self.shape}, dtype={self.dtype})"
