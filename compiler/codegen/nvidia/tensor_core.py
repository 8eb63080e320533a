"""Emits the LLVM intrinsics of tensor-core statements and asynchronous copies, for the kernels that `nvptx` writes.

They need an NVIDIA GPU from sm_80 on, those of warpgroups sm_90a. Fragments are buffers of the thread, which LLVM keeps
in registers.
"""

from collections.abc import Sequence

from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.nvidia.warpgroup import (
    ADDRESS_MASK,
    ADDRESS_SHIFT,
    PROXY_FENCE,
    descriptor_bits,
    multiply_text,
    wait_text,
)
from retune.compiler.core.dtype import BFLOAT16, item_bytes
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
"""The oldest GPUs with these instructions are sm_80."""

_EXCHANGE = "llvm.nvvm.shfl.sync.bfly.i32"
_LAST_LANE = 31

_FLOATS = "{float, float, float, float}"


def _copy_intrinsics(stmt: AsyncCopy) -> tuple[str, str]:
    """The intrinsic that copies, and the intrinsic that reads fewer bytes and fills up with zeros. Only copies of 16
    bytes may bypass the first cache, where they would not be read again.
    """
    size = stmt.count * item_bytes(stmt.target.dtype)
    name = f"llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
    return name, f"{name}.s"


def _words(count: int) -> str:
    return "i32" if count == 1 else f"{{{', '.join(['i32'] * count)}}}"


def _matrix_load(stmt: LoadMatrix) -> str:
    return f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{stmt.count}{'.trans' if stmt.transposed else ''}.b16.p3"


def _factor_type(kind: Instruction) -> str:
    """The type of a register of a factor in the intrinsic."""
    return "<2 x half>" if kind.dtype == "float16" else "i32"


def _multiplication(kind: Instruction) -> str:
    types = {"float16": "f32.f32", BFLOAT16: "bf16", "float32": "tf32"}[kind.dtype]
    return f"llvm.nvvm.mma.{kind.name}.row.col.{types}"


def emit_tensor(emitter: MemoryEmitter, stmt: TensorStmt) -> None:
    """Write the LLVM IR of `stmt` with `emitter`, which then loads again what it had loaded before."""
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
    return emitter.pointer_to(emitter.locate(buffer, indices), buffer)


def _in_space(emitter: MemoryEmitter, pointer: str, space: int) -> str:
    return emitter.writer.value(f"addrspacecast ptr {pointer} to ptr addrspace({space})")


def _copy(emitter: MemoryEmitter, stmt: AsyncCopy) -> None:
    target = _in_space(emitter, _address(emitter, stmt.target, stmt.indices), 3)
    source = _in_space(emitter, _address(emitter, stmt.source, stmt.source_indices), 1)
    plain, zeros = _copy_intrinsics(stmt)
    pointers = f"ptr addrspace(3) {target}, ptr addrspace(1) {source}"
    if isinstance(stmt.condition, Const) and stmt.condition.value:
        emitter.writer.put(f"call void @{plain}({pointers})")
        return
    size = stmt.count * item_bytes(stmt.target.dtype)
    holds = emitter.evaluate(stmt.condition)
    # Reading 0 bytes fills the target with zeros: padding without a branch.
    read = emitter.writer.value(f"select i1 {holds.text}, i32 {size}, i32 0")
    emitter.writer.put(f"call void @{zeros}({pointers}, i32 {read})")


def _registers(emitter: MemoryEmitter, buffer: Buffer, indices: tuple[Expr, ...], count: int, step: int) -> list[str]:
    """The addresses of `count` neighbors, `step` elements apart."""
    pointer = _address(emitter, buffer, indices)
    size = step * item_bytes(buffer.dtype)
    return [pointer] + [
        emitter.writer.value(f"getelementptr i8, ptr {pointer}, i64 {number * size}") for number in range(1, count)
    ]


def _load_matrix(emitter: MemoryEmitter, stmt: LoadMatrix) -> None:
    source = _in_space(emitter, _address(emitter, stmt.source, stmt.source_indices), 3)
    words = _words(stmt.count)
    loaded = emitter.writer.value(f"call {words} @{_matrix_load(stmt)}(ptr addrspace(3) {source})")
    # A lane gets one word of each matrix: two halves or a float32.
    for number, address in enumerate(_registers(emitter, stmt.target, stmt.indices, stmt.count, stmt.lane_elements)):
        word = loaded if stmt.count == 1 else emitter.writer.value(f"extractvalue {words} {loaded}, {number}")
        emitter.writer.put(f"store i32 {word}, ptr {address}, align 4")


