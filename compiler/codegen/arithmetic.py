"""Instruction selection of one operator on scalars or vectors.

Integers wrap around. Integer division never traps: division by zero gives 0, as in NumPy, and `//` rounds toward minus
infinity. A NaN operand of a maximum or minimum propagates. A shift by the width of the type or more shifts out all
bits. A bfloat16 operation is computed in float32 and rounded once.
"""

from retune.compiler.codegen.conversions import cast
from retune.compiler.codegen.nvidia import libdevice
from retune.compiler.codegen.types import is_float, is_unsigned, item_bytes, literal, llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import VectorBuilder
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.ir.operators import BITWISE, COMPARISONS, LOGICAL, SHIFTS, BinaryOp

_LONG = 64
"""Bits of the longest integers."""


def arithmetic(
    emit: Emit, op: BinaryOp, lhs: Value, rhs: Value, library: bool = True, is_number: bool = False
) -> Value:
    """`lhs op rhs` of equal type and lanes; without a C `library` `libdevice` has `%`. `is_number`: `rhs` is no NaN."""
    # float32's 24 bits are at least 2 x 8 + 2: rounding a bfloat16 operation twice equals rounding it once.
    if lhs.dtype == BFLOAT16 or (lhs.dtype == "float16" and op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)):
        wide = arithmetic(emit, op, cast(emit, lhs, "float32"), cast(emit, rhs, "float32"), library)
        return wide if op in COMPARISONS else cast(emit, wide, lhs.dtype)
    kind = f"{llvm_type(lhs.dtype, lhs.lanes)} {lhs.text}, {rhs.text}"
    # NumPy's `+` and `*` of bools are or and and; LLVM's add on i1 would wrap 1 + 1 to 0.
    if lhs.dtype == "bool" and op in (BinaryOp.ADD, BinaryOp.MUL):
        return emit(f"{'or' if op is BinaryOp.ADD else 'and'} {kind}", lhs.lanes, "bool")
    if op in LOGICAL:
        return emit(f"{op.value} {kind}", lhs.lanes, "bool")
    if op in COMPARISONS:
        return emit(f"{_compare(op, lhs.dtype)} {kind}", lhs.lanes, "bool")
    if op in (BinaryOp.MIN, BinaryOp.MAX, BinaryOp.FMAX):
        return extreme(emit, op, lhs, rhs, is_number)
    if op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
        return floor_division(emit, op, lhs, rhs, library)
    if op in SHIFTS:
        return shift(emit, op, lhs, rhs)
    if op in BITWISE:
        return emit(f"{op.value.removeprefix('bit')} {kind}", lhs.lanes, lhs.dtype)
    name = {BinaryOp.ADD: "add", BinaryOp.SUB: "sub", BinaryOp.MUL: "mul"}.get(op)
    if is_float(lhs.dtype):
        return emit(f"f{name or 'div'} {kind}", lhs.lanes, lhs.dtype)
    return emit(f"{name} {kind}", lhs.lanes, lhs.dtype) if name else _divide(emit, lhs, rhs)[0]


def extreme(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value, is_number: bool = False) -> Value:
    """The larger or smaller value; a NaN on either side stays, as in NumPy's maximum and minimum, but FMAX drops a NaN
    on the right, where none is if `is_number`. Of two zeros it is either.
    """
    if is_float(lhs.dtype):
        # A literal is no NaN: on the right it needs no test.
        if _literal(lhs) and not is_number:
            lhs, rhs = rhs, lhs
        if op is not BinaryOp.FMAX and not is_number and not _literal(rhs):
            name = "maximum" if op is BinaryOp.MAX else "minimum"
            return VectorBuilder(emit, lhs.lanes, lhs.dtype).call(name, lhs, rhs, flags="nsz ")
        # The only order of operands and sides that is a single instruction on x86; others take two.
        chosen = emit(f"fcmp o{'lt' if op is BinaryOp.MIN else 'gt'} {rhs.typed}, {lhs.text}", lhs.lanes, "bool")
        return emit(f"select {chosen.typed}, {rhs.typed}, {lhs.typed}", lhs.lanes, lhs.dtype)
    # A bool is an i1, whose true would be -1 in a signed comparison.
    sign = "u" if is_unsigned(lhs.dtype) or lhs.dtype == "bool" else "s"
    chosen = emit(f"icmp {sign}{'lt' if op is BinaryOp.MIN else 'gt'} {lhs.typed}, {rhs.text}", lhs.lanes, "bool")
    return emit(f"select {chosen.typed}, {lhs.typed}, {rhs.typed}", lhs.lanes, lhs.dtype)


