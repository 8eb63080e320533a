"""Writes the kernels of a GPU function as LLVM text and compiles that to PTX.

Expressions and loops are emitted as for a CPU; added are block and thread indices, shared memory, barriers, shuffles
and aligned vectors. A kernel takes the addresses of all parameters and then of the workspace, all multiples of 16; they
must not overlap. Shared memory is static or, above 48 KiB, dynamic: the launch gives at least `Kernel.dynamic_shared`
bytes.
"""

from dataclasses import dataclass, field
from math import gcd

import llvmlite.binding as llvm

from retune.compiler.codegen.body import BodyEmitter
from retune.compiler.codegen.cpu import check_names, parse_module
from retune.compiler.codegen.nvidia import libdevice
from retune.compiler.codegen.nvidia.tensor_core import OLDEST, emit_tensor
from retune.compiler.codegen.nvidia.warp_shuffle import shuffle
from retune.compiler.codegen.subtarget import Subtarget
from retune.compiler.codegen.types import item_bytes, memory_type
from retune.compiler.codegen.values import Binding, Scalar, Storage, Value
from retune.compiler.codegen.writer import FunctionWriter
from retune.compiler.core.errors import LoweringError, TargetError
from retune.compiler.core.gpu_facts import GROUP_ARCH, MOST_REGISTERS, capability_of, facts_of
from retune.compiler.core.target import Target
from retune.compiler.ir.affine import IndexForm, affine, flat_index
from retune.compiler.ir.alignment import (
    SHARED_BYTES,
    VECTOR_BYTES,
    element_alignment,
    first_alignment,
    start_alignment,
    whole_alignment,
)
from retune.compiler.ir.expr import INDEX, Binary, BinaryOp, Buffer, Const, Expr, Var
from retune.compiler.ir.interval import Ranges, limits
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.simplify import join_digits
from retune.compiler.ir.stmt import Allocate, Barrier, For, Let, LoopKind, Shuffle, Stmt, ranges_inside, walk_stmt
from retune.compiler.ir.tensor_core import Mma, TensorStmt, WarpgroupMma

GPU_TRIPLE = "nvptx64-nvidia-cuda"
_OLDEST = "sm_70"
_INDEX_REGISTERS = 40
# A block of 256 threads with 64 sums each then asks for 128 registers a thread and not 168: two blocks fit on a
# multiprocessor, and ptxas still spills nothing.
_FACTOR_REGISTERS = 48
_LAUNCHED_SHARED = "launched_shared"
"""The shared memory allocated by the launch."""
_MOST_RESIDENT = 8
_FENCE = 'call void asm sideeffect "", "~{memory}"()'
"""No instruction, but LLVM assumes that it writes memory."""
_HALF = 1 << 31
_SUBTARGET = Subtarget(VECTOR_BYTES, has_library=False)
_REGISTERS = {
    LoopKind.BLOCK_X: "ctaid.x", LoopKind.BLOCK_Y: "ctaid.y", LoopKind.BLOCK_Z: "ctaid.z", LoopKind.THREAD_X: "tid.x",
    LoopKind.THREAD_Y: "tid.y", LoopKind.THREAD_Z: "tid.z",
}  # fmt: skip
"""The special registers with the number of the block and of the thread."""


def ptx(function: DeviceFunction, target: Target) -> str:
    """The PTX of all kernels, by default for the oldest supported GPU, which newer GPUs run too.

    Raises: LoweringError for functions that a GPU kernel cannot call, TargetError when LLVM does not know the GPU.
    """
    check_gpu(target)
    llvm.initialize_all_asmprinters()
    arch = target.arch or _OLDEST
    _check_tensor_cores(function, target, arch)
    written = write_device(function, arch)
    module = parse_module(written)
    machine = llvm.Target.from_triple(GPU_TRIPLE).create_target_machine(cpu=arch, opt=3)
    module.triple = GPU_TRIPLE
    # Before optimization, which relies on the sizes and alignments of the GPU.
    module.data_layout = str(machine.target_data)
    # Linked before the passes, so that its small functions are inlined.
    libdevice.link(module)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    text: str = machine.emit_assembly(module)
    _check_calls(function.name, text)
    return text


def check_gpu(target: Target) -> None:
    """Check that kernels can be made for the GPU of a target.

    Raises: TargetError when it is no GPU, LLVM does not know it, or it is too old.
    """
    if not isinstance(target, Target) or target.kind != "cuda":
        raise TargetError(f"PTX is made for a Target such as Target('cuda -arch=sm_90'), not for {str(target)!r:.80}")
    llvm.initialize_all_targets()
    arch = target.arch or _OLDEST
    check_names(target, (GPU_TRIPLE, arch, ""))
    if capability_of(arch) < capability_of(_OLDEST):
        raise TargetError(f"target {str(target)!r}: kernels are made for GPUs from {_OLDEST} on")


