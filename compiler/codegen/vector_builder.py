"""`VectorBuilder` emits float arithmetic as LLVM instructions; the operands of an operation have equal lanes.

Math functions and intrinsics are written with it. Operations have a result for all operands, NaN included; `binary`,
which takes any instruction, leaves that to its caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler.codegen.types import intrinsic_suffix, item_bytes, literal, llvm_type
from retune.compiler.codegen.values import Emit, Value

PERMUTE_LANES = 16
"""Lanes of `look_up` and `scale_by_floor`, on targets with `Subtarget.permutes_tables`."""


@dataclass(frozen=True, slots=True)
class VectorBuilder:
    """Writes arithmetic on `lanes` lanes (1: scalars) of the float type `dtype` and of the integers of its size."""

    emit: Emit
    lanes: int
    dtype: str = "float32"

    @property
    def integer(self) -> str:
        """The signed integer type of a float's size."""
        return f"int{item_bytes(self.dtype) * 8}"

    def number(self, value: float) -> Value:
        """A float constant in every lane."""
        return Value(literal(value, self.dtype, self.lanes), self.lanes, self.dtype)

    def whole(self, value: int) -> Value:
        """An integer constant in every lane."""
        return Value(literal(value, self.integer, self.lanes), self.lanes, self.integer)

    def binary(self, name: str, lhs: Value, rhs: Value) -> Value:
        """An instruction of two operands, by LLVM's name; it must be defined for all of them."""
        return self.emit(f"{name} {lhs.typed}, {rhs.text}", self.lanes, lhs.dtype)

    def call(self, name: str, *args: Value, flags: str = "") -> Value:
        """An LLVM intrinsic of operands and result of one type; fast-math `flags` end with a space, as "nsz "."""
        kind = llvm_type(args[0].dtype, self.lanes)
        operands = ", ".join(arg.typed for arg in args)
        suffix = intrinsic_suffix(args[0].dtype, self.lanes)
        return self.emit(f"call {flags}{kind} @llvm.{name}.{suffix}({operands})", self.lanes, args[0].dtype)

    def each_lane(self, symbol: str, *args: Value) -> Value:
        """The external function `symbol` of scalars, called lane by lane."""
        dtype = args[0].dtype
        scalar, kind = llvm_type(dtype), llvm_type(dtype, self.lanes)
        if self.lanes == 1:
            return self.emit(f"call {scalar} @{symbol}({', '.join(arg.typed for arg in args)})", 1, dtype)
        # LLVM has no vector form of a library call, so lanes are unpacked and packed again.
        result = Value("poison", self.lanes, dtype)
        for lane in range(self.lanes):
            items = [self.emit(f"extractelement {arg.typed}, i64 {lane}", 1, dtype) for arg in args]
            value = self.emit(f"call {scalar} @{symbol}({', '.join(item.typed for item in items)})", 1, dtype)
            result = self.emit(f"insertelement {kind} {result.text}, {value.typed}, i64 {lane}", self.lanes, dtype)
        return result

    def add(self, lhs: Value, rhs: Value) -> Value:
        return self.binary("fadd", lhs, rhs)

    def sub(self, lhs: Value, rhs: Value) -> Value:
        return self.binary("fsub", lhs, rhs)

    def mul(self, lhs: Value, rhs: Value) -> Value:
        return self.binary("fmul", lhs, rhs)

    def div(self, lhs: Value, rhs: Value) -> Value:
        return self.binary("fdiv", lhs, rhs)

    def fma(self, factor: Value, multiplier: Value, addend: Value) -> Value:
        """`factor * multiplier + addend`, rounded once."""
        return self.call("fma", factor, multiplier, addend)

    def scale_by_floor(self, value: Value, power: Value, mask: Value) -> Value:
        """`value` times two to the floor of a float power, rounded once; 0 outside of `mask`; see `PERMUTE_LANES`."""
        kind, bits = llvm_type(value.dtype, self.lanes), self.emit(f"bitcast {mask.typed} to i16", 1, "int16")
        # 4 is the current rounding mode (_MM_FROUND_CUR_DIRECTION).
        operands = f"{value.typed}, {power.typed}, {kind} zeroinitializer, {bits.typed}, i32 4"
        return self.emit(f"call {kind} @llvm.x86.avx512.mask.scalef.ps.512({operands})", self.lanes, value.dtype)

    def look_up(self, table: Sequence[float], indices: Value) -> Value:
        """The numbers of `table` at the low four bits of `indices`; see `PERMUTE_LANES`."""
        kind = llvm_type(self.dtype, self.lanes)
        numbers = ", ".join(f"float {literal(number, self.dtype, 1)}" for number in table)
        call = f"call {kind} @llvm.x86.avx512.permvar.sf.512"
        return self.emit(f"{call}({kind} <{numbers}>, {indices.typed})", self.lanes, self.dtype)

    def polynomial(self, variable: Value, coefficients: tuple[float, ...]) -> Value:
        """The sum of `coefficients[k] * variable**k`, by Horner's rule."""
        result = self.number(coefficients[-1])
        # One fused multiply-add a coefficient, each rounded once.
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, variable, self.number(coefficient))
        return result

    def test(self, comparison: str, lhs: Value, rhs: Value) -> Value:
        """A comparison by LLVM's name, "olt" for floats or "slt" for integers."""
        name = "fcmp" if lhs.dtype == self.dtype else "icmp"
        return self.emit(f"{name} {comparison} {lhs.typed}, {rhs.text}", self.lanes, "bool")

    def choose(self, condition: Value, then: Value, otherwise: Value) -> Value:
        """`then` in the lanes where the condition holds."""
        return self.emit(f"select {condition.typed}, {then.typed}, {otherwise.typed}", self.lanes, then.dtype)

    def both(self, lhs: Value, rhs: Value) -> Value:
        """The bitwise and, of conditions or integers."""
        return self.binary("and", lhs, rhs)

    def either(self, lhs: Value, rhs: Value) -> Value:
        """The bitwise or, of conditions or integers."""
        return self.binary("or", lhs, rhs)

    def negate(self, condition: Value) -> Value:
        return self.emit(f"xor {condition.typed}, {literal(True, 'bool', self.lanes)}", self.lanes, "bool")

    def at_most(self, value: Value, limit: float) -> Value:
        """The lesser of the value and `limit`; a NaN stays."""
        # A comparison and a choice instead of `minnum`, which would replace a NaN by the limit.
        top = self.number(limit)
        return self.choose(self.test("ogt", value, top), top, value)

    def at_least(self, value: Value, limit: float) -> Value:
        """The greater of the value and `limit`; a NaN stays."""
        bottom = self.number(limit)
        return self.choose(self.test("olt", value, bottom), bottom, value)

    def bits(self, value: Value) -> Value:
        """The bits of floats as integers."""
        return self.emit(f"bitcast {value.typed} to {llvm_type(self.integer, self.lanes)}", self.lanes, self.integer)

    def from_bits(self, value: Value) -> Value:
        return self.emit(f"bitcast {value.typed} to {llvm_type(self.dtype, self.lanes)}", self.lanes, self.dtype)

    def to_float(self, value: Value) -> Value:
        """The float nearest to a signed integer."""
        return self.emit(f"sitofp {value.typed} to {llvm_type(self.dtype, self.lanes)}", self.lanes, self.dtype)

    def negative(self, value: Value) -> Value:
        """The float with the other sign."""
        return self.emit(f"fneg {value.typed}", self.lanes, self.dtype)

    def magnitude(self, value: Value) -> Value:
        """The value without its sign."""
        return self.call("fabs", value)

    def with_sign(self, value: Value, sign: Value) -> Value:
        """The magnitude of `value` with the sign of `sign`."""
        return self.call("copysign", value, sign)


