"""In: a math call and its arguments. Out: LLVM instructions.

Always: one table from our names to LLVM's; what LLVM lacks is composed here.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from compiler.codegen.types import is_float, item_bytes, literal, llvm_type
from compiler.errors import LoweringError

_INTRINSICS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "pow": "pow",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "abs": "fabs",
    "fma": "fma",
}


class Operand(Protocol):
    """A value in a register."""

    @property
    def text(self) -> str:
        """Name or literal."""
        ...

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        ...

    @property
    def dtype(self) -> str:
        """Element type."""
        ...

    @property
    def typed(self) -> str:
        """The operand with its LLVM type."""
        ...


Result = TypeVar("Result", bound=Operand)


def call_instruction(emit: Callable[[str, int, str], Result], name: str, args: Sequence[Result], dtype: str) -> Result:
    """Write a call of a math function on scalars or vectors; `emit` appends an instruction.

    Raises: LoweringError for an unknown function.
    """
    lanes = args[0].lanes
    kind = llvm_type(dtype, lanes)
    if name == "abs" and not is_float(dtype):
        return emit(f"call {kind} @llvm.abs.{_suffix(dtype, lanes)}({args[0].typed}, i1 false)", lanes, dtype)
    if name in _INTRINSICS:
        operands = ", ".join(arg.typed for arg in args)
        return emit(f"call {kind} @llvm.{_INTRINSICS[name]}.{_suffix(dtype, lanes)}({operands})", lanes, dtype)
    one = literal(1.0, dtype, lanes)
    if name == "rsqrt":
        root = call_instruction(emit, "sqrt", args, dtype)
        return emit(f"fdiv {kind} {one}, {root.text}", lanes, dtype)
    if name == "sigmoid":
        negated = emit(f"fneg {args[0].typed}", lanes, dtype)
        grown = call_instruction(emit, "exp", [negated], dtype)
        total = emit(f"fadd {grown.typed}, {one}", lanes, dtype)
        return emit(f"fdiv {kind} {one}, {total.text}", lanes, dtype)
    if name == "erf" and dtype in ("float32", "float64"):
        return _library_call(emit, "erff" if dtype == "float32" else "erf", args[0], dtype)
    raise LoweringError(f"no code for the function {name} on {dtype}")


def _library_call(emit: Callable[[str, int, str], Result], symbol: str, arg: Result, dtype: str) -> Result:
    """A libm function lane by lane."""
    scalar, kind = llvm_type(dtype), llvm_type(dtype, arg.lanes)
    if arg.lanes == 1:
        return emit(f"call {scalar} @{symbol}({scalar} {arg.text})", 1, dtype)
    text = "poison"
    result = arg
    for lane in range(arg.lanes):
        item = emit(f"extractelement {arg.typed}, i64 {lane}", 1, dtype)
        value = emit(f"call {scalar} @{symbol}({scalar} {item.text})", 1, dtype)
        result = emit(f"insertelement {kind} {text}, {value.typed}, i64 {lane}", arg.lanes, dtype)
        text = result.text
    return result


def _suffix(dtype: str, lanes: int) -> str:
    scalar = f"{'f' if is_float(dtype) else 'i'}{item_bytes(dtype) * 8}"
    scalar = "bf16" if dtype == "bfloat16" else scalar
    return scalar if lanes == 1 else f"v{lanes}{scalar}"
