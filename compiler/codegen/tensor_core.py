"""Emits the LLVM intrinsics of tensor-core statements and asynchronous copies.

They need an NVIDIA GPU from sm_80 on, those of warpgroups sm_90a. Fragments are buffers of the thread, which LLVM keeps
in registers.
"""

from collections.abc import Sequence

from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.warpgroup import (
    ADDRESS_MASK,
    ADDRESS_SHIFT,
    PROXY_FENCE,
    descriptor_bits,
    multiply_text,
    wait_text,
)
from retune.compiler.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.expr import BinaryOp, Buffer, Const, Expr, binary, const
from retune.compiler.ir.kernel import INDICES
from retune.compiler.ir.stmt import LoopKind
from retune.compiler.ir.tensor_core import (
    HALF_STEP,
    PAIR,
    QUAD,
    REGISTER_BYTES,
    SUM_ELEMENTS,
    AsyncCopy,
    CommitGroup,
    GroupLayout,
    Instruction,
    LoadMatrix,
    Mma,
    ProxyFence,
    TensorStmt,
    TransposeQuad,
    WaitGroup,
    WarpgroupMma,
    WarpgroupWait,
)

OLDEST = 80
"""The first GPUs with these instructions are sm_80."""

_EXCHANGE = "llvm.nvvm.shfl.sync.bfly.i32"
_LAST_LANE = 31

_FLOATS = "{float, float, float, float}"


def tensor_declarations(statements: Sequence[TensorStmt]) -> list[str]:
    """The declarations of the intrinsics that some statements need, each once."""
    return sorted({line for stmt in statements for line in _declarations(stmt)})


