"""Prints tensor-core statements and asynchronous copies as CUDA C with inline assembly.

The text describes exactly what the kernel does. It calls `HELPERS`, which are printed before the kernels.
"""

from collections.abc import Callable

from retune.compiler.codegen.warpgroup import (
    ADDRESS_MASK,
    ADDRESS_SHIFT,
    PROXY_FENCE,
    descriptor_bits,
    multiply_text,
    wait_text,
)
from retune.compiler.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.expr import Buffer, Const, Expr
from retune.compiler.ir.tensor_core import (
    HALF_STEP,
    SUM_ELEMENTS,
    AsyncCopy,
    CommitGroup,
    GroupLayout,
    LoadMatrix,
    Mma,
    ProxyFence,
    TensorStmt,
    TransposeQuad,
    WaitGroup,
    WarpgroupMma,
    WarpgroupWait,
)

HELPERS = {
    "in_shared": "__device__ unsigned in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }",
    "in_global": "__device__ unsigned long long in_global(const void* p) { return __cvta_generic_to_global(p); }",
    "word": "__device__ unsigned& word(void* p, int n) { return ((unsigned*)p)[n]; }",
    "tf32": "__device__ unsigned tf32(float x, float other) { return __float_as_uint(x) + (isnan(x) || isnan(other) ? 0"
    f" : {HALF_STEP}); }}",
    "descriptor": "__device__ unsigned long long descriptor(const void* p, unsigned long long bits) { return bits | "
    f"(__cvta_generic_to_shared(p) & {ADDRESS_MASK}) >> {ADDRESS_SHIFT}; }}",
    "transpose_quad": "__device__ void transpose_quad(void* to, const void* from) { unsigned* w = (unsigned*)to; "
    "for (int n = 0; n < 4; ++n) w[n] = ((const unsigned*)from)[n]; for (int bit = 1; bit < 4; bit *= 2) "
    "for (int n = 0; n < 4; ++n) if (!(n & bit)) { unsigned& out = threadIdx.x & bit ? w[n] : w[n | bit]; "
    "out = __shfl_xor_sync(~0u, out, bit); } }",
}
"""Functions that the text may call, by name."""

_TYPES = {"float16": "f16", BFLOAT16: "bf16", "float32": "tf32"}
PlaceText = Callable[[Buffer, tuple[Expr, ...]], str]


def tensor_text(stmt: TensorStmt, place: PlaceText, text: Callable[[Expr], str]) -> str:
    """One statement in C; `place` gives the text of an element, `text` that of an expression."""
    match stmt:
        case AsyncCopy():
            return _copy(stmt, place, text)
        case CommitGroup():
            return 'asm volatile("cp.async.commit_group;" ::: "memory");'
        case WaitGroup():
            return f'asm volatile("cp.async.wait_group {stmt.pending};" ::: "memory");'
        case LoadMatrix():
            return _load_matrix(stmt, place)
        case Mma():
            return _multiply(stmt, place)
        case TransposeQuad():
            target, source = place(stmt.target, stmt.indices), place(stmt.source, stmt.source_indices)
            return f"transpose_quad(&{target}, &{source});"
        case ProxyFence():
            return f'asm volatile("{PROXY_FENCE}" ::: "memory");'
        case WarpgroupMma():
            return _multiply_group(stmt, place)
        case WarpgroupWait():
            # Sums that are read after the wait depend on it.
            sums = "" if stmt.pending else _floats(place(stmt.sums, stmt.at), stmt.count)
            return f'asm volatile("{wait_text(stmt.pending)}" : {sums} : : "memory");'


def _copy(stmt: AsyncCopy, place: PlaceText, text: Callable[[Expr], str]) -> str:
    size = stmt.count * item_bytes(stmt.target.dtype)
    always = isinstance(stmt.condition, Const) and bool(stmt.condition.value)
    # The last operand of cp.async: bytes beyond it are filled with zeros, which pads a tile without a branch.
    read = str(size) if always else f"{text(stmt.condition)} ? {size} : 0"
    target, source = place(stmt.target, stmt.indices), place(stmt.source, stmt.source_indices)
    # PTX lets only copies of 16 bytes bypass the first-level cache.
    cache = "cg" if size == 16 else "ca"
    return (
        f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;" :: "r"(in_shared(&{target})), '
        f'"l"(in_global(&{source})), "r"({read}) : "memory");'
    )


def _load_matrix(stmt: LoadMatrix, place: PlaceText) -> str:
    how = ".trans" if stmt.transposed else ""
    target = place(stmt.target, stmt.indices)
    results = ", ".join(f'"=r"(word(&{target}, {number}))' for number in range(stmt.count))
    return (
        f'asm volatile("ldmatrix.sync.aligned.m8n8.x{stmt.count}{how}.shared.b16 {_braced(0, stmt.count)}, '
        f'[%{stmt.count}];" : {results} : "r"(in_shared(&{place(stmt.source, stmt.source_indices)})) : "memory");'
    )


def _multiply(stmt: Mma, place: PlaceText) -> str:
    kind = stmt.instruction
    dtype = _TYPES[kind.dtype]
    sums = _floats(place(stmt.sums, stmt.at), SUM_ELEMENTS)
    words: list[str] = []
    counts = []
    factors = (stmt.left, stmt.left_at, kind.left_elements), (stmt.right, stmt.right_at, kind.right_elements)
    for buffer, at, elements in factors:
        first = place(buffer, at)
        counts.append(elements // kind.packed)
        for number in range(counts[-1]):
            if kind.packed > 1:
                words.append(f'"r"(word(&{first}, {number}))')
            else:
                other = (number + elements // 2) % elements
                words.append(f'"r"(tf32((&{first})[{number}], (&{first})[{other}]))')
    left = SUM_ELEMENTS
    operands = ", ".join(
        (_braced(0, left), _braced(left, counts[0]), _braced(left + counts[0], counts[1]), _braced(0, left))
    )
    name = f"mma.sync.aligned.{kind.name}.row.col.f32.{dtype}.{dtype}.f32"
    return f'asm volatile("{name} {operands};" : {sums} : {", ".join(words)});'


def _multiply_group(stmt: WarpgroupMma, place: PlaceText) -> str:
    def factor(buffer: Buffer, at: tuple[Expr, ...], layout: GroupLayout) -> str:
        return f'"l"(descriptor(&{place(buffer, at)}, {descriptor_bits(layout, buffer.dtype)}ull))'

    lines = "\\n".join(multiply_text(stmt, "%{}".format))
    factors = factor(stmt.left, stmt.left_at, stmt.left_layout), factor(stmt.right, stmt.right_at, stmt.right_layout)
    sums = _floats(place(stmt.sums, stmt.at), stmt.shape.sums)
    return f'asm volatile("{lines}" : {sums} : {", ".join(factors)} : "memory");'


def _floats(first: str, count: int) -> str:
    """The operands that `count` floats from a place on are."""
    return ", ".join(f'"+f"((&{first})[{number}])' for number in range(count))


def _braced(first: int, count: int) -> str:
    return f"{{{', '.join(f'%{number}' for number in range(first, first + count))}}}"