def _literal(value: Value) -> bool:
    """Whether the value is a number of the program text, which is no NaN."""
    return not value.text.startswith("%")


def shift(emit: Emit, op: BinaryOp, value: Value, amount: Value) -> Value:
    """`value` shifted by any amount; LLVM's own shifts are undefined for negative or too large amounts."""
    dtype, lanes = value.dtype, value.lanes
    width = item_bytes(dtype) * 8
    # Unsigned: a negative amount counts as a huge amount, so one comparison tests both ends.
    inside = emit(f"icmp ult {amount.typed}, {literal(width, dtype, lanes)}", lanes, "bool")
    most = Value(literal(width - 1, dtype, lanes), lanes, dtype)
    # An arithmetic shift by too much leaves the sign in all bits, like a shift by the width minus 1.
    if op is BinaryOp.SHR and not is_unsigned(dtype):
        amount = emit(f"select {inside.typed}, {amount.typed}, {most.typed}", lanes, dtype)
        return emit(f"ashr {value.typed}, {amount.text}", lanes, dtype)
    if width == _LONG:
        # For a GPU LLVM leaves the choice below to the instruction, which looks only at 32 bits of the amount.
        amount = emit(f"and {amount.typed}, {most.text}", lanes, dtype)
    shifted = emit(f"{'shl' if op is BinaryOp.SHL else 'lshr'} {value.typed}, {amount.text}", lanes, dtype)
    nothing = Value(literal(0, dtype, lanes), lanes, dtype)
    return emit(f"select {inside.typed}, {shifted.typed}, {nothing.typed}", lanes, dtype)


def floor_division(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value, library: bool = True) -> Value:
    """Quotient or remainder rounded towards minus infinity."""
    dtype, lanes = lhs.dtype, lhs.lanes
    if is_float(dtype):
        return _float_division(emit, op, lhs, rhs, library)
    # LLVM truncates towards zero as C does; where the signs differ the results move to the floor below.
    quotient, remainder = _divide(emit, lhs, rhs)
    if is_unsigned(dtype):
        return quotient if op is BinaryOp.FLOORDIV else remainder
    zero = literal(0, dtype, lanes)
    nonzero = emit(f"icmp ne {remainder.typed}, {zero}", lanes, "bool")
    # The sign bit of the xor is set where remainder and divisor have different signs; only there truncation and floor
    # differ.
    mixed = emit(f"xor {remainder.typed}, {rhs.text}", lanes, dtype)
    opposite = emit(f"icmp slt {mixed.typed}, {zero}", lanes, "bool")
    adjust = emit(f"and {nonzero.typed}, {opposite.text}", lanes, "bool")
    if op is BinaryOp.FLOORDIV:
        less = emit(f"sub {quotient.typed}, {literal(1, dtype, lanes)}", lanes, dtype)
        return emit(f"select {adjust.typed}, {less.typed}, {quotient.typed}", lanes, dtype)
    more = emit(f"add {remainder.typed}, {rhs.text}", lanes, dtype)
    return emit(f"select {adjust.typed}, {more.typed}, {remainder.typed}", lanes, dtype)