def _declarations(stmt: TensorStmt) -> list[str]:
    match stmt:
        case AsyncCopy():
            plain, zeros = _copies(stmt)
            pointers = "ptr addrspace(3), ptr addrspace(1)"
            return [f"declare void @{plain}({pointers})", f"declare void @{zeros}({pointers}, i32)"]
        case CommitGroup():
            return ["declare void @llvm.nvvm.cp.async.commit.group()"]
        case WaitGroup():
            return ["declare void @llvm.nvvm.cp.async.wait.group(i32)"]
        case LoadMatrix():
            return [f"declare {_words(stmt.count)} @{_matrix_load(stmt)}(ptr addrspace(3))"]
        case Mma():
            kind = stmt.instruction
            word = _factor_type(kind)
            args = [word] * ((kind.left_elements + kind.right_elements) // kind.packed) + ["float"] * SUM_ELEMENTS
            return [f"declare {_FLOATS} @{_multiplication(kind)}({', '.join(args)})"]
        case TransposeQuad():
            return [f"declare i32 @{_EXCHANGE}(i32, i32, i32, i32)"]
        case ProxyFence() | WarpgroupMma() | WarpgroupWait():
            return []


def _copies(stmt: AsyncCopy) -> tuple[str, str]:
    """The intrinsic that copies, and the one that reads fewer bytes and fills up with zeros; only 16 bytes at once may
    bypass the first cache, where they would not be read again.
    """
    size = stmt.count * item_bytes(stmt.target.dtype)
    name = f"llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
    return name, f"{name}.s"


def _words(count: int) -> str:
    return "i32" if count == 1 else f"{{{', '.join(['i32'] * count)}}}"


def _matrix_load(stmt: LoadMatrix) -> str:
    return f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{stmt.count}{'.trans' if stmt.transposed else ''}.b16.p3"


def _factor_type(kind: Instruction) -> str:
    """How the intrinsic takes a register of a factor."""
    return "<2 x half>" if kind.dtype == "float16" else "i32"


def _multiplication(kind: Instruction) -> str:
    types = {"float16": "f32.f32", BFLOAT16: "bf16", "float32": "tf32"}[kind.dtype]
    return f"llvm.nvvm.mma.{kind.name}.row.col.{types}"


def emit_tensor(emitter: MemoryEmitter, stmt: TensorStmt) -> None:
    """Write one statement."""
    match stmt:
        case AsyncCopy():
            _copy(emitter, stmt)
        case CommitGroup():
            emitter.writer.put("call void @llvm.nvvm.cp.async.commit.group()")
        case WaitGroup():
            emitter.writer.put(f"call void @llvm.nvvm.cp.async.wait.group(i32 {stmt.pending})")
        case LoadMatrix():
            _load_matrix(emitter, stmt)
        case Mma():
            _multiply(emitter, stmt)
        case TransposeQuad():
            _transpose_quad(emitter, stmt)
        case ProxyFence():
            emitter.writer.put(f'call void asm sideeffect "{PROXY_FENCE}", "~{{memory}}"() convergent')
        case WarpgroupMma():
            _start_group(emitter, stmt)
        case WarpgroupWait():
            _wait_for_group(emitter, stmt)
    # Fragments and shared tiles have changed, partly by other threads: no earlier load is valid.
    emitter.writer.loaded.clear()


def _address(emitter: MemoryEmitter, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
    return emitter.address(emitter.place(buffer, indices), buffer)


def _in_space(emitter: MemoryEmitter, pointer: str, space: int) -> str:
    return emitter.writer.value(f"addrspacecast ptr {pointer} to ptr addrspace({space})")


def _copy(emitter: MemoryEmitter, stmt: AsyncCopy) -> None:
    target = _in_space(emitter, _address(emitter, stmt.target, stmt.indices), 3)
    source = _in_space(emitter, _address(emitter, stmt.source, stmt.source_indices), 1)
    plain, zeros = _copies(stmt)
    pointers = f"ptr addrspace(3) {target}, ptr addrspace(1) {source}"
    if isinstance(stmt.condition, Const) and stmt.condition.value:
        emitter.writer.put(f"call void @{plain}({pointers})")
        return
    size = stmt.count * item_bytes(stmt.target.dtype)
    holds = emitter.evaluate(stmt.condition)
    # Reading 0 bytes fills the target with zeros: padding without a branch.
    read = emitter.writer.value(f"select i1 {holds.text}, i32 {size}, i32 0")
    emitter.writer.put(f"call void @{zeros}({pointers}, i32 {read})")


def _registers(emitter: MemoryEmitter, buffer: Buffer, at: tuple[Expr, ...], count: int, step: int) -> list[str]:
    """The addresses of `count` neighbors, `step` elements apart."""
    first = _address(emitter, buffer, at)
    size = step * item_bytes(buffer.dtype)
    return [first] + [
        emitter.writer.value(f"getelementptr i8, ptr {first}, i64 {number * size}") for number in range(1, count)
    ]


def _load_matrix(emitter: MemoryEmitter, stmt: LoadMatrix) -> None:
    source = _in_space(emitter, _address(emitter, stmt.source, stmt.source_indices), 3)
    words = _words(stmt.count)
    loaded = emitter.writer.value(f"call {words} @{_matrix_load(stmt)}(ptr addrspace(3) {source})")
    # Of each matrix a lane gets one word: two halves or a float32.
    for number, place in enumerate(_registers(emitter, stmt.target, stmt.indices, stmt.count, stmt.lane_elements)):
        word = loaded if stmt.count == 1 else emitter.writer.value(f"extractvalue {words} {loaded}, {number}")
        emitter.writer.put(f"store i32 {word}, ptr {place}, align 4")


def _multiply(emitter: MemoryEmitter, stmt: Mma) -> None:
    kind, writer = stmt.instruction, emitter.writer
    args: list[str] = []
    factors = (stmt.left, stmt.left_at, kind.left_elements), (stmt.right, stmt.right_at, kind.right_elements)
    for buffer, at, elements in factors:
        places = _registers(emitter, buffer, at, elements // kind.packed, kind.packed)
        if kind.packed == 1:
            args.extend(f"i32 {word}" for word in _rounded(emitter, places))
        else:
            word = _factor_type(kind)
            args.extend(
                f"{word} {writer.value(f'load {word}, ptr {place}, align {REGISTER_BYTES}')}" for place in places
            )
    sums = _registers(emitter, stmt.sums, stmt.at, SUM_ELEMENTS, 1)
    args.extend(f"float {writer.value(f'load float, ptr {place}, align {REGISTER_BYTES}')}" for place in sums)
    made = writer.value(f"call {_FLOATS} @{_multiplication(kind)}({', '.join(args)})")
    for number, place in enumerate(sums):
        value = writer.value(f"extractvalue {_FLOATS} {made}, {number}")
        writer.put(f"store float {value}, ptr {place}, align {REGISTER_BYTES}")


def _rounded(emitter: MemoryEmitter, places: Sequence[str]) -> list[str]:
    """The float32 at `places`, a lane's part of a factor, rounded to tf32: to the nearest, halves away from zero."""
    writer = emitter.writer
    words = [writer.value(f"load i32, ptr {place}, align {REGISTER_BYTES}") for place in places]
    floats = [writer.value(f"bitcast i32 {word} to float") for word in words]
    half = len(words) // 2
    # `cvt.rna.tf32` is a comparison and an addition for every register. `cvt.rn.tf32`, one slow instruction of sm_90,
    # made products of 2048 to 8192 slower by 2 to 9% on an H200.
    # Two registers half of them apart belong to one row of the left factor, or to one column of the right one: if one
    # is a NaN, so are all sums to which the other adds, and neither need be rounded. That saves half the comparisons.
    # A NaN whose payload lies in the lowest 13 bits alone, as no arithmetic makes one, is read as infinity.
    unordered = [
        writer.value(f"fcmp uno float {one}, {other}") for one, other in zip(floats[:half], floats[half:], strict=True)
    ]
    found = []
    for number, word in enumerate(words):
        # Tensor cores ignore the lowest 13 bits. A carry out of the fraction into the exponent is right up to infinity,
        # which stays itself; only in a NaN it would run into the sign.
        near = writer.value(f"add i32 {word}, {HALF_STEP}")
        found.append(writer.value(f"select i1 {unordered[number % half]}, i32 {word}, i32 {near}"))
    return found


def _transpose_quad(emitter: MemoryEmitter, stmt: TransposeQuad) -> None:
    writer, lane = emitter.writer, INDICES[LoopKind.THREAD_X]
    places = _registers(emitter, stmt.source, stmt.source_indices, QUAD, PAIR)
    words = [writer.value(f"load i32, ptr {place}, align {REGISTER_BYTES}") for place in places]
    # As a matrix is transposed by blocks: words whose numbers differ in a bit change places with those of the lane
    # whose number differs in the same bit.
    for bit in (1, 2):
        high = emitter.evaluate(binary(BinaryOp.EQ, lane // bit % 2, const(1))).text
        for low in (number for number in range(QUAD) if not number & bit):
            one, other = words[low], words[low | bit]
            given = writer.value(f"select i1 {high}, i32 {one}, i32 {other}")
            got = writer.value(f"call i32 @{_EXCHANGE}(i32 -1, i32 {given}, i32 {bit}, i32 {_LAST_LANE})")
            words[low] = writer.value(f"select i1 {high}, i32 {got}, i32 {one}")
            words[low | bit] = writer.value(f"select i1 {high}, i32 {other}, i32 {got}")
    for word, place in zip(words, _registers(emitter, stmt.target, stmt.indices, QUAD, PAIR), strict=True):
        writer.put(f"store i32 {word}, ptr {place}, align {REGISTER_BYTES}")


def _start_group(emitter: MemoryEmitter, stmt: WarpgroupMma) -> None:
    left = _descriptor(emitter, stmt.left, stmt.left_at, stmt.left_layout)
    right = _descriptor(emitter, stmt.right, stmt.right_at, stmt.right_layout)
    text = "\\0A\\09".join(multiply_text(stmt))
    _update(emitter, _registers(emitter, stmt.sums, stmt.at, stmt.shape.sums, 1), text, [left, right])


def _wait_for_group(emitter: MemoryEmitter, stmt: WarpgroupWait) -> None:
    # Sums that are read after the wait depend on it; those that stay under way are not named.
    sums = [] if stmt.pending else _registers(emitter, stmt.sums, stmt.at, stmt.count, 1)
    _update(emitter, sums, wait_text(stmt.pending), [])


def _descriptor(emitter: MemoryEmitter, buffer: Buffer, at: tuple[Expr, ...], layout: GroupLayout) -> str:
    """The descriptor of a factor that begins at an element."""
    writer = emitter.writer
    pointer = _in_space(emitter, _address(emitter, buffer, at), 3)
    address = writer.value(f"ptrtoint ptr addrspace(3) {pointer} to i64")
    inside = writer.value(f"and i64 {address}, {ADDRESS_MASK}")
    start = writer.value(f"lshr i64 {inside}, {ADDRESS_SHIFT}")
    return writer.value(f"or i64 {start}, {descriptor_bits(layout, buffer.dtype)}")


def _update(emitter: MemoryEmitter, places: Sequence[str], text: str, given: Sequence[str]) -> None:
    """Assembly that updates the floats at `places`, its first operands; `given` are 64-bit operands after them. Whole
    warpgroups come to it together, so it is never moved into a branch.
    """
    writer = emitter.writer
    olds = [f"float {writer.value(f'load float, ptr {place}, align {REGISTER_BYTES}')}" for place in places]
    args = ", ".join([*(f"i64 {value}" for value in given), *olds])
    rules = ["=f"] * len(places) + ["l"] * len(given) + [str(number) for number in range(len(places))]
    made = {0: "void", 1: "float"}.get(len(places), f"{{{', '.join(['float'] * len(places))}}}")
    call = f'call {made} asm sideeffect "{text}", "{",".join([*rules, "~{memory}"])}"({args}) convergent'
    if not places:
        writer.put(call)
        return
    news = writer.value(call)
    for number, place in enumerate(places):
        value = writer.value(f"extractvalue {made} {news}, {number}")
        writer.put(f"store float {value}, ptr {place}, align {REGISTER_BYTES}")
