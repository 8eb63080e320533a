"""What an operator is: attributes, checks, lowering to tensor expressions and NumPy meaning, as one `Op`.

A call's `lower` function checks operands and attributes and returns a `Lowered`: shape, dtype, and a function that
builds the tensor. Describing a graph runs the checks alone; only code generation builds tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import Protocol

import numpy as np

from retune.compiler import te
from retune.compiler.core.dtype import Array as Array
from retune.compiler.core.dtype import sum_type
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.attributes import Attribute as Attribute
from retune.compiler.ir.attributes import Attributed as Attributed
from retune.compiler.ir.attributes import Shape as Shape
from retune.compiler.ir.dims import Dim, same
from retune.compiler.ir.expr import Const, Expr, as_expr
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import Tensor

Operand = Tensor | Const


class FusionKind(Enum):
    """How an operator may share a kernel with its neighbors."""

    ELEMENTWISE = "elementwise"  # result element i reads operand element i, and tables
    BROADCAST = "broadcast"  # as above, after broadcasting
    INJECTIVE = "injective"  # each result element reads one operand element
    REDUCTION = "reduction"  # each result element reads many
    COMPLEX = "complex"  # worth tiling; takes element-wise followers into its kernel
    OPAQUE = "opaque"  # several stages; its own kernel


POINTWISE = (FusionKind.ELEMENTWISE, FusionKind.BROADCAST)
"""Kinds whose result element i reads element i of every operand, after broadcasting; and tables."""


class Typed(Protocol):
    """Anything with a shape and a dtype: a value of a graph, a tensor."""

    @property
    def shape(self) -> Shape:
        """The extents."""

    @property
    def dtype(self) -> str:
        """The NumPy name of the element type."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """A shape and a dtype."""

    shape: Shape
    dtype: str


@dataclass(slots=True)  # not frozen, which takes thrice the time: each node that is checked has a call
class OpCall(Attributed):
    """One use of an operator."""

    op: str
    """The operator's name."""
    types: tuple[Typed, ...]
    """Of the operands."""
    attrs: Mapping[str, Attribute]
    name: str = ""
    """For messages and computes."""
    constants: frozenset[Tensor] = frozenset()
    """The operands known before the network runs, so that a kernel may ask for them in a layout of its own."""
    out_dtype: str = ""
    """The dtype in which products are summed, where it is not the operands'."""

    def require(self, fits: bool, why: str) -> None:
        """Raise a DefinitionError that shows the operands and says `why`, unless they fit."""
        if not fits:
            raise self.misfit(why)

    def require_axis(self) -> int:
        """The attribute `axis`, which must be within the rank of the first operand."""
        axis = self.integer("axis")
        self.require(0 <= axis < len(self.types[0].shape), f"axis {axis} is outside the rank")
        return axis

    def require_axes(self) -> tuple[int, ...]:
        """The attribute `axes`, which must be ascending and within the rank of the first operand."""
        axes, rank = self.ints("axes"), len(self.types[0].shape)
        fits = bool(axes) and all(0 <= axis < rank for axis in axes) and tuple(sorted(set(axes))) == axes
        self.require(fits, f"axes {axes} must be ascending and within the rank")
        return axes

    def misfit(self, why: str) -> DefinitionError:
        """The error of a call whose operands do not fit: what it is, what it got and why that is wrong."""
        return DefinitionError(f"{self}: {why}")

    def layout_free(self, weight: Tensor) -> dict[str, object]:
        """Compute attributes that let the kernel choose the layout of `weight`, if its value is known beforehand."""
        return {"layout_free_placeholders": (weight,)} if weight in self.constants else {}

    def __str__(self) -> str:
        label = f"{self.op} {self.name!r}" if self.name else self.op
        return f"{label} of ({'; '.join(map(_describe, self.types))})"


def _describe(operand: Typed) -> str:
    name = getattr(operand, "name", "")
    inner = f"{operand.dtype}[{', '.join(map(str, operand.shape))}]"
    return f"{name}: {inner}" if name else inner


