"""Emits the instructions that convert a value to another type.

`emit` appends an instruction and returns its result. Conversions follow NumPy's astype and are defined wherever NumPy's
are: a float that is too large for a narrow integer keeps its lowest bits. Between bfloat16 and float32 only integer
instructions are used, which every CPU has; rounding is to nearest even and subnormal numbers are kept.
"""

from retune.compiler.codegen.math.narrow_floats import from_float32, to_float32
from retune.compiler.codegen.types import BYTE, is_float, is_unsigned, item_bytes, literal, llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.core.dtype import BFLOAT16, NARROW_FLOATS, NARROW_INTEGERS, arithmetic_type, item_bits

_SHUFFLE_LANES = 32
"""From so many lanes on, a shuffle takes the upper halves of float32 numbers: two vectors of AVX-512."""


def cast(emit: Emit, value: Value, dtype: str) -> Value:
    """Convert every lane of a value to the element type `dtype`; a value of that type is returned as is."""
    source = value.dtype
    if source == dtype:
        return value
    if source in NARROW_FLOATS:
        return cast(emit, to_float32(emit, value), dtype)
    if dtype in NARROW_FLOATS:
        exact = _round_to_odd(emit, value) if source == "float64" else cast(emit, value, "float32")
        return from_float32(emit, exact, dtype)
    if source in NARROW_INTEGERS:  # a register holds them extended
        return cast(emit, Value(value.text, value.lanes, arithmetic_type(source)), dtype)
    if dtype in NARROW_INTEGERS:
        byte = cast(emit, value, arithmetic_type(dtype))
        return in_register(emit, Value(byte.text, byte.lanes, dtype))
    if source == BFLOAT16:
        return cast(emit, _extend_bfloat16(emit, value), dtype)
    if dtype == BFLOAT16:
        return _round_to_bfloat16(emit, cast(emit, value, "float32"))
    if source == "float64" and dtype == "float16":
        return cast(emit, _round_to_odd(emit, value), dtype)
    if dtype == "bool":
        zero = literal(0, source, value.lanes)
        # Unordered: a NaN is true, as in NumPy.
        compare = "fcmp une" if is_float(source) else "icmp ne"
        return emit(f"{compare} {value.typed}, {zero}", value.lanes, "bool")
    # A direct conversion is undefined out of range; through int32 the low bits stay, as in NumPy.
    if is_float(source) and not is_float(dtype) and item_bytes(dtype) < 4:
        return cast(emit, cast(emit, value, "int32"), dtype)
    if item_bytes(dtype) == item_bytes(source) and not is_float(source) and not is_float(dtype) and source != "bool":
        return Value(value.text, value.lanes, dtype)
    converted = emit(
        f"{_select_instruction(source, dtype)} {value.typed} to {llvm_type(dtype, value.lanes)}", value.lanes, dtype
    )
    if is_float(source) and not is_float(dtype):
        # A value that does not fit, such as a NaN, becomes some number; without `freeze` LLVM may treat everything that
        # depends on it as undefined.
        return emit(f"freeze {converted.typed}", value.lanes, dtype)
    return converted


def low_bits(emit: Emit, value: Value) -> Value:
    """Clear all bits beyond those of an element of at most a byte, which gives its form in memory."""
    bits = item_bits(value.dtype)
    if bits == BYTE:
        return value
    return emit(f"and {value.typed}, {literal((1 << bits) - 1, 'uint8', value.lanes)}", value.lanes, value.dtype)


def in_register(emit: Emit, value: Value) -> Value:
    """Extend an element of at most a byte from its low bits, by its sign or by zeros: its form in a register."""
    if is_float(value.dtype) or is_unsigned(value.dtype):
        return low_bits(emit, value)
    spare = literal(BYTE - item_bits(value.dtype), "uint8", value.lanes)
    upper = emit(f"shl {value.typed}, {spare}", value.lanes, value.dtype)
    return emit(f"ashr {upper.typed}, {spare}", value.lanes, value.dtype)


def _select_instruction(source: str, dtype: str) -> str:
    """LLVM's instruction that converts between two types of different width or kind."""
    unsigned = is_unsigned(source) or source == "bool"
    if is_float(source) and is_float(dtype):
        return "fpext" if item_bytes(dtype) > item_bytes(source) else "fptrunc"
    if is_float(source):
        return "fptoui" if is_unsigned(dtype) else "fptosi"
    if is_float(dtype):
        return "uitofp" if unsigned else "sitofp"
    if source != "bool" and item_bytes(dtype) < item_bytes(source):
        return "trunc"
    return "zext" if unsigned else "sext"


