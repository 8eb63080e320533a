"""In: the kernels of a GPU function. Out: their LLVM text, and the PTX that LLVM makes of it.

Always: the same expressions and loops as for a processor; added are the numbers of block and thread, shared memory and
barriers. A kernel takes the addresses of all parameters and then of the workspace, in order; they must not overlap.
"""

import llvmlite.binding as llvm

from compiler.codegen.body import BodyEmitter
from compiler.codegen.cpu import check_names, parse_module
from compiler.codegen.intrinsics import DECLARATIONS
from compiler.codegen.types import item_bytes, memory_type
from compiler.codegen.values import Scalar, Storage
from compiler.errors import LoweringError
from compiler.ir.expr import Buffer
from compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from compiler.ir.stmt import Allocate, Barrier, LoopKind, Stmt
from compiler.target import Target

_TRIPLE = "nvptx64-nvidia-cuda"
_OLDEST = "sm_70"
_VECTOR_BYTES = 16
_ALIGNMENT = 64
_REGISTERS = {
    LoopKind.BLOCK_X: "ctaid.x",
    LoopKind.BLOCK_Y: "ctaid.y",
    LoopKind.BLOCK_Z: "ctaid.z",
    LoopKind.THREAD_X: "tid.x",
    LoopKind.THREAD_Y: "tid.y",
    LoopKind.THREAD_Z: "tid.z",
}
"""Where the hardware keeps the number of the block and of the thread."""


def ptx(function: DeviceFunction, target: Target) -> str:
    """The PTX of all kernels, by default for the oldest GPU that is supported, which newer ones run too.

    Raises: LoweringError for functions that a GPU kernel cannot call, TargetError when LLVM does not know the GPU.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    arch = target.arch or _OLDEST
    check_names(target, (_TRIPLE, arch, ""))
    module = parse_module(write_device(function))
    machine = llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=arch, opt=3)
    module.triple = _TRIPLE
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    text: str = machine.emit_assembly(module)
    _check_calls(function.name, text)
    return text


def _check_calls(name: str, text: str) -> None:
    """Raises: LoweringError when the code needs functions of a library that GPUs lack."""
    needed = sorted({line.split()[-1].strip("();,") for line in text.splitlines() if line.startswith(".extern .func")})
    if needed:
        raise LoweringError(f"{name}: no code for GPUs for the library functions {', '.join(needed)}")


def write_device(function: DeviceFunction) -> str:
    """The module of a function's kernels."""
    parts = [_kernel(function, kernel, number) for number, kernel in enumerate(function.kernels)]
    reads = (f"declare i32 @llvm.nvvm.read.ptx.sreg.{register}()" for register in _REGISTERS.values())
    declarations = "\n".join(("declare void @llvm.nvvm.barrier0()", *reads, *DECLARATIONS))
    bounds = []
    for number, kernel in enumerate(function.kernels):
        extents = (f'!"maxntid{name}", i32 {extent}' for name, extent in zip("xyz", kernel.block, strict=True))
        bounds.append(f'!{number} = !{{ptr @{kernel.name}, !"kernel", i32 1, {", ".join(extents)}}}')
    names = ", ".join(f"!{number}" for number in range(len(bounds)))
    return "\n\n".join([declarations, *parts, "\n".join([f"!nvvm.annotations = !{{{names}}}", *bounds]), ""])


def _kernel(function: DeviceFunction, kernel: Kernel, number: int) -> str:
    buffers = (*function.params, *function.workspace)
    pointers = {buffer: f"%b{place}" for place, buffer in enumerate(buffers)}
    emitter = _DeviceEmitter(pointers, f"shared{number}_")
    for kind, register in _REGISTERS.items():
        if kernel.sizes[kind] == 1:
            emitter.env[INDICES[kind]] = 0
            continue
        name = register.replace(".", "")
        read = f"call range(i32 0, {kernel.sizes[kind]}) i32 @llvm.nvvm.read.ptx.sreg.{register}()"
        emitter.writer.entry.extend((f"  %{name}.narrow = {read}", f"  %{name} = zext i32 %{name}.narrow to i64"))
        emitter.env[INDICES[kind]] = Scalar(f"%{name}", 0)
    emitter.statement(kernel.body.body)
    emitter.writer.put("ret void")
    params = ", ".join(f"ptr noalias nocapture align {_ALIGNMENT} %b{place}" for place in range(len(buffers)))
    code = f"define ptx_kernel void @{kernel.name}({params}) {{\nentry:\n{emitter.writer.text()}\n}}"
    return "\n".join([*emitter.definitions(), code])


class _DeviceEmitter(BodyEmitter):
    """Writes the body of one kernel; its shared buffers are called `prefix` and their number."""

    def __init__(self, pointers: dict[Buffer, str], prefix: str) -> None:
        super().__init__(pointers, _VECTOR_BYTES)
        self.prefix = prefix
        self.shared: dict[Buffer, str] = {}

    def definitions(self) -> list[str]:
        """The lines that define the shared buffers."""
        return [
            f"@{name} = internal addrspace(3) global [{buffer.size} x {memory_type(buffer.dtype)}] poison, "
            f"align {_VECTOR_BYTES if buffer.nbytes % _VECTOR_BYTES == 0 else item_bytes(buffer.dtype)}"
            for buffer, name in self.shared.items()
        ]

    def statement(self, stmt: Stmt) -> None:
        """Write one statement."""
        if isinstance(stmt, Barrier):
            self.writer.put("call void @llvm.nvvm.barrier0()")
            self.writer.loaded.clear()  # others may have written since
        elif isinstance(stmt, Allocate) and stmt.buffer.scope == "shared":
            name = self.shared.setdefault(stmt.buffer, f"{self.prefix}{len(self.shared)}")
            self.storage[stmt.buffer] = Storage(f"addrspacecast (ptr addrspace(3) @{name} to ptr)")
            self.statement(stmt.body)
        else:
            super().statement(stmt)
