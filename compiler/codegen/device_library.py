"""In: LLVM text of kernels for a machine without a library. Out: the functions that it calls, in LLVM.

Always: functions of float64, called one lane at a time and inlined; `call_instruction` and `arithmetic` call them where
they are told that there is no library. A remainder is exact.
"""

import re
from collections.abc import Callable, Sequence

from compiler.codegen import wide_angles, wide_math
from compiler.codegen.conversions import cast
from compiler.codegen.types import literal, llvm_type
from compiler.codegen.values import Emit, Value
from compiler.ir.expr import TRIGONOMETRIC

REMAINDER = "fmod"
FUNCTIONS: dict[str, Callable[..., Value]] = {
    name: getattr(wide_math, name) for name in ("exp", "log", "pow", "tanh", "erf")
} | {name: getattr(wide_math, name, None) or getattr(wide_angles, name) for name in TRIGONOMETRIC}
"""By our names, those of the remainder aside."""
_ARGUMENTS = {"pow": 2}
_CALLED = re.compile(r"@own\.(\w+)\(")
_STRIDE = 50
_TURNS = "@own.turns"

_FMOD = f"""define internal double @own.fmod(double %x, double %y) alwaysinline nounwind {{
entry:
  %a = call double @llvm.fabs.f64(double %x)
  %b = call double @llvm.fabs.f64(double %y)
  %wanted = fcmp uge double %a, %b
  br i1 %wanted, label %check, label %is.x
check:
  %finite = fcmp olt double %a, 0x7FF0000000000000
  %some = fcmp ogt double %b, 0x0000000000000000
  %known = and i1 %finite, %some
  br i1 %known, label %up, label %is.nan
up:
  %t = phi double [ %b, %check ], [ %t.next, %higher ]
  %scaled = fmul double %a, {literal(2.0**-_STRIDE, "float64")}
  %more = fcmp oge double %scaled, %t
  br i1 %more, label %higher, label %down
higher:
  %t.next = fmul double %t, {literal(2.0**_STRIDE, "float64")}
  br label %up
down:
  %u = phi double [ %t, %up ], [ %u.next, %lower ]
  %r = phi double [ %a, %up ], [ %r.next, %lower ]
  %ratio = fdiv double %r, %u
  %count = call double @llvm.trunc.f64(double %ratio)
  %less = fneg double %count
  %left = call double @llvm.fma.f64(double %less, double %u, double %r)
  %over = fcmp olt double %left, 0x0000000000000000
  %back = fadd double %left, %u
  %r.next = select i1 %over, double %back, double %left
  %last = fcmp oeq double %u, %b
  br i1 %last, label %done, label %lower
lower:
  %u.next = fmul double %u, {literal(2.0**-_STRIDE, "float64")}
  br label %down
done:
  %signed = call double @llvm.copysign.f64(double %r.next, double %x)
  ret double %signed
is.x:
  ret double %x
is.nan:
  ret double 0x7FF8000000000000
}}"""
"""Multiples of |y| by powers of 2**50 are taken away, the largest first. A quotient below 2**51 is at most one too
large where it is rounded, so what the fused product leaves is a float, and at worst |y| times that power too small.
"""


def has(name: str, dtype: str) -> bool:
    """Whether there is a function of that name for a type: of float32 those for which there is nothing better."""
    return (dtype == "float64" and name in FUNCTIONS) or (dtype == "float32" and name in TRIGONOMETRIC)


def call(emit: Emit, name: str, args: Sequence[Value]) -> Value:
    """A call for floats of one type and as many lanes; float32 is computed in float64 and rounded once."""
    dtype, lanes = args[0].dtype, args[0].lanes
    wide = [cast(emit, arg, "float64") for arg in args]
    items = [_call(emit, name, [_lane(emit, arg, lane) for arg in wide]) for lane in range(lanes)]
    if lanes == 1:
        return cast(emit, items[0], dtype)
    result, kind = Value("poison", lanes, "float64"), llvm_type("float64", lanes)
    for lane, item in enumerate(items):
        result = emit(f"insertelement {kind} {result.text}, {item.typed}, i64 {lane}", lanes, "float64")
    return cast(emit, result, dtype)


def definitions(module: str) -> list[str]:
    """The functions that a module calls, with what these need."""
    called = sorted(set(_CALLED.findall(module)))
    found = [_FMOD if name == REMAINDER else _defined(name) for name in called]
    if any(_TURNS in text for text in found):
        words = ", ".join(f"i64 {word}" for word in wide_angles.TURNS)
        found.insert(
            0, f"{_TURNS} = internal addrspace(1) constant [{len(wide_angles.TURNS)} x i64] [{words}], align 8"
        )
    return found


def _lane(emit: Emit, value: Value, lane: int) -> Value:
    return value if value.lanes == 1 else emit(f"extractelement {value.typed}, i64 {lane}", 1, value.dtype)


def _call(emit: Emit, name: str, args: Sequence[Value]) -> Value:
    return emit(f"call double @own.{name}({', '.join(arg.typed for arg in args)})", 1, "float64")


def _defined(name: str) -> str:
    args = [Value(f"%x{number}", 1, "float64") for number in range(_ARGUMENTS.get(name, 1))]
    lines: list[str] = []

    def emit(instruction: str, lanes: int, dtype: str) -> Value:
        lines.append(f"  %v{len(lines)} = {instruction}")
        return Value(f"%v{len(lines) - 1}", lanes, dtype)

    result = FUNCTIONS[name](emit, *args)
    given = ", ".join(arg.typed for arg in args)
    return "\n".join(
        [f"define internal double @own.{name}({given}) alwaysinline nounwind {{", *lines, f"  ret {result.typed}", "}"]
    )
