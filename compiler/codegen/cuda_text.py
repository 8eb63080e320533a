"""Prints the kernels of a GPU function as CUDA C, for people.

The text describes exactly what the kernels do, but the machine code is not made from it. Names are those of the loop
IR, with `_` for characters that C does not allow. A kernel takes all parameters and then the workspace. It computes in
`int` where every index is proved to fit, and else in `long long`.
"""

import math
import re
from collections.abc import Iterator

from retune.compiler.codegen.cuda_index import LONG, fits, is_long
from retune.compiler.codegen.cuda_tensor import HELPERS, tensor_text
from retune.compiler.dtype import BFLOAT16, HALVES, is_unsigned, item_bytes
from retune.compiler.errors import LoweringError
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.alignment import SHARED_BYTES, start_alignment
from retune.compiler.ir.expr import (
    INDEX,
    Binary,
    BinaryOp,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
    is_float,
)
from retune.compiler.ir.interval import as_index
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.operators import SYMBOLS
from retune.compiler.ir.stmt import Allocate, Barrier, Block, For, If, Let, LoopKind, Shuffle, Stmt, Store, walk_stmt
from retune.compiler.ir.tensor_core import TENSOR_STMTS, accesses

_TYPES = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    BFLOAT16: "__nv_bfloat16",
    "bool": "bool",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint64": "unsigned long long",
    "uint32": "unsigned int",
    "uint16": "unsigned short",
    "uint8": "unsigned char",
}
# `rint` rounds halves to even, as the operator does; C's `round` takes them away from zero.
_RENAMED = {"abs": "fabs", "round": "rint"}
_SYMBOLS = {**SYMBOLS, BinaryOp.AND: "&&", BinaryOp.OR: "||", BinaryOp.FLOORDIV: "/", BinaryOp.FLOORMOD: "%"}
_HELPERS = {
    "floordiv": "__device__ long long floordiv(long long a, long long b) { return b == 0 ? 0 : a / b - (a % b != 0 &&"
    " (a < 0) != (b < 0)); }",
    "floormod": "__device__ long long floormod(long long a, long long b) { return b == 0 ? 0 : a - floordiv(a, b) * b;"
    " }",
    "natural_div": "__device__ unsigned long long natural_div(unsigned long long a, unsigned long long b) { return b =="
    " 0 ? 0 : a / b; }",
    "natural_mod": "__device__ unsigned long long natural_mod(unsigned long long a, unsigned long long b) { return b =="
    " 0 ? 0 : a % b; }",
    # Both a and b where one is a NaN: `a > b` is false.
    "nan_max": "template <typename T> __device__ T nan_max(T a, T b) { return a > b || a != a ? a : b; }",
    "nan_min": "template <typename T> __device__ T nan_min(T a, T b) { return a < b || a != a ? a : b; }",
    "float_mod": "template <typename T> __device__ T float_mod(T a, T b) { T r = fmod(a, b); return r == 0 ? copysign("
    "T(0), b) : (r < 0) != (b < 0) ? r + b : r; }",
    "float_div": "template <typename T> __device__ T float_div(T a, T b) { if (b == 0) return a / b; T r = fmod(a, b),"
    " q = (a - r) / b; if (r != 0 && (r < 0) != (b < 0)) q -= 1; T f = floor(q); if (q - f > T(0.5)) f += 1; return"
    " q == 0 ? copysign(T(0), a / b) : f; }",
}
_USERS = {name: ("floormod",) if name == "floordiv" else () for name in _HELPERS}
_FLOAT = {BinaryOp.FLOORDIV: "float_div", BinaryOp.FLOORMOD: "float_mod"}
_UNSIGNED = {BinaryOp.FLOORDIV: "natural_div", BinaryOp.FLOORMOD: "natural_mod"}
_MOST_COUNT = 2**31 - 1
_LAUNCHED_SHARED = "launched_shared"
_HEADERS = {"__half": "cuda_fp16.h", "__nv_bfloat16": "cuda_bf16.h"}