def _multiply(emitter: MemoryEmitter, stmt: Mma) -> None:
    kind, writer = stmt.instruction, emitter.writer
    args: list[str] = []
    factors = (stmt.left, stmt.left_at, kind.left_elements), (stmt.right, stmt.right_at, kind.right_elements)
    for buffer, first, elements in factors:
        addresses = _registers(emitter, buffer, first, elements // kind.packed, kind.packed)
        if kind.packed == 1:
            args.extend(f"i32 {word}" for word in _round(emitter, addresses))
        else:
            word = _factor_type(kind)
            args.extend(
                f"{word} {writer.value(f'load {word}, ptr {address}, align {REGISTER_BYTES}')}" for address in addresses
            )
    sums = _registers(emitter, stmt.sums, stmt.at, SUM_ELEMENTS, 1)
    args.extend(f"float {writer.value(f'load float, ptr {address}, align {REGISTER_BYTES}')}" for address in sums)
    results = writer.value(f"call {_FLOATS} @{_multiplication(kind)}({', '.join(args)})")
    for number, address in enumerate(sums):
        value = writer.value(f"extractvalue {_FLOATS} {results}, {number}")
        writer.put(f"store float {value}, ptr {address}, align {REGISTER_BYTES}")


def _round(emitter: MemoryEmitter, addresses: Sequence[str]) -> list[str]:
    """The float32 at `addresses`, a lane's part of a factor, rounded to tf32: to the nearest, halves away from zero."""
    writer = emitter.writer
    words = [writer.value(f"load i32, ptr {address}, align {REGISTER_BYTES}") for address in addresses]
    floats = [writer.value(f"bitcast i32 {word} to float") for word in words]
    half = len(words) // 2
    # `cvt.rna.tf32` is a comparison and an addition for every register. `cvt.rn.tf32`, one slow instruction of sm_90,
    # made products of 2048 to 8192 slower by 2 to 9% on an H200. Two registers half of them apart belong to the same
    # row of the left factor, or column of the right: if either is a NaN, so are all sums to which the other adds, and
    # neither need be rounded. That saves half the comparisons. A NaN whose payload is in the lowest 13 bits alone,
    # which no arithmetic produces, is read as infinity.
    unordered = [
        writer.value(f"fcmp uno float {low}, {high}") for low, high in zip(floats[:half], floats[half:], strict=True)
    ]
    rounded = []
    for number, word in enumerate(words):
        # Tensor cores ignore the lowest 13 bits. A carry out of the fraction into the exponent is right up to infinity,
        # which stays itself; only in a NaN it would run into the sign.
        near = writer.value(f"add i32 {word}, {HALF_STEP}")
        rounded.append(writer.value(f"select i1 {unordered[number % half]}, i32 {word}, i32 {near}"))
    return rounded


def _transpose_quad(emitter: MemoryEmitter, stmt: TransposeQuad) -> None:
    writer, lane = emitter.writer, INDICES[LoopKind.THREAD_X]
    addresses = _registers(emitter, stmt.source, stmt.source_indices, QUAD, PAIR)
    words = [writer.value(f"load i32, ptr {address}, align {REGISTER_BYTES}") for address in addresses]
    # As a matrix is transposed by blocks: words whose numbers differ in a bit are exchanged with the lane whose number
    # differs in the same bit.
    for bit in (1, 2):
        high = emitter.evaluate(binary(BinaryOp.EQ, lane // bit % 2, const(1))).text
        for low in (number for number in range(QUAD) if not number & bit):
            low_word, high_word = words[low], words[low | bit]
            sent = writer.value(f"select i1 {high}, i32 {low_word}, i32 {high_word}")
            received = writer.value(f"call i32 @{_EXCHANGE}(i32 -1, i32 {sent}, i32 {bit}, i32 {_LAST_LANE})")
            words[low] = writer.value(f"select i1 {high}, i32 {received}, i32 {low_word}")
            words[low | bit] = writer.value(f"select i1 {high}, i32 {high_word}, i32 {received}")
    for word, address in zip(words, _registers(emitter, stmt.target, stmt.indices, QUAD, PAIR), strict=True):
        writer.put(f"store i32 {word}, ptr {address}, align {REGISTER_BYTES}")


def _start_group(emitter: MemoryEmitter, stmt: WarpgroupMma) -> None:
    left = _descriptor(emitter, stmt.left, stmt.left_at, stmt.left_layout)
    right = _descriptor(emitter, stmt.right, stmt.right_at, stmt.right_layout)
    text = "\\0A\\09".join(multiply_text(stmt))
    _update(emitter, _registers(emitter, stmt.sums, stmt.at, stmt.shape.sums, 1), text, [left, right])


def _wait_for_group(emitter: MemoryEmitter, stmt: WarpgroupWait) -> None:
    # Sums that are read after the wait depend on it; those still in flight are not named.
    sums = [] if stmt.pending else _registers(emitter, stmt.sums, stmt.at, stmt.count, 1)
    _update(emitter, sums, wait_text(stmt.pending), [])


def _descriptor(emitter: MemoryEmitter, buffer: Buffer, first: tuple[Expr, ...], layout: GroupLayout) -> str:
    """The matrix descriptor, in 64 bits, by which a warpgroup reads the factor that begins at element `first` of shared
    memory.
    """
    writer = emitter.writer
    pointer = _in_space(emitter, _address(emitter, buffer, first), 3)
    address = writer.value(f"ptrtoint ptr addrspace(3) {pointer} to i64")
    inside = writer.value(f"and i64 {address}, {ADDRESS_MASK}")
    start = writer.value(f"lshr i64 {inside}, {ADDRESS_SHIFT}")
    return writer.value(f"or i64 {start}, {descriptor_bits(layout, buffer.dtype)}")


def _update(emitter: MemoryEmitter, addresses: Sequence[str], text: str, operands: Sequence[str]) -> None:
    """Assembly that updates the floats at `addresses`, its first operands; `operands` are 64-bit operands after them.
    Whole warpgroups execute it together, so it is never moved into a branch.
    """
    writer = emitter.writer
    olds = [f"float {writer.value(f'load float, ptr {address}, align {REGISTER_BYTES}')}" for address in addresses]
    args = ", ".join([*(f"i64 {value}" for value in operands), *olds])
    rules = ["=f"] * len(addresses) + ["l"] * len(operands) + [str(number) for number in range(len(addresses))]
    result_type = {0: "void", 1: "float"}.get(len(addresses), f"{{{', '.join(['float'] * len(addresses))}}}")
    call = f'call {result_type} asm sideeffect "{text}", "{",".join([*rules, "~{memory}"])}"({args}) convergent'
    if not addresses:
        writer.put(call)
        return
    news = writer.value(call)
    for number, address in enumerate(addresses):
        value = writer.value(f"extractvalue {result_type} {news}, {number}")
        writer.put(f"store float {value}, ptr {address}, align {REGISTER_BYTES}")