def _round_to_odd(emit: Emit, value: Value) -> Value:
    """A float64 rounded to odd in float32, so that rounding it to fewer bits rounds once; without it LLVM calls a
    library function for float64 to float16.
    """
    lanes = value.lanes
    # Rounding to odd: with at least two spare bits a second rounding then equals a single rounding (Boldo and
    # Melquiond).
    near = cast(emit, value, "float32")
    back = cast(emit, near, "float64")
    bits = emit(f"bitcast {near.typed} to {llvm_type('int32', lanes)}", lanes, "int32")
    last = emit(f"trunc {bits.typed} to {llvm_type('bool', lanes)}", lanes, "bool")
    # Ordered: a NaN is not moved.
    inexact = emit(f"fcmp one {value.typed}, {back.text}", lanes, "bool")
    even = emit(f"xor {last.typed}, {literal(True, 'bool', lanes)}", lanes, "bool")
    moves = emit(f"and {even.typed}, {inexact.text}", lanes, "bool")
    above = emit(f"fcmp ogt {value.typed}, {back.text}", lanes, "bool")
    negative = emit(f"icmp slt {bits.typed}, {literal(0, 'int32', lanes)}", lanes, "bool")
    grows = emit(f"xor {above.typed}, {negative.text}", lanes, "bool")
    kind = llvm_type("int32", lanes)
    plus, minus = literal(1, "int32", lanes), literal(-1, "int32", lanes)
    step = emit(f"select {grows.typed}, {kind} {plus}, {kind} {minus}", lanes, "int32")
    step = emit(f"select {moves.typed}, {step.typed}, {kind} {literal(0, 'int32', lanes)}", lanes, "int32")
    odd = emit(f"add {bits.typed}, {step.text}", lanes, "int32")
    return emit(f"bitcast {odd.typed} to {llvm_type('float32', lanes)}", lanes, "float32")


def _extend_bfloat16(emit: Emit, value: Value) -> Value:
    """A bfloat16 as float32: its bits are the upper half."""
    lanes = value.lanes
    bits = emit(f"zext {value.typed} to {llvm_type('uint32', lanes)}", lanes, "uint32")
    upper = emit(f"shl {bits.typed}, {literal(16, 'uint32', lanes)}", lanes, "uint32")
    return emit(f"bitcast {upper.typed} to {llvm_type('float32', lanes)}", lanes, "float32")


def _round_to_bfloat16(emit: Emit, value: Value) -> Value:
    """A float32 as bfloat16: half of the last place is added, minus 1 if the even neighbor is below; NaNs stay."""
    lanes = value.lanes

    def number_text(number: int) -> str:
        return literal(number, "uint32", lanes)

    bits = emit(f"bitcast {value.typed} to {llvm_type('uint32', lanes)}", lanes, "uint32")
    upper = emit(f"lshr {bits.typed}, {number_text(16)}", lanes, "uint32")
    odd = emit(f"and {upper.typed}, {number_text(1)}", lanes, "uint32")
    # 0x7FFF plus the last kept bit is half an ulp, rounded so that ties go to even.
    half = emit(f"add {odd.typed}, {number_text(0x7FFF)}", lanes, "uint32")
    near = emit(f"add {bits.typed}, {half.text}", lanes, "uint32")
    # The carry of the rounding could turn a NaN into infinity; the quiet bit prevents it.
    quiet = emit(f"or {bits.typed}, {number_text(0x400000)}", lanes, "uint32")
    is_nan = emit(f"fcmp uno {value.typed}, {value.text}", lanes, "bool")
    chosen = emit(f"select {is_nan.typed}, {quiet.typed}, {near.typed}", lanes, "uint32")
    if lanes >= _SHUFFLE_LANES:
        return _upper_halves(emit, chosen)
    # Last, so that LLVM masks the lower half where the result is a float32 again.
    chosen = emit(f"lshr {chosen.typed}, {number_text(16)}", lanes, "uint32")
    return emit(f"trunc {chosen.typed} to {llvm_type(BFLOAT16, lanes)}", lanes, BFLOAT16)


def _upper_halves(emit: Emit, bits: Value) -> Value:
    """The upper 16 bits of each element, as bfloat16: one shuffle of two vectors, where a truncation takes seven
    instructions.
    """
    lanes = bits.lanes
    # Odd words are the upper words of little-endian machines, as all targets are.
    words = llvm_type(BFLOAT16, 2 * lanes)
    halves = emit(f"bitcast {bits.typed} to {words}", 2 * lanes, BFLOAT16)
    odd = ", ".join(f"i32 {2 * lane + 1}" for lane in range(lanes))
    return emit(f"shufflevector {halves.typed}, {words} poison, <{lanes} x i32> <{odd}>", lanes, BFLOAT16)
