"""The operations of the compiler that depend on the kind of target: a `Backend` for CPUs and another for GPUs.

`backend_of` alone chooses between them: the parameters of the hardware, the default schedule, how a program becomes a
kernel, and its stages as text. Plain facts about a kind of target are in `TARGET_KINDS`
(`retune.compiler.core.target`).
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Protocol

from retune.compiler.codegen.cpu import assembly, compile_module, describe, vector_bytes
from retune.compiler.codegen.dot_instructions import dot_instructions, dots_of
from retune.compiler.codegen.kernel import KernelText, write_kernel
from retune.compiler.codegen.nvidia.device_build import build_device_kernel
from retune.compiler.codegen.nvidia.nvptx import GPU_TRIPLE, check_gpu, ptx, write_device
from retune.compiler.codegen.subtarget import subtarget_of
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import LoweringError, refuse_depth
from retune.compiler.core.gpu_facts import STATIC_SHARED, facts_of, most_shared_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.ir import trace
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.lower.pipeline import lower
from retune.compiler.lower.symbolic import Unsupported, lower_symbolic
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.symbols import symbols_of

BASE_VECTOR_BYTES = 16
"""Bytes of the narrowest vector register: NEON's, and a GPU's widest load."""

CUDA_HARDWARE = HardwareParams(
    # TVM's defaults for CUDA: no core count, no limit of local memory, virtual threads up to a quarter of a warp.
    num_cores=-1,
    vector_unit_bytes=BASE_VECTOR_BYTES,
    cache_line_bytes=64,
    max_shared_memory_per_block=STATIC_SHARED,
    max_local_memory_per_block=2**31 - 1,
    max_threads_per_block=1024,
    max_vthread_extent=8,
    warp_size=32,
)
"""The limits of every NVIDIA GPU."""


class Backend(Protocol):
    stages: tuple[str, ...]
    """The stages of a kernel that `print_stage` knows, in the order of compilation."""

    def describe(self, target: Target) -> tuple[str, str, str]:
        """LLVM's triple, CPU and features. Raises: TargetError when LLVM does not know a name."""
        ...

    def hardware(self, target: Target, threads: int) -> HardwareParams:
        """The parameters that steer search and code generation. Raises: TargetError as `describe`."""
        ...

    def complete(self, hardware: HardwareParams, target: Target) -> HardwareParams:
        """`hardware` with the target's values for fields left at 0. Raises: TargetError as `describe`."""
        ...

    def default_steps(self, dag: ComputeDAG, hardware: HardwareParams) -> tuple[Step, ...]: ...

    def build(self, task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
        """Compile a program. Raises: ScheduleError, LoweringError, TargetError."""
        ...

    def lower(self, task: SearchTask, steps: Sequence[Step], name: str) -> LoopFunction | DeviceFunction:
        """The loops of a program. Raises: ScheduleError, LoweringError."""
        ...

    def print_stage(self, task: SearchTask, steps: Sequence[Step], stage: str) -> str:
        """A program at one of `stages`, as text. Raises: as `build`."""
        ...


class CpuBackend:
    """Kernels that LLVM compiles for a CPU."""

    stages: tuple[str, ...] = ("loops", "llvm", "asm")

    def describe(self, target: Target) -> tuple[str, str, str]:
        return describe(target)

    def hardware(self, target: Target, threads: int) -> HardwareParams:
        width, registers = self._vector_unit(target)
        return HardwareParams(
            num_cores=threads,
            vector_unit_bytes=width,
            vector_registers=registers,
            has_bfloat16_dots=(BFLOAT16, BFLOAT16) in dot_instructions(target),
        )

    def complete(self, hardware: HardwareParams, target: Target) -> HardwareParams:
        # Only what every CPU has: 0 is the right value of a GPU's limits.
        needed = ("num_cores", "vector_unit_bytes", "cache_line_bytes", "vector_registers")
        missing = [name for name in needed if getattr(hardware, name) < 1]
        usual = self.hardware(target, len(usable_cpus())) if missing else hardware
        return replace(hardware, **{name: getattr(usual, name) for name in missing})

    def default_steps(self, dag: ComputeDAG, hardware: HardwareParams) -> tuple[Step, ...]:
        # The schedule of a block, not known here, is the default of a kernel with symbols.
        return () if symbols_of((*dag.inputs, *dag.outputs)) else default_steps(dag, hardware)

    def build(self, task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
        if task.symbols:
            kernel = self.build_symbolic(task, steps, name)
            if isinstance(kernel, Unsupported):
                raise LoweringError(f"no kernel for all sizes: {kernel.reason}")
            return kernel
        # An unknown CPU is a TargetError at once, before any lowering.
        describe(task.target)
        with refuse_depth(name, LoweringError):
            return self._compile(task, self.lower(task, steps, name))

    def build_symbolic(self, task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact | Unsupported:
        """Compile a computation with symbolic extents for all values of its symbols. Raises: as `build`."""
        describe(task.target)
        with refuse_depth(name, LoweringError):
            tensors = (*task.dag.inputs, *task.dag.outputs)
            function = lower_symbolic(tensors, name, task.hardware, task.layout, dots=dots_of(task), steps=steps)
            return function if isinstance(function, Unsupported) else self._compile(task, function)

    def _compile(self, task: SearchTask, function: LoopFunction) -> KernelArtifact:
        name, text = function.name, self._write(task, function)
        trace.show(trace.CODE, name, "LLVM IR", lambda: text.llvm)
        trace.show(trace.CODE, name, "assembly", lambda: assembly(text.llvm, task.target))
        packings = dict(function.packings)
        tensors = (*task.dag.inputs, *task.dag.outputs)
        args = []
        for position, (param, tensor) in enumerate(zip(function.params, tensors, strict=True)):
            is_output = position >= len(task.dag.inputs)
            args.append(ArgSpec(param.name, tensor.shape, tensor.dtype, is_output, packings.get(param.name)))
        code = compile_module(text.llvm, task.target)
        facts = text.workspace_bytes, str(task.target), text.calls
        return KernelArtifact(name, code, tuple(args), *facts, symbols=function.symbols, work=text.work)

    def print_stage(self, task: SearchTask, steps: Sequence[Step], stage: str) -> str:
        function = self.lower(task, steps, "kernel")
        if stage == "loops":
            return str(function)
        text = self._write(task, function).llvm
        return text if stage == "llvm" else assembly(text, task.target)

    @staticmethod
    def _vector_unit(target: Target) -> tuple[int, int]:
        """Bytes of a vector register, and the number of registers."""
        triple = describe(target)[0]
        if triple.startswith(("aarch64", "arm64")):
            # NEON: 32 registers of 128 bits.
            return BASE_VECTOR_BYTES, 32
        if not triple.startswith("x86_64"):
            return BASE_VECTOR_BYTES, 16
        width = vector_bytes(target)
        # AVX-512's encoding (EVEX) names 32 registers, that of SSE and AVX 16.
        return width, 32 if width == 64 else 16

    def lower(self, task: SearchTask, steps: Sequence[Step], name: str) -> LoopFunction:
        return lower(replay(task.dag, steps), name, task.hardware, task.layout, dots=dots_of(task))

    @staticmethod
    def _write(task: SearchTask, function: LoopFunction) -> KernelText:
        return write_kernel(function, subtarget_of(task), task.hardware.stack_bytes)


class GpuBackend:
    """Kernels in PTX for an NVIDIA GPU."""

    stages: tuple[str, ...] = ("loops", "llvm", "ptx")

    def describe(self, target: Target) -> tuple[str, str, str]:
        check_gpu(target)
        return GPU_TRIPLE, target.arch, ""

    def hardware(self, target: Target, threads: int) -> HardwareParams:  # noqa: ARG002 a GPU has its own number
        check_gpu(target)
        most = most_shared_of(target.arch)
        return replace(CUDA_HARDWARE, max_shared_memory_per_block=most, facts=facts_of(target.arch))

    def complete(self, hardware: HardwareParams, target: Target) -> HardwareParams:
        known_fields = {field.name: value for field in fields(hardware) if (value := getattr(hardware, field.name))}
        return replace(self.hardware(target, 1), **known_fields)

    def default_steps(self, dag: ComputeDAG, hardware: HardwareParams) -> tuple[Step, ...]:  # noqa: ARG002 for all alike
        return default_gpu_steps(dag)

    def build(self, task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
        return build_device_kernel(task, steps, name)

    def lower(self, task: SearchTask, steps: Sequence[Step], name: str) -> DeviceFunction:
        return lower_for_gpu(replay(task.dag, steps), name, task.hardware)

    def print_stage(self, task: SearchTask, steps: Sequence[Step], stage: str) -> str:
        function = self.lower(task, steps, "kernel")
        match stage:
            case "loops":
                return str(function)
            case "llvm":
                return write_device(function)
            case _:
                return ptx(function, task.target)


_BACKENDS: dict[str, Backend] = {"llvm": CpuBackend(), "cuda": GpuBackend()}


def backend_of(target: Target) -> Backend:
    return _BACKENDS[target.kind]


def default_steps_of(task: SearchTask) -> tuple[Step, ...]:
    return backend_of(task.target).default_steps(task.dag, task.hardware)