def in_parts(emit: Emit, x: Value, size: int, function: Callable[[Value], Value]) -> Value:
    """Apply `function`, which takes `size` lanes, to the lanes of `x`; the result has as many as `x`."""
    if x.lanes == size:
        return function(x)
    kind = f"<{x.lanes} x {llvm_type(x.dtype)}>"
    text = x.text if x.lanes > 1 else emit(f"insertelement {kind} poison, {x.typed}, i64 0", 1, x.dtype).text
    parts = []
    for first in range(0, x.lanes, size):
        # Lanes beyond the end repeat the last, so that every lane is defined.
        order = ", ".join(f"i32 {min(first + lane, x.lanes - 1)}" for lane in range(size))
        part = emit(f"shufflevector {kind} {text}, {kind} poison, <{size} x i32> <{order}>", size, x.dtype)
        parts.append(function(part))
    if x.lanes == 1:
        return emit(f"extractelement {parts[0].typed}, i64 0", 1, parts[0].dtype)
    while len(parts) > 1:
        # `shufflevector` joins two vectors of the same length; the last part is doubled to make pairs and cut off at
        # the end.
        if len(parts) % 2:
            parts.append(parts[-1])
        parts = [_concatenate(emit, low, high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return _first_lanes(emit, parts[0], x.lanes)


def _concatenate(emit: Emit, low: Value, high: Value) -> Value:
    lane_indices = ", ".join(f"i32 {lane}" for lane in range(2 * low.lanes))
    text = f"shufflevector {low.typed}, {high.typed}, <{2 * low.lanes} x i32> <{lane_indices}>"
    return emit(text, 2 * low.lanes, low.dtype)


def _first_lanes(emit: Emit, value: Value, lanes: int) -> Value:
    if value.lanes == lanes:
        return value
    lane_indices = ", ".join(f"i32 {lane}" for lane in range(lanes))
    return emit(f"shufflevector {value.typed}, {value.typed}, <{lanes} x i32> <{lane_indices}>", lanes, value.dtype)
