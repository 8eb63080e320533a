"""Expressions: immutable trees over numbers, variables and reads.

`==` is structural equality, nodes never change, and constants fold.

The grammar (all nodes carry `dtype`, a NumPy type name):

    Expr = Const(value, dtype)
         | Var(name, dtype)                       a loop variable or let-bound name
         | Binary(op, lhs, rhs)                   add sub mul div floordiv floormod min max, and or, eq ne lt le,
                                                  bitand bitor bitxor shl shr
         | Not(value)
         | Select(condition, then, otherwise)     lazy: the side not taken is not evaluated
         | Cast(dtype, value)
         | Call(name, args, dtype)                a math intrinsic that `numeric` knows
         | Load(buffer, indices)                  loop IR only; tensor expressions read tensors instead
         | Dot(dtype, var, width, lhs, rhs)       loop IR only: the sum of lhs * rhs over a few values of var
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Union

import numpy as np

from retune.compiler.core.dtype import NARROW, arithmetic_type, finite_limit, item_bytes, number_type, promoted_type
from retune.compiler.core.dtype import is_float as is_float
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.operators import BITWISE, BOOL_MEANING, FOLD, SHIFTS, SYMBOLS, wrap_integer
from retune.compiler.ir.operators import BOOL as BOOL
from retune.compiler.ir.operators import COMPARISONS as COMPARISONS
from retune.compiler.ir.operators import INDEX as INDEX
from retune.compiler.ir.operators import LOGICAL as LOGICAL
from retune.compiler.ir.operators import BinaryOp as BinaryOp

_NOT_OF_BOOLS = frozenset({BinaryOp.SUB, BinaryOp.DIV, BinaryOp.FLOORDIV, BinaryOp.FLOORMOD})

TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
"""Functions of a circle's or a hyperbola's angle, in radians, and their inverses."""
LIBRARY_UNARY = (*TRIGONOMETRIC, "exp2", "expm1", "log2", "log10", "log1p")
LIBRARY_BINARY = ("atan2", "copysign", "fmod", "hypot")
"""Functions of one or two floats that the C library and NVIDIA's libdevice compute, by their C names."""

Operand = Union["Expr", int, float, bool]


_Operator = Callable[["Expr", Operand], "Expr"]


def _operator(op: BinaryOp) -> tuple[_Operator, _Operator]:
    """The methods of a Python operator, for an expression on its left side and on its right side."""

    def of_left(self: "Expr", other: Operand) -> "Expr":
        return binary(op, self, other)

    def of_right(self: "Expr", other: Operand) -> "Expr":
        return binary(op, other, self)

    return of_left, of_right


class Expr:
    """Base of all expression nodes; it only carries the operators, which build new nodes."""

    __slots__ = ()

    dtype: str

    __add__, __radd__ = _operator(BinaryOp.ADD)
    __sub__, __rsub__ = _operator(BinaryOp.SUB)
    __mul__, __rmul__ = _operator(BinaryOp.MUL)
    __truediv__, __rtruediv__ = _operator(BinaryOp.DIV)
    __floordiv__, __rfloordiv__ = _operator(BinaryOp.FLOORDIV)
    __mod__, __rmod__ = _operator(BinaryOp.FLOORMOD)
    __lshift__, __rlshift__ = _operator(BinaryOp.SHL)
    __rshift__, __rrshift__ = _operator(BinaryOp.SHR)
    __and__, __rand__ = _operator(BinaryOp.BIT_AND)
    __or__, __ror__ = _operator(BinaryOp.BIT_OR)
    __xor__, __rxor__ = _operator(BinaryOp.BIT_XOR)
    __lt__, __gt__ = _operator(BinaryOp.LT)
    __le__, __ge__ = _operator(BinaryOp.LE)

    def __neg__(self) -> "Expr":
        # A difference from 0 would make +0 of a zero.
        return self * -1.0 if is_float(self.dtype) else binary(BinaryOp.SUB, 0, self)

    def astype(self, dtype: str) -> "Expr":
        """The value as `dtype`. Raises: DefinitionError for an unknown type."""
        try:
            return cast(number_type(dtype), self)
        except ValueError as error:
            raise DefinitionError(f"{self}.astype: {error}") from None

    def __invert__(self) -> "Expr":
        if self.dtype == BOOL:
            return Not(self)
        return binary(BinaryOp.BIT_XOR, self, const(wrap_integer(-1, self.dtype), self.dtype))

    def __bool__(self) -> bool:
        raise DefinitionError(
            f"the expression {self} has no truth value in Python; use if_then_else, logical_and or logical_or"
        )


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal number."""

    value: int | float | bool
    dtype: str

    def __str__(self) -> str:
        return str(self.value) if self.dtype in (INDEX, "float32", BOOL) else f"{self.dtype}({self.value})"


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A name bound by a loop or a let."""

    name: str
    dtype: str = INDEX

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`lhs op rhs`; operands of arithmetic have the result's type."""

    op: BinaryOp
    lhs: Expr
    rhs: Expr
    # Derived from the operands: comparing it too would cost time and decide nothing.
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        boolean = self.op in COMPARISONS or self.op in LOGICAL
        object.__setattr__(self, "dtype", BOOL if boolean else self.lhs.dtype)

    def __str__(self) -> str:
        symbol = SYMBOLS.get(self.op)
        return f"({self.lhs} {symbol} {self.rhs})" if symbol else f"{self.op}({self.lhs}, {self.rhs})"