def _check_calls(name: str, text: str) -> None:
    """Raises: LoweringError when the code needs functions of a library that GPUs lack."""
    needed = sorted({line.split()[-1].strip("();,") for line in text.splitlines() if line.startswith(".extern .func")})
    if needed:
        raise LoweringError(f"{name}: no code for GPUs for the library functions {', '.join(needed)}")


def _check_tensor_cores(function: DeviceFunction, target: Target, arch: str) -> None:
    """Raises: LoweringError where the GPU has no tensor cores, or the target does not allow their rounding."""
    bodies = [kernel.body.body for kernel in function.kernels]
    statements = [stmt for body in bodies for stmt in walk_stmt(body) if isinstance(stmt, TensorStmt)]
    if any(isinstance(stmt, Mma) for stmt in statements) and capability_of(arch) < OLDEST:
        raise LoweringError(f"{function.name}: uses tensor cores as GPUs from sm_{OLDEST} on have them, not {arch}")
    if statements and capability_of(arch) < OLDEST:
        raise LoweringError(
            f"{function.name}: copies asynchronously as GPUs from sm_{OLDEST} on do, not {arch}; tune it for {arch}"
        )
    if any(isinstance(stmt, WarpgroupMma) for stmt in statements) and arch != GROUP_ARCH:
        raise LoweringError(f"{function.name}: multiplies with warpgroups, which only {GROUP_ARCH} has, not {arch}")
    if not target.allow_tf32 and any(isinstance(stmt, Mma) and stmt.kind == "tf32" for stmt in statements):
        raise LoweringError(
            f"{function.name}: rounds float32 to tf32, which the target {target} does not allow; add -math=tf32 to it, "
            "or tune without"
        )


def write_device(function: DeviceFunction, arch: str = _OLDEST) -> str:
    """The module of a function's kernels for GPUs of an architecture."""
    parts = [_kernel(function, kernel, number) for number, kernel in enumerate(function.kernels)]
    # LLVM declares its own intrinsics.
    declarations = libdevice.declarations("\n".join(parts))
    if any(kernel.dynamic_shared for kernel in function.kernels):
        declarations.append(f"@{_LAUNCHED_SHARED} = external addrspace(3) global [0 x i8], align {SHARED_BYTES}")
    bounds = []
    for number, kernel in enumerate(function.kernels):
        extents = (f'!"maxntid{name}", i32 {extent}' for name, extent in zip("xyz", kernel.block, strict=True))
        least = f'!"minctasm", i32 {_resident(kernel, arch)}'
        bounds.append(f'!{number} = !{{ptr @{kernel.name}, !"kernel", i32 1, {", ".join(extents)}, {least}}}')
    names = ", ".join(f"!{number}" for number in range(len(bounds)))
    annotations = "\n".join([f"!nvvm.annotations = !{{{names}}}", *bounds])
    return "\n\n".join([*declarations, *parts, annotations, ""])


