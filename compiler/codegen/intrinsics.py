"""Emits the LLVM instructions of a math call.

One table maps our names to LLVM's. float32 has its own functions, and 16-bit floats use them.
"""

from collections.abc import Callable, Sequence

from retune.compiler.codegen.conversions import cast, in_register, low_bits
from retune.compiler.codegen.math.vector_math import erf, exp, exp_by_permute, log, tanh
from retune.compiler.codegen.math.vector_pow import pow
from retune.compiler.codegen.nvidia import libdevice
from retune.compiler.codegen.types import intrinsic_suffix, is_float, literal, llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import VectorBuilder
from retune.compiler.core.dtype import BFLOAT16, NARROW
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import LIBRARY_BINARY, LIBRARY_UNARY

_INTRINSICS = {
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "pow": "pow",
    "floor": "floor",
    "ceil": "ceil",
    # Halves go to even, as in NumPy; LLVM's `round` moves them away from zero.
    "round": "roundeven",
    "trunc": "trunc",
    "abs": "fabs",
    "fma": "fma",
}
FLOAT32: dict[str, Callable[..., Value]] = {"exp": exp, "log": log, "tanh": tanh, "erf": erf, "pow": pow}
"""Functions of this package; without them LLVM calls libm lane by lane."""
_LIBRARY = {name: {"float32": f"{name}f", "float64": name} for name in ("erf", *LIBRARY_UNARY, *LIBRARY_BINARY)}
"""libm functions, by type: those that LLVM has no name for, or turns into these calls."""
DECLARATIONS = tuple(
    f"declare {llvm_type(dtype)} @{symbol}({', '.join([llvm_type(dtype)] * (2 if name in LIBRARY_BINARY else 1))})"
    for name, symbols in _LIBRARY.items()
    for dtype, symbol in symbols.items()
)
"""Declarations of a module that may call them."""
_EXACT = frozenset({"floor", "ceil", "round", "trunc", "abs", "fma"})
"""Functions that half-width floats need no wider type for."""


def call_instruction(
    emit: Emit, name: str, args: Sequence[Value], dtype: str, permutes_tables: bool = False, library: bool = True
) -> Value:
    """Write a call of a math function on scalars or vectors of equal lanes, of the type `dtype` (isnan: of any type,
    the result is a bool; bits: of any type of the same size; clz: of any integer type, the result is an int32); `emit`
    appends an instruction. `permutes_tables`: see `vector_math.exp`. Without the C `library` the functions are those of
    `libdevice`.

    Raises: LoweringError for a function that is not known for the type.
    """
    first, lanes = args[0], args[0].lanes
    if name == "bits":
        return _of_bits(emit, first, dtype)
    if not is_float(first.dtype):
        return _of_integer(emit, name, first, dtype)
    if name == "isnan":
        # bfloat16 is an i16 to LLVM, which has no float comparison.
        first = cast(emit, first, "float32") if first.dtype == BFLOAT16 else first
        return emit(f"fcmp uno {first.typed}, {first.text}", lanes, "bool")
    if dtype == BFLOAT16 or (dtype == "float16" and name not in _EXACT):
        wide = [cast(emit, arg, "float32") for arg in args]
        return cast(emit, call_instruction(emit, name, wide, "float32", permutes_tables, library), dtype)
    if not library and name in libdevice.FUNCTIONS:
        return libdevice.call(emit, name, args)
    if dtype == "float32" and name in FLOAT32:
        return exp_by_permute(emit, first) if name == "exp" and permutes_tables else FLOAT32[name](emit, *args)
    if name in _INTRINSICS:
        return VectorBuilder(emit, lanes, dtype).call(_INTRINSICS[name], *args)
    if name == "rsqrt":
        return _reciprocal_root(emit, first)
    if name == "sigmoid":
        return _sigmoid(emit, first, permutes_tables, library)
    if dtype in _LIBRARY.get(name, {}):
        return VectorBuilder(emit, lanes, dtype).each_lane(_LIBRARY[name][dtype], *args)
    raise LoweringError(f"no code for the function {name} on {dtype}")


def _of_bits(emit: Emit, value: Value, dtype: str) -> Value:
    """The bits of a value as another type; a bool is a byte of 0 or 1."""
    if "bool" in (value.dtype, dtype):
        return cast(emit, value, dtype)
    if {value.dtype, dtype} & {*NARROW}:
        return in_register(emit, Value(low_bits(emit, value).text, value.lanes, dtype))
    before, after = (llvm_type(kind, value.lanes) for kind in (value.dtype, dtype))
    if before == after:
        return Value(value.text, value.lanes, dtype)
    return emit(f"bitcast {value.typed} to {after}", value.lanes, dtype)


def _of_integer(emit: Emit, name: str, value: Value, dtype: str) -> Value:
    if name == "isnan":
        return Value(literal(False, "bool", value.lanes), value.lanes, "bool")
    if name in ("floor", "ceil", "round", "trunc") or (name == "abs" and value.dtype == "bool"):
        return value
    kind, suffix = llvm_type(value.dtype, value.lanes), intrinsic_suffix(value.dtype, value.lanes)
    if name == "popcount":
        return emit(f"call {kind} @llvm.ctpop.{suffix}({value.typed})", value.lanes, value.dtype)
    if name == "clz":
        # false: zero has a result, the width of the type.
        zeros = emit(f"call {kind} @llvm.ctlz.{suffix}({value.typed}, i1 false)", value.lanes, value.dtype)
        return cast(emit, zeros, dtype)
    if name != "abs":
        raise LoweringError(f"no code for the function {name} on {value.dtype}; cast to a float first")
    if value.dtype.startswith("uint"):
        return value
    # false: the least number wraps around to itself and is no poison.
    return emit(f"call {kind} @llvm.abs.{suffix}({value.typed}, i1 false)", value.lanes, value.dtype)


def _reciprocal_root(emit: Emit, x: Value) -> Value:
    """Two correctly rounded operations: 1 ulp."""
    write = VectorBuilder(emit, x.lanes, x.dtype)
    return write.div(write.number(1.0), write.call("sqrt", x))


def _sigmoid(emit: Emit, x: Value, permutes_tables: bool, library: bool) -> Value:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|), which does not overflow."""
    write = VectorBuilder(emit, x.lanes, x.dtype)
    unit = write.number(1.0)
    decay = call_instruction(emit, "exp", [write.negative(write.magnitude(x))], x.dtype, permutes_tables, library)
    above = write.choose(write.test("olt", x, write.number(0.0)), decay, unit)
    return write.div(above, write.add(unit, decay))
