"""The operators of expressions: names, kinds, symbols, and constant folding.

Integer results wrap around as their type does.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from retune.compiler.core.dtype import item_bits

INDEX = "int64"
BOOL = "bool"


class BinaryOp(StrEnum):
    """The two-operand operators; `div` is true division, `floordiv` and `floormod` round towards minus infinity. Of a
    number and a NaN `min` and `max` are the NaN, `fmax` is the number.

    `bitand` … `shr` are for integers. A shift by the type's width or more, or by a negative number, shifts every bit
    out; to the right a signed number keeps its sign.
    """

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    FLOORDIV = "floordiv"
    FLOORMOD = "floormod"
    MIN = "min"
    MAX = "max"
    FMAX = "fmax"
    AND = "and"
    OR = "or"
    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    BIT_AND = "bitand"
    BIT_OR = "bitor"
    BIT_XOR = "bitxor"
    SHL = "shl"
    SHR = "shr"


COMPARISONS = frozenset({BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE})
LOGICAL = frozenset({BinaryOp.AND, BinaryOp.OR})
SHIFTS = frozenset({BinaryOp.SHL, BinaryOp.SHR})
BITWISE = SHIFTS | {BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR}
SYMBOLS = {
    BinaryOp.ADD: "+", BinaryOp.SUB: "-", BinaryOp.MUL: "*", BinaryOp.DIV: "/", BinaryOp.FLOORDIV: "//",
    BinaryOp.FLOORMOD: "%", BinaryOp.AND: "and", BinaryOp.OR: "or", BinaryOp.EQ: "==", BinaryOp.NE: "!=",
    BinaryOp.LT: "<", BinaryOp.LE: "<=", BinaryOp.BIT_AND: "&", BinaryOp.BIT_OR: "|", BinaryOp.BIT_XOR: "^",
    BinaryOp.SHL: "<<", BinaryOp.SHR: ">>",
}  # fmt: skip

FOLD: dict[BinaryOp, Callable[[Any, Any], Any]] = {
    BinaryOp.ADD: lambda a, b: a + b,
    BinaryOp.SUB: lambda a, b: a - b,
    BinaryOp.MUL: lambda a, b: a * b,
    BinaryOp.FLOORDIV: lambda a, b: a // b,
    BinaryOp.FLOORMOD: lambda a, b: a % b,
    BinaryOp.MIN: min,
    BinaryOp.MAX: max,
    BinaryOp.FMAX: max,
    BinaryOp.AND: lambda a, b: a and b,
    BinaryOp.OR: lambda a, b: a or b,
    BinaryOp.EQ: lambda a, b: a == b,
    BinaryOp.NE: lambda a, b: a != b,
    BinaryOp.LT: lambda a, b: a < b,
    BinaryOp.LE: lambda a, b: a <= b,
    BinaryOp.BIT_AND: lambda a, b: a & b,
    BinaryOp.BIT_OR: lambda a, b: a | b,
    BinaryOp.BIT_XOR: lambda a, b: a ^ b,
    # Python's integers are unbounded: a literal shift by a huge number would exhaust the memory.
    BinaryOp.SHL: lambda a, b: a << b if 0 <= b < 64 else 0,
    BinaryOp.SHR: lambda a, b: a >> (b if 0 <= b < 64 else 64),
}
BOOL_MEANING = {BinaryOp.BIT_AND: BinaryOp.AND, BinaryOp.BIT_OR: BinaryOp.OR, BinaryOp.BIT_XOR: BinaryOp.NE}
"""What the operators of bits mean on bools."""


def wrap_integer(value: int, dtype: str) -> int:
    """`value` wrapped to the integer type `dtype`: its lowest bits."""
    if dtype in (INDEX, BOOL) and abs(value) < 1 << 63:
        return value
    width = item_bits(dtype)
    low = value & ((1 << width) - 1)
    # Two's complement.
    return low - (1 << width) if not dtype.startswith("uint") and low >> (width - 1) else low