def cuda_text(function: DeviceFunction) -> str:
    """The kernels as CUDA C.

    Raises: LoweringError for an expression that has no form in C.
    """
    kernels = "\n".join(line for kernel in function.kernels for line in _kernel(function, kernel))
    helpers = [text for name, text in _HELPERS.items() if any(f"{each}(" in kernels for each in (name, *_USERS[name]))]
    helpers += [text for name, text in HELPERS.items() if re.search(rf"\b{name}\(", kernels)]
    headers = [f"#include <{header}>" for kind, header in _HEADERS.items() if kind in kernels]
    return "\n".join([*headers, *helpers, kernels])


def _kernel(function: DeviceFunction, kernel: Kernel) -> Iterator[str]:
    written = {stmt.buffer for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, Store)}
    params = ", ".join(
        f"{'' if buffer in written else 'const '}{_TYPES[buffer.dtype]}* __restrict__ {_name(buffer.name)}"
        for buffer in (*function.params, *function.workspace)
    )
    grid, block = (f"dim3({', '.join(map(str, extents))})" for extents in (kernel.grid, kernel.block))
    launched = f", {kernel.dynamic_shared}" if kernel.dynamic_shared else ""
    yield f"// {kernel.name}<<<{grid}, {block}{launched}>>>"
    if launched:
        yield "// after cudaFuncSetAttribute(…, cudaFuncAttributeMaxDynamicSharedMemorySize, …) of as many bytes"
    yield f'extern "C" __global__ void __launch_bounds__({kernel.threads}) {kernel.name}({params}) {{'
    places = kernel.shared_offsets if launched else {}
    if launched:
        yield f"  extern __shared__ __align__({SHARED_BYTES}) unsigned char {_LAUNCHED_SHARED}[];"
    # Definitions are replaced in the finished text, so that `_Writer` need not know where buffers lie.
    changed = {_definition_of(buffer): _pointer(buffer, start) for buffer, start in places.items()}
    changed = _aligned(kernel) | changed
    for line in _body(kernel):
        definition = line.lstrip()
        yield line[: len(line) - len(definition)] + changed.get(definition, definition)
    yield "}"


def _aligned(kernel: Kernel) -> dict[str, str]:
    """The definitions of the buffers that tensor cores and copies of up to 16 bytes access, each with its alignment."""
    statements = list(walk_stmt(kernel.body.body))
    named = {buffer for stmt in statements if isinstance(stmt, TENSOR_STMTS) for buffer, *_ in accesses(stmt)}
    buffers = [stmt.buffer for stmt in statements if isinstance(stmt, Allocate) and stmt.buffer in named]
    definitions = {_definition_of(buffer): start_alignment(buffer) for buffer in buffers}
    return {text: f"__align__({alignment}) {text}" for text, alignment in definitions.items()}


def _name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _body(kernel: Kernel) -> list[str]:
    """The statements of a kernel, with indices that fit."""
    # Optimistic first pass: `int` everywhere; one index that may not fit sends the whole kernel to `long long`.
    narrow = _Writer("int", dict(kernel.ranges))
    lines = list(narrow.lines(kernel.body.body, 1))
    return list(_Writer("long long", {}).lines(kernel.body.body, 1)) if narrow.overflows else lines