def _resident(kernel: Kernel, arch: str) -> int:
    """Blocks that a multiprocessor should have room for: the assembler gives each thread its share of the registers. A
    thread gets twice the registers of its buffers and some for indices, so that nothing need be spilled; for sums on
    CUDA cores many fewer suffice, since each loaded number is used with many of them.
    """
    registers = 2 * kernel.registers + _INDEX_REGISTERS
    if any(isinstance(stmt, WarpgroupMma) for stmt in walk_stmt(kernel.body.body)):
        # A warpgroup reads its factors from shared memory: a thread holds only sums.
        registers = kernel.registers + _INDEX_REGISTERS
    elif not any(isinstance(stmt, Mma) for stmt in walk_stmt(kernel.body.body)):
        registers = min(registers, kernel.registers * 5 // 4 + _FACTOR_REGISTERS)
    registers = min(MOST_REGISTERS, registers)
    blocks = int(facts_of(arch).resident(kernel.threads, registers, kernel.bytes_of("shared")))
    return min(_MOST_RESIDENT, max(1, blocks))


def _kernel(function: DeviceFunction, kernel: Kernel, number: int) -> str:
    pointers = {buffer: f"%b{position}" for position, buffer in enumerate((*function.params, *function.workspace))}
    shared, definitions = _shared_memory(kernel, f"shared{number}_")
    storage = {buffer: Storage(pointer) for buffer, pointer in (pointers | shared).items()}
    writer = FunctionWriter()
    env: dict[Var, Binding] = {}
    for kind, register in _REGISTERS.items():
        if kernel.sizes[kind] == 1:
            # A dimension of extent 1: the literal lets LLVM drop it from every address.
            env[INDICES[kind]] = 0
            continue
        name = register.replace(".", "")
        read = f"call range(i32 0, {kernel.sizes[kind]}) i32 @llvm.nvvm.read.ptx.sreg.{register}()"
        writer.entry.extend((f"  %{name}.narrow = {read}", f"  %{name} = zext i32 %{name}.narrow to i64"))
        env[INDICES[kind]] = Scalar(f"%{name}", 0)
    emitter = _DeviceEmitter(writer, _SUBTARGET, storage, env, threads=kernel.threads, ranges=kernel.ranges)
    emitter.statement(kernel.body.body)
    writer.put("ret void")
    # Attributes of a pointer hold for its elements, see `element_alignment`; vectors carry their own alignment.
    params = ", ".join(
        f"ptr noalias nocapture align {whole_alignment(buffer)} {pointer}" for buffer, pointer in pointers.items()
    )
    code = f"define ptx_kernel void @{kernel.name}({params}) {{\nentry:\n{writer.text()}\n}}"
    return "\n".join([*definitions, code])


def _shared_memory(kernel: Kernel, prefix: str) -> tuple[dict[Buffer, str], list[str]]:
    """The addresses of the shared buffers, and the lines that define static ones, called `prefix` and a number."""
    if kernel.dynamic_shared:
        starts = {
            buffer: f"getelementptr inbounds (i8, ptr addrspace(3) @{_LAUNCHED_SHARED}, i64 {offset})"
            for buffer, offset in kernel.shared_offsets.items()
        }
        definitions = []
    else:
        allocated = (stmt.buffer for stmt in walk_stmt(kernel.body.body) if isinstance(stmt, Allocate))
        buffers = dict.fromkeys(buffer for buffer in allocated if buffer.scope == "shared")
        starts = {buffer: f"@{prefix}{position}" for position, buffer in enumerate(buffers)}
        definitions = [
            # Shared memory has no initial value on a GPU; LLVM's syntax requires a value.
            f"{starts[buffer]} = internal addrspace(3) global [{buffer.size} x {memory_type(buffer.dtype)}] "
            f"poison, align {start_alignment(buffer)}"
            # In this order the assembler leaves no gaps between them.
            for buffer in kernel.shared_offsets
        ]
    pointers = {buffer: f"addrspacecast (ptr addrspace(3) {start} to ptr)" for buffer, start in starts.items()}
    return pointers, definitions


@dataclass(frozen=True, eq=False)
class _DeviceEmitter(BodyEmitter):
    """Writes the body of one kernel for blocks of `threads`; `ranges` are those of the variables around this place."""

    threads: int = 1
    ranges: Ranges = field(default_factory=dict)

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case For() | Let():
                BodyEmitter.statement(self.replace(ranges=ranges_inside(stmt, self.ranges)), stmt)
            case Barrier():
                self.writer.put("call void @llvm.nvvm.barrier0()")
                self.writer.loaded.clear()  # other threads may have written since
            case Allocate() if stmt.buffer.scope == "shared":
                self.statement(stmt.body)
            case Shuffle():
                self.shuffle(stmt)
            case TensorStmt():
                emit_tensor(self, stmt)
            case _:
                super().statement(stmt)

    def room(self, buffer: Buffer, count: int) -> int:
        """Room on the stack in whole vectors, for what LLVM reads past an element."""
        item = item_bytes(buffer.dtype)
        return -(-count * item // VECTOR_BYTES) * VECTOR_BYTES // item

    def shuffle(self, stmt: Shuffle) -> None:
        value = shuffle(self.result, self.evaluate(stmt.value), stmt.distance, stmt.width, self.threads)
        stored = self.to_memory(value, stmt.buffer.dtype)
        pointer = self.pointer_to(self.locate(stmt.buffer, stmt.indices), stmt.buffer)
        kind, align = memory_type(stmt.buffer.dtype), item_bytes(stmt.buffer.dtype)
        self.writer.put(f"store {kind} {stored.text}, ptr {pointer}, align {align}")
        self.writer.loaded.pop(stmt.buffer.name, None)

    def loop(self, loop: For) -> None:
        """As for CPUs; but loads for the next iteration stay in this iteration: LLVM would rather load at the beginning
        of the next, where tensor cores would wait.
        """
        if loop.kind is LoopKind.SERIAL and any(isinstance(stmt, Mma) for stmt in walk_stmt(loop.body)):
            with self.writer.loop("0", str(loop.extent)) as counter:
                self.bind(loop.var, counter).statement(loop.body)
                self.writer.put(_FENCE)
        else:
            super().loop(loop)

    def atom(self, expr: Expr) -> tuple[Value, int]:
        """As for CPUs, but the remainder of a loop's counter by a number that is no power of two, such as the tile of a
        pipeline in an iteration, is counted along: dividing takes ten dependent instructions.
        """
        if isinstance(expr, Binary) and expr.op is BinaryOp.FLOORMOD and isinstance(expr.rhs, Const):
            form, length = affine(expr.lhs), int(expr.rhs.value)
            counter = self.counter_of(form)
            # LLVM makes an `and` of the remainder by a power of two.
            if counter is not None and length & (length - 1):
                return self.ring(counter, form.const % length, length), counter.depth
        return super().atom(expr)

    def form(self, buffer: Buffer, indices: tuple[Expr, ...]) -> IndexForm:
        """As for CPUs, with the digits of one number joined again."""
        return self.memo(_joined_index, buffer.shape, indices)

    def binary(self, expr: Binary) -> Value:
        """As for CPUs, but an integer that fits 31 bits is divided as such: 64 bits take four times as long."""
        if expr.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD) and expr.dtype == INDEX and isinstance(expr.rhs, Const):
            low, high = limits(affine(expr.lhs), self.ranges)
            lhs = self.evaluate(expr.lhs)
            if low >= 0 and high < _HALF and 0 < expr.rhs.value < _HALF and lhs.lanes == 1:
                short = self.writer.value(f"trunc i64 {lhs.text} to i32")
                done = "udiv" if expr.op is BinaryOp.FLOORDIV else "urem"
                divided = self.writer.value(f"{done} i32 {short}, {int(expr.rhs.value)}")
                return self.result(f"zext nneg i32 {divided} to i64", 1, INDEX)
        return super().binary(expr)

    def counter_of(self, form: IndexForm) -> Scalar | None:
        """The counter of a loop from 0 on that an index is, plus a constant; None for others."""
        (atom,) = form.terms if len(form.terms) == 1 else (None,)
        bound = None if atom is None or form.terms[atom] != 1 else self.binding(atom)
        if isinstance(bound, Scalar) and bound.loop is not None and bound.loop.low == "0":
            return bound
        return None

    def ring(self, counter: Scalar, start: int, length: int) -> Value:
        """A number that starts at `start` in a loop's first iteration and counts up, from `length` - 1 on to 0."""
        loop, known = counter.loop, self.writer.scopes[counter.depth].known
        assert loop is not None
        key = ("ring", counter.text, start, length)
        if key not in known:
            name = self.writer.fresh("ring")
            loop.carried.append(f"  {name} = phi i32 [ {start}, %{loop.before} ], [ {name}.next, %{loop.tail} ]")
            loop.steps.append(f"  {name}.up = add nuw nsw i32 {name}, 1")
            loop.steps.append(f"  {name}.ends = icmp eq i32 {name}.up, {length}")
            loop.steps.append(f"  {name}.next = select i1 {name}.ends, i32 0, i32 {name}.up")
            self.writer.hoist(counter.depth, key, f"zext i32 {name} to i64")
        return Value(known[key], 1, INDEX)

    def known(self, atom: Expr) -> int | None:
        """The value of a variable whose loop is unrolled; None for others."""
        bound = self.binding(atom)
        return bound if isinstance(bound, int) else None

    def alignment(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> int:
        """Bytes that divide the address of an access: a vector is one access only if all of its bytes are aligned.
        Elements that a thread accesses singly are often neighbors, which LLVM joins if it knows their alignment.
        """
        item = item_bytes(buffer.dtype)
        if lanes == 1:
            is_private = buffer.scope in ("local", "register")
            return item if is_private else element_alignment(buffer, self.form(buffer, indices), self.known)
        ramp = self.ramp()
        if self.vector is None or ramp is None:
            return item
        first = gcd(first_alignment(buffer, indices, self.vector), start_alignment(buffer))
        chunk = (
            ramp.lanes if ramp.base is not None else 0
        )  # each iteration of a long loop begins a multiple of it further
        return gcd(first, ramp.offset * item, chunk * item, VECTOR_BYTES)


def _joined_index(shape: tuple[int, ...], indices: tuple[Expr, ...]) -> IndexForm:
    return join_digits(flat_index(shape, indices))