@dataclass(frozen=True, slots=True)
class Not(Expr):
    """Logical negation."""

    value: Expr
    dtype: str = field(init=False, compare=False, default=BOOL)

    def __str__(self) -> str:
        return f"(not {self.value})"


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`then` where `condition` holds, else `otherwise`; reads of the side not taken do not happen."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.then.dtype)

    def __str__(self) -> str:
        return f"select({self.condition}, {self.then}, {self.otherwise})"


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """`value` converted to `dtype`."""

    dtype: str
    value: Expr

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A math intrinsic applied to its arguments."""

    name: str
    args: tuple[Expr, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Dot(Expr):
    """The sum of `lhs * rhs` over `var` in 0 .. width-1, which only `lhs` and `rhs` may use; each factor is cast to
    `dtype`.

    Integer sums wrap around. Products of floats are exact; the machine decides how their sum is rounded.
    """

    dtype: str
    var: Var
    width: int
    lhs: Expr
    rhs: Expr

    def __str__(self) -> str:
        return f"dot({self.var} in {self.width}: {self.lhs} * {self.rhs})"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major array of the loop IR; `scope` is "global" (an argument), "workspace", "local" (a thread's
    stack), "shared" (of the threads of a GPU block) or "register".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: str = "global"

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * item_bytes(self.dtype)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    dtype: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype)

    def __str__(self) -> str:
        return f"{self.buffer}[{', '.join(map(str, self.indices))}]"


def const(value: float | bool, dtype: str | None = None) -> Const:
    """A literal; without a `dtype` an int is an index, a float is float32, a bool is bool."""
    if dtype is None:
        dtype = BOOL if isinstance(value, bool) else INDEX if isinstance(value, int) else "float32"
    if dtype == BOOL and value in (0, 1):
        return Const(bool(value), BOOL)
    if dtype == BOOL:
        raise DefinitionError(f"{value} is no bool; cast the condition beside it to a number, or compare the number")
    if is_float(dtype):
        # Rounded here: a narrow literal is read in a wider type.
        return Const(float(np.asarray(value, dtype)) if dtype in NARROW else float(value), dtype)
    least, most = (finite_limit(dtype, is_least=is_least) for is_least in (True, False))
    if not least <= value <= most:
        raise DefinitionError(f"{value} is no {dtype}: that type holds {least} to {most}")
    return Const(int(value), dtype)


def as_expr(value: Operand, dtype: str | None = None) -> Expr:
    """`value` as an expression; a Python number takes `dtype`, if any. Raises: DefinitionError for other
    values.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, float, np.generic)):
        return const(value.item() if isinstance(value, np.generic) else value, dtype)
    if isinstance(value, Dim):
        return cast(dtype or INDEX, dim_expr(value))
    raise DefinitionError(f"{value!r} is neither an expression nor a number")


def dim_expr(value: int) -> Expr:
    """A dimension as an index: each symbol is the variable of its name."""
    return _symbolic_expr(value) if isinstance(value, Dim) else const(value)


@lru_cache(1 << 12)
def _symbolic_expr(value: Dim) -> Expr:
    total: Expr = const(0)
    for monomial, factor in value.terms.items():
        product: Expr = const(factor)
        for atom in monomial:
            if isinstance(atom, str):
                product = product * Var(atom)
            else:
                op = BinaryOp.FLOORDIV if atom.op == "//" else BinaryOp.FLOORMOD
                product = product * binary(op, dim_expr(atom.numerator), dim_expr(atom.denominator))
        total = total + product
    return total