def _float_division(emit: Emit, op: BinaryOp, lhs: Value, rhs: Value, library: bool) -> Value:
    """Floor of the exact quotient, which rounding may exceed, or the exact remainder with the divisor's sign."""
    write = VectorBuilder(emit, lhs.lanes, lhs.dtype)
    zero, unit = write.number(0.0), write.number(1.0)
    remainder = write.binary("frem", lhs, rhs) if library else libdevice.call(emit, libdevice.REMAINDER, (lhs, rhs))
    # frem has the sign of the dividend, as C's fmod; the floor's remainder has the divisor's.
    nonzero = write.test("une", remainder, zero)
    opposite = write.binary("xor", write.test("olt", remainder, zero), write.test("olt", rhs, zero))
    below = write.both(nonzero, opposite)
    if op is BinaryOp.FLOORMOD:
        # A remainder of zero takes the divisor's sign, as in Python and NumPy.
        return write.choose(
            nonzero, write.choose(below, write.add(remainder, rhs), remainder), write.with_sign(zero, rhs)
        )
    quotient = write.div(lhs, rhs)
    # As in NumPy's npy_divmod: lhs - remainder is a multiple of rhs, so the quotient is near an integer and rounding
    # cannot lift it past that.
    near = write.div(write.sub(lhs, remainder), rhs)
    near = write.choose(below, write.sub(near, unit), near)
    floor = write.call("floor", near)
    # The division may round just below the exact integer.
    floor = write.choose(write.test("ogt", write.sub(near, floor), write.number(0.5)), write.add(floor, unit), floor)
    signed_floor = write.choose(write.test("une", near, zero), floor, write.with_sign(zero, quotient))
    # Division by zero keeps IEEE 754's infinity or NaN, as NumPy's floor_divide does.
    return write.choose(write.test("oeq", rhs, zero), quotient, signed_floor)


def _divide(emit: Emit, lhs: Value, rhs: Value) -> tuple[Value, Value]:
    """Quotient, rounded towards zero, and remainder; by zero both are 0, and the least number by -1 wraps around."""
    dtype, lanes = lhs.dtype, lhs.lanes
    sign = "u" if is_unsigned(dtype) else "s"
    # LLVM turns division by a literal into multiplications and shifts; the tests below would be dead code.
    if _is_harmless(rhs):
        operands = f"{llvm_type(dtype, lanes)} {lhs.text}, {rhs.text}"
        return emit(f"{sign}div {operands}", lanes, dtype), emit(f"{sign}rem {operands}", lanes, dtype)
    zero, unit = Value(literal(0, dtype, lanes), lanes, dtype), Value(literal(1, dtype, lanes), lanes, dtype)
    by_zero = emit(f"icmp eq {rhs.typed}, {zero.text}", lanes, "bool")
    odd = by_zero
    if sign == "s":
        by_minus_one = emit(f"icmp eq {rhs.typed}, {literal(-1, dtype, lanes)}", lanes, "bool")
        odd = emit(f"or {by_zero.typed}, {by_minus_one.text}", lanes, "bool")
    # LLVM leaves x / 0 and the least number / -1 undefined, and x86 traps: such lanes divide by 1 and are replaced
    # afterwards.
    safe = emit(f"select {odd.typed}, {unit.typed}, {rhs.typed}", lanes, dtype)
    quotient = emit(f"{sign}div {lhs.typed}, {safe.text}", lanes, dtype)
    remainder = emit(f"{sign}rem {lhs.typed}, {safe.text}", lanes, dtype)
    # The replaced divisor 1 leaves the remainder 0, which is right for 0 and for -1: only quotients are replaced.
    if sign == "s":
        negated = emit(f"sub {zero.typed}, {lhs.text}", lanes, dtype)
        quotient = emit(f"select {by_minus_one.typed}, {negated.typed}, {quotient.typed}", lanes, dtype)
    return emit(f"select {by_zero.typed}, {zero.typed}, {quotient.typed}", lanes, dtype), remainder


def _is_harmless(divisor: Value) -> bool:
    """Whether the divisor is a literal other than 0 and -1."""
    text = divisor.text.removeprefix("splat (").removesuffix(")").split()[-1]
    return text.lstrip("-").isdigit() and text not in ("0", "-1")


def _compare(op: BinaryOp, dtype: str) -> str:
    names = {BinaryOp.EQ: "eq", BinaryOp.NE: "ne", BinaryOp.LT: "lt", BinaryOp.LE: "le"}
    name = names[op]
    if is_float(dtype):
        # Unordered only for `!=`: a NaN differs from everything and is less than nothing (IEEE 754).
        return f"fcmp {'u' if op is BinaryOp.NE else 'o'}{name}"
    if op in (BinaryOp.EQ, BinaryOp.NE):
        return f"icmp {name}"
    return f"icmp {'u' if is_unsigned(dtype) or dtype == 'bool' else 's'}{name}"