class _Writer:
    """Writes statements with indices of the C type `index`. `ranges` are those of the variables known so far; whether
    some index may not fit into an int is found on the way.
    """

    def __init__(self, index: str, ranges: dict[Var, tuple[int, int]]) -> None:
        self.index = index
        self.ranges = ranges
        self.overflows = False

    def lines(self, stmt: Stmt, depth: int) -> Iterator[str]:
        """A statement, indented."""
        pad = "  " * depth
        match stmt:
            case Block():
                for inner in stmt.statements:
                    yield from self.lines(inner, depth)
                return
            case Store():
                yield f"{pad}{self.place(stmt.buffer, stmt.indices)} = {self.text(stmt.value)};"
                return
            case Barrier():
                yield f"{pad}__syncthreads();"
                return
            case Shuffle():
                yield f"{pad}{self.place(stmt.buffer, stmt.indices)} = {self.shuffle(stmt)};"
                return
            case _ if isinstance(stmt, TENSOR_STMTS):
                yield f"{pad}{tensor_text(stmt, self.place, self.text)}"
                return
            case For():
                var = _name(stmt.var.name)
                if stmt.kind in (LoopKind.UNROLL, LoopKind.VECTOR):
                    yield f"{pad}#pragma unroll"
                yield f"{pad}for ({self.counter(stmt.var, stmt.extent)} {var} = 0; {var} < {stmt.extent}; ++{var}) {{"
            case If():
                yield f"{pad}if ({self.text(stmt.condition)}) {{"
            case Let() | Allocate():
                yield f"{pad}{{"
                inner = stmt
                while isinstance(inner, (Let, Allocate)):
                    yield f"{pad}  {self.definition(inner)}"
                    inner = inner.body
                yield from self.lines(inner, depth + 1)
                yield f"{pad}}}"
                return
            case _:
                raise LoweringError(f"a {type(stmt).__name__} has no form in a GPU kernel")
        yield from self.lines(stmt.body, depth + 1)
        yield f"{pad}}}"

    def counter(self, var: Var, extent: int) -> str:
        """The type of a variable of values below `extent`, which is known from here on."""
        self.overflows |= extent > _MOST_COUNT
        self.ranges[var] = 0, max(extent - 1, self.ranges.get(var, (0, 0))[1])
        return self.index

    def shuffle(self, stmt: Shuffle) -> str:
        """All threads of the warp take part: those that the mask names and the block lacks have left already."""
        if stmt.distance is None:
            return f"__shfl_sync(0xffffffff, {self.text(stmt.value)}, 0, {stmt.width})"
        return f"__shfl_down_sync(0xffffffff, {self.text(stmt.value)}, {stmt.distance}, {stmt.width})"

    def definition(self, stmt: Let | Allocate) -> str:
        """What makes a variable or a buffer known."""
        if isinstance(stmt, Let):
            value = self.text(stmt.value)
            return f"const {self.counter(stmt.var, stmt.extent)} {_name(stmt.var.name)} = {value};"
        return _definition_of(stmt.buffer)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        """An element of a buffer."""
        index = f"[{self.text(as_index(flat_index(buffer.shape, indices)))}]"
        return f"{_name(buffer.name)}{index if buffer.shape or buffer.scope not in ('register', 'local') else ''}"

    def text(self, expr: Expr) -> str:
        """An expression, in brackets if it has parts."""
        match expr:
            case Const():
                return _literal(expr)
            case Var():
                return f"({self.index}){expr.name}" if expr in INDICES.values() else _name(expr.name)
            case Load():
                return self.place(expr.buffer, expr.indices)
            case Not():
                return f"!{self.text(expr.value)}"
            case Cast():
                return f"({_TYPES[expr.dtype]})({self.text(expr.value)})"
            case Select():
                return f"({self.text(expr.condition)} ? {self.text(expr.then)} : {self.text(expr.otherwise)})"
            case Call():
                return self.call(expr)
            case Binary():
                return self.binary(expr)
        raise LoweringError(f"a {type(expr).__name__} has no form in C")

    def call(self, expr: Call) -> str:
        """A call of a math function; halves go through float."""
        first = expr.args[0].dtype
        if expr.name == "bits":
            return f"__builtin_bit_cast({_TYPES[expr.dtype]}, {self.text(expr.args[0])})"
        if expr.name in ("popcount", "clz"):
            width = 8 * item_bytes(first)
            value = f"__{'popc' if expr.name == 'popcount' else 'clz'}{'ll' if width == 64 else ''}("
            value += f"({_TYPES[f'uint{width}']}){self.text(expr.args[0])})"
            padding = max(0, 32 - width) if expr.name == "clz" else 0  # smaller integers are widened with zeros
            return f"({_TYPES[expr.dtype]})({value} - {padding})" if padding else f"({_TYPES[expr.dtype]}){value}"
        half = first in HALVES
        args = [f"(float){self.text(arg)}" if half else self.text(arg) for arg in expr.args]
        single = half or first == "float32"
        suffix = "f" if single and expr.name != "isnan" else ""
        if expr.name == "sigmoid":
            text = f"(1 / (1 + exp{suffix}(-({args[0]}))))"
        else:
            name = expr.name if expr.name == "abs" and not is_float(first) else _RENAMED.get(expr.name, expr.name)
            text = f"{name}{suffix}({', '.join(args)})"
        return f"({_TYPES[expr.dtype]}){text}" if half else text

    def binary(self, expr: Binary) -> str:
        """An operator; where C has none of this meaning, one of the helpers or of CUDA's functions."""
        lhs, rhs, kind = self.text(expr.lhs), self.text(expr.rhs), _TYPES[expr.lhs.dtype]
        if expr.dtype == INDEX:
            self.overflows |= not fits(expr, self.ranges)
        half = expr.lhs.dtype in HALVES
        if expr.op in (BinaryOp.MIN, BinaryOp.MAX, BinaryOp.FMAX):
            name = expr.op if expr.op is BinaryOp.FMAX else f"nan_{expr.op}"
            if half:
                return f"({kind}){name}((float){lhs}, (float){rhs})"
            if is_float(expr.dtype):
                return f"{name}({lhs}, {rhs})"
            if expr.dtype in LONG and (self.index == kind or is_long(expr)):  # C has none of different types
                lhs, rhs = f"({kind}){lhs}", f"({kind}){rhs}"
            return f"{expr.op}({lhs}, {rhs})"
        if expr.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
            if half:
                return f"({kind}){_FLOAT[expr.op]}((float){lhs}, (float){rhs})"
            if is_float(expr.lhs.dtype):
                return f"{_FLOAT[expr.op]}({lhs}, {rhs})"
            if is_unsigned(expr.lhs.dtype):
                return f"({kind}){_UNSIGNED[expr.op]}({lhs}, {rhs})"
            # C truncates: equal to the floor only where no operand is negative.
            if not _is_natural(expr.lhs) or not _is_natural(expr.rhs):
                return f"{expr.op}({lhs}, {rhs})"
        return f"({lhs} {_SYMBOLS[expr.op]} {rhs})"