def promote(lhs: Operand, rhs: Operand) -> tuple[Expr, Expr]:
    """Both operands in the same type: a Python number adapts to the other side, expressions follow NumPy's rules."""
    if isinstance(lhs, Expr) and not isinstance(rhs, Expr):
        # A Python number is weak, as in NumPy 2 (NEP 50); a float with an integer makes both float32.
        wants_float = isinstance(rhs, float) and not is_float(lhs.dtype)
        return (Cast("float32", lhs), as_expr(rhs)) if wants_float else (lhs, as_expr(rhs, lhs.dtype))
    if isinstance(rhs, Expr) and not isinstance(lhs, Expr):
        right, left = promote(rhs, lhs)
        return left, right
    left, right = as_expr(lhs), as_expr(rhs)
    if left.dtype == right.dtype:
        return left, right
    common = promoted_type(left.dtype, right.dtype)
    return cast(common, left), cast(common, right)


def binary(op: BinaryOp, lhs: Operand, rhs: Operand) -> Expr:
    """`lhs op rhs` with operands of the same type and integer constants folded. Narrow types are computed in a wider
    type and rounded.

    Raises: DefinitionError for a division by a literal zero, and for bit operations on floats.
    """
    left, right = promote(lhs, rhs)
    if left.dtype in NARROW:
        wide = binary(op, widen(left), widen(right))
        return wide if wide.dtype == BOOL else cast(left.dtype, wide)
    if op in BITWISE and (is_float(left.dtype) or (left.dtype == BOOL and op in SHIFTS)):
        raise DefinitionError(f"{left} {op} {right}: {left.dtype} has no bits to work on; cast to an integer")
    if left.dtype == BOOL:
        op = BOOL_MEANING.get(op, op)
        if op in _NOT_OF_BOOLS:
            raise DefinitionError(f"{left} {SYMBOLS[op]} {right}: bools have no such operator; cast to an integer")
    if isinstance(left, Const) and isinstance(right, Const) and not is_float(left.dtype) and op in FOLD:
        if op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD) and right.value == 0:
            raise DefinitionError(f"division by zero in {left} {op} {right}")
        boolean = op in COMPARISONS or op in LOGICAL or left.dtype == BOOL
        value = FOLD[op](left.value, right.value)
        return const(bool(value), BOOL) if boolean else const(wrap_integer(value, left.dtype), left.dtype)
    # Of integers only: in floats x + 0 loses the sign of -0.0, and x * 0 may be a NaN.
    if not is_float(left.dtype):
        neutral = _without_neutral(op, left, right)
        if neutral is not None:
            return neutral
    return Binary(op, left, right)


def _without_neutral(op: BinaryOp, left: Expr, right: Expr) -> Expr | None:
    """The simpler form of an integer operation with 0 or 1, or of a logical operation with a literal."""
    lhs = left.value if isinstance(left, Const) else None
    rhs = right.value if isinstance(right, Const) else None
    match op:
        case BinaryOp.ADD:
            return right if lhs == 0 else left if rhs == 0 else None
        case BinaryOp.SUB:
            return left if rhs == 0 else None
        case BinaryOp.MUL:
            if lhs == 0 or rhs == 0:
                return const(0, left.dtype)
            return right if lhs == 1 else left if rhs == 1 else None
        case BinaryOp.FLOORDIV:
            return left if rhs == 1 else None
        case BinaryOp.SHL | BinaryOp.SHR:
            return left if rhs == 0 else None
        case BinaryOp.BIT_OR | BinaryOp.BIT_XOR:
            return right if lhs == 0 else left if rhs == 0 else None
        case BinaryOp.FLOORMOD:
            return const(0, left.dtype) if rhs == 1 else None
        case BinaryOp.AND:
            if lhs is False or rhs is False:
                return const(False)
            return right if lhs is True else left if rhs is True else None
        case BinaryOp.OR:
            if lhs is True or rhs is True:
                return const(True)
            return right if lhs is False else left if rhs is False else None
    return None


def cast(dtype: str, value: Operand) -> Expr:
    """`value` as `dtype`, without a node if it has that type. Integer literals wrap, Python numbers must fit."""
    expr = as_expr(value)
    if expr.dtype == dtype:
        return expr
    if not isinstance(expr, Const):
        return Cast(dtype, expr)
    if dtype == BOOL:
        return const(expr.value != 0)
    whole = expr is value and not is_float(dtype) and not is_float(expr.dtype)
    return const(wrap_integer(int(expr.value), dtype) if whole else expr.value, dtype)


def widen(value: Expr) -> Expr:
    """`value` in the type that computes operations on its type, for most types their own."""
    return cast(arithmetic_type(value.dtype), value)


def select(condition: Expr, then: Operand, otherwise: Operand) -> Expr:
    """A lazy choice; a literal condition chooses at once."""
    left, right = promote(then, otherwise)
    if isinstance(condition, Const):
        return left if condition.value else right
    return Select(condition, left, right)