@dataclass(slots=True)
class Lowered:
    """What a call gives: a tensor of `shape` and `dtype`, which `build` writes over the operands' tensors.

    `build` runs only when code is generated: describing a network of many nodes stays cheap, and values without
    elements, which no tensor expression has, still have a description.
    """

    shape: Shape
    dtype: str
    build: Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Op:
    """An operator with one result."""

    name: str
    operands: int | None
    """How many it takes; None: one or more."""
    kind: FusionKind
    lower: Callable[[OpCall], Lowered]
    """Checks a call and describes its result; its docstring says what the operator computes."""
    evaluate: Callable[[OpCall, Sequence[Array]], Array]
    """Computes the result with NumPy, in any dtype: the caller casts to the dtype that `lower` says."""
    attrs: Mapping[str, type] = field(default_factory=dict)
    """The type of each attribute; a call has all of them."""
    reads: int = 1
    """How often the expression of a pointwise operator reads an operand: bounds the size of fused expressions."""
    commutative: bool = False

    def check(self, call: OpCall) -> Lowered:
        """`lower` for a call from outside. Raises: DefinitionError when operands or attributes do not fit."""
        if len(call.types) != self.operands and not (self.operands is None and call.types):
            raise call.misfit(f"takes {self.operands} operands")
        if call.attrs.keys() != self.attrs.keys():
            raise call.misfit(f"attributes must be {sorted(self.attrs)}, not {sorted(call.attrs)}")
        for key, kind in self.attrs.items():
            if not _is_a(call.attrs[key], kind):
                raise call.misfit(f"attribute {key} must be a {kind.__name__}, not {call.attrs[key]!r}")
        return self.lower(call)

    def tensor(
        self,
        operands: Sequence[Operand],
        attrs: Mapping[str, Attribute] | None = None,
        *,
        name: str = "",
        constants: frozenset[Tensor] = frozenset(),
        types: Sequence[Typed] = (),
        out_dtype: str = "",
    ) -> Tensor:
        """The tensor that computes this operator of `operands`, its compute called `name`.

        Operators that broadcast take literals too. `types` describes the operands where literals stand for arrays of
        another rank than 0. Raises: DefinitionError when operands or attributes do not fit.
        """
        operand_types = tuple(types) or tuple(
            operand if isinstance(operand, Tensor) else TensorType((), operand.dtype) for operand in operands
        )
        call = OpCall(self.name, operand_types, attrs or {}, name or self.name, constants, out_dtype)
        lowered = self.check(call)
        literal = next((operand for operand in operands if not isinstance(operand, Tensor)), None)
        if literal is not None and self.kind is not FusionKind.BROADCAST:
            raise call.misfit(f"takes tensors, not the literal {literal}")
        try:
            tensor = lowered.build(*operands)
        except DefinitionError as error:
            raise call.misfit(str(error)) from error
        # Kernels are compiled from the tensor and memory is planned from the description: they must agree.
        if tensor.dtype != lowered.dtype:
            raise call.misfit(f"is computed in {tensor.dtype}, not {lowered.dtype}; cast the operands to a float first")
        return tensor

    def compute(self, call: OpCall, arrays: Sequence[Array]) -> Array:
        """The result by NumPy, in the dtype of the description. Raises: DefinitionError when operands do not fit."""
        dtype = self.check(call).dtype
        with np.errstate(all="ignore"):
            result = np.asarray(self.evaluate(call, arrays))
            # Reshaped, since `ascontiguousarray` gives rank 0 a dimension.
            return np.ascontiguousarray(result.astype(dtype, copy=False)).reshape(result.shape)


def _is_a(value: Attribute, kind: type) -> bool:
    if kind is tuple:
        return isinstance(value, tuple) and all(isinstance(item, int | Dim) for item in value)
    # `type` and not `isinstance`: a bool is no int here.
    return type(value) is kind or (kind is int and isinstance(value, Dim))


def broadcast_shapes(first: Shape, second: Shape) -> Shape | None:
    """The shape that both shapes broadcast to by NumPy's rule, or None when there is none."""
    extents: list[int] = []
    for a, b in zip_longest(reversed(first), reversed(second), fillvalue=1):
        # A literal first, then what is equal: neither needs a guard about 1.
        if same(a, 1) or same(b, 1):
            extents.append(b if same(a, 1) else a)
        elif a == b or b == 1:
            extents.append(a)
        elif a == 1:
            extents.append(b)
        else:
            return None
    return tuple(reversed(extents))


def element(operand: Operand, indices: tuple[Expr, ...], shape: Shape) -> Expr:
    """The element of `operand` that belongs to element `indices` of a result of `shape`, by NumPy broadcasting."""
    if not isinstance(operand, Tensor):
        return operand
    skipped = len(shape) - len(operand.shape)
    own = zip(indices[skipped:], shape[skipped:], operand.shape, strict=True)
    return operand[tuple(index if same(extent, wanted) or not same(extent, 1) else 0 for index, wanted, extent in own)]


def summed_product(dtype: str, lhs: Expr, rhs: Expr, axes: Sequence[Axis]) -> Expr:
    """The sum of `lhs * rhs` over `axes` as `dtype`. Halves are multiplied and summed in float32: the product of two of
    them is exact there, and may exceed their own range though the sum does not.
    """
    wide = sum_type(dtype)
    term = te.cast(wide, lhs) * te.cast(wide, rhs)
    return te.cast(dtype, te.sum(term, axes) if axes else term)


def reciprocal(count: int, dtype: str) -> Expr | float:
    """1 / count, of `dtype` where the count is symbolic."""
    return 1.0 / (te.cast(dtype, as_expr(count)) if isinstance(count, Dim) else count)


def widen(array: Array) -> Array:
    """The array, in float32 if it holds halves."""
    return array.astype(sum_type(array.dtype.name), copy=False)