def _definition_of(buffer: Buffer) -> str:
    shared = "__shared__ " if buffer.scope == "shared" else ""
    size = f"[{buffer.size}]" if buffer.shape else ""
    return f"{shared}{_TYPES[buffer.dtype]} {_name(buffer.name)}{size};"


def _pointer(buffer: Buffer, start: int) -> str:
    """The definition of a buffer in the shared memory that a launch gives."""
    kind = _TYPES[buffer.dtype]
    return f"{kind}* const {_name(buffer.name)} = ({kind}*)({_LAUNCHED_SHARED} + {start});"


def _literal(expr: Const) -> str:
    if expr.dtype == "bool":
        return "true" if expr.value else "false"
    if not is_float(expr.dtype):
        return str(expr.value)
    if not math.isfinite(expr.value):
        return "NAN" if math.isnan(expr.value) else "INFINITY" if expr.value > 0 else "-INFINITY"
    return f"{expr.value!r}f" if expr.dtype == "float32" else f"({_TYPES[expr.dtype]}){expr.value!r}"


def _is_natural(expr: Expr) -> bool:
    """Whether an index is never negative: a sum or product of variables and such literals."""
    match expr:
        case Var():
            return True
        case Const():
            return expr.value >= 0
        case Binary(op=BinaryOp.ADD | BinaryOp.MUL | BinaryOp.FLOORDIV | BinaryOp.FLOORMOD):
            return _is_natural(expr.lhs) and _is_natural(expr.rhs)
    return False
