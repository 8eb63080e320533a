"""Tensor expressions: what to compute, never how.

| in a body | meaning |
|---|---|
| `+ - * /`, `//`, `%`, unary `-` | of integers `/` rounds towards zero, `//` and `%` towards minus infinity |
| `< <= > >=`, `te.equal`, `te.not_equal` | make bools; `==` compares expressions, not values |
| `te.logical_and`, `te.logical_or` (`te.all`, `te.any`), `te.logical_not` | of bools |
| `& \\| ^ ~ << >>`, `te.popcount`, `te.clz` | of integers |
| `te.exp log sqrt rsqrt tanh erf sigmoid pow` | of floats; error at most 4 ulp |
| `te.sin` … `atanh`, `exp2 expm1 log2 log10 log1p atan2 hypot fmod copysign` | of floats; the C library's |
| `te.exp10 logaddexp nextafter power isinf isfinite min_value max_value` | made of the others; limits are finite |
| `te.add subtract multiply div`, `floordiv`, `truncmod`, … | the operators by TVM's names |
| `te.floor ceil round trunc abs minimum maximum isnan` | `round` takes ties to even; a NaN stays |
| `te.cast(dtype, value)`, `te.const(value, dtype)` | a Python number beside an expression takes its type |
| `te.if_then_else(condition, a, b)` | the side not taken is not evaluated, so it may lie out of bounds |
| `te.sum prod max min argmax argmin` | over a reduce axis or several; the whole body of a compute; a NaN stays |
| `te.cast(dtype, te.sum(…))`, `te.prod` | of floats: the complete result in another float type, rounded once |
| `te.sum prod max min` with a value in place of the axis | of two values |
| `te.comm_reducer(join, identity)` | a custom reduction of one value, or of a tuple of values |
| `te.extern(…)` | a stage that calls a registered function |
| `te.scan(init, update, state)` | a recurrence, computed step by step |
| `te.symbol(name)` as an extent or a number | an integer of at least 0 that is known when the kernel runs |

Arithmetic of the element types:

| operation | result |
|---|---|
| `+ - *` of integers | wraps around, as in NumPy |
| `//`, `%` of integers | rounds towards minus infinity; by zero 0; nothing traps |
| `//`, `%` of floats | as in NumPy, of the exact quotient |
| `%`, `-`, `/`, `//` of bools | rejected; cast first |
| `+ - * /` of float16, bfloat16 | each operation rounded once; factors cast to float32 have exact products |
| functions, sums, products and custom reducers of float16, bfloat16 | computed in float32, rounded once |
| cast to bfloat16 | through float32, to nearest, ties to even |
| operations on types below a byte and float8 | in int8, uint8 or float32, rounded; functions give float32 |
| cast of a float to an 8- or 16-bit integer | through int32, whose lowest bits stay |
| cast of NaN or a too large float to an integer | unspecified |
| mixed types | as NumPy promotes; bfloat16 meets float16 and the wider integers in float32 |
"""

from retune.compiler.ir.expr import const, select
from retune.compiler.te.checks import tag_scope
from retune.compiler.te.compute import *  # noqa: F403 - `__all__` lists the names
from retune.compiler.te.compute import logical_and as all
from retune.compiler.te.compute import logical_or as any
from retune.compiler.te.extern import call_packed, extern
from retune.compiler.te.prim_func import PrimFunc, create_prim_func
from retune.compiler.te.reducers import Reducer, argmax, argmin, comm_reducer, max, min, prod, sum
from retune.compiler.te.reduction import Axis, AxisKind, Combiner, Reduce, Values, largest, smallest
from retune.compiler.te.scan import scan
from retune.compiler.te.symbols import instantiate, symbol
from retune.compiler.te.tensor import ComputeOp, ExternOp, Handle, Operation, PlaceholderOp, ScanOp, Tensor, TensorRead

__all__ = [
    "Axis", "AxisKind", "Combiner", "ComputeOp", "ExternOp", "Handle", "Operation", "PlaceholderOp", "PrimFunc",
    "Reduce", "Reducer", "ScanOp", "Tensor", "TensorRead", "Values", "abs", "acos", "acosh", "add", "all", "any",
    "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh", "bits", "call_packed", "cast", "ceil", "ceildiv",
    "clz", "comm_reducer", "compute", "const", "copysign", "cos", "cosh", "create_prim_func", "div", "equal", "erf",
    "exp", "exp2", "exp10", "expm1", "extern", "floor", "floordiv", "floormod", "fmod", "hypot", "if_then_else",
    "indexdiv", "indexmod", "instantiate", "isfinite", "isinf", "isnan", "largest", "log", "log1p", "log2", "log10",
    "logaddexp", "logical_and", "logical_not", "logical_or", "max", "max_value", "maximum", "min", "min_value",
    "minimum", "multiply", "nearbyint", "nextafter", "not_equal", "placeholder", "popcount", "pow", "power", "prod",
    "reduce_axis", "round", "rsqrt", "scan", "select", "sigmoid", "sin", "sinh", "smallest", "sqrt", "subtract", "sum",
    "symbol", "tag_scope", "tan", "tanh", "trunc", "truncdiv", "truncmod",
]  # fmt: skip
