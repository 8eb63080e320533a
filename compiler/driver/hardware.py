"""In: a target and a number of threads. Out: the hardware parameters that steer search and code generation.

Always: what the target's own instruction set offers, never more, as LLVM itself uses it.
"""

from dataclasses import fields, replace

from retune.compiler.codegen.cpu import describe, vector_bytes
from retune.compiler.codegen.nvptx import check_gpu
from retune.compiler.codegen.ptxas import assembles
from retune.compiler.config import usable_processors
from retune.compiler.errors import TargetError
from retune.compiler.gpu_facts import STATIC_SHARED, facts_of, most_shared_of, runs_code
from retune.compiler.runtime.cuda_driver import GpuDevice
from retune.compiler.target import HardwareParams, Target

_PLAIN_BYTES = 16

_CUDA = HardwareParams(
    num_cores=-1,
    vector_unit_bytes=16,
    cache_line_bytes=64,
    max_shared_memory_per_block=STATIC_SHARED,
    max_local_memory_per_block=2**31 - 1,
    max_threads_per_block=1024,
    max_vthread_extent=8,
    warp_size=32,
)
"""What every NVIDIA GPU offers."""

_OF_PROCESSORS = ("num_cores", "vector_unit_bytes", "cache_line_bytes", "vector_registers")


def hardware_of(target: Target, threads: int) -> HardwareParams:
    """Parameters of `target` for kernels that run on `threads` threads; a GPU has its own number of them.

    Raises: TargetError when LLVM does not know the triple, the processor, a feature or the GPU, or that is too old.
    """
    if target.is_gpu:
        check_gpu(target)
        most = most_shared_of(target.arch)
        return replace(_CUDA, max_shared_memory_per_block=most, facts=facts_of(target.arch))
    width, registers = _vector_unit(target)
    return HardwareParams(num_cores=threads, vector_unit_bytes=width, vector_registers=registers)


def hardware_of_gpu(device: GpuDevice) -> HardwareParams:
    """Parameters of a GPU that is there, with the numbers that its driver tells."""
    return replace(
        _CUDA,
        max_shared_memory_per_block=device.max_shared_memory_per_block,
        max_threads_per_block=device.max_threads_per_block,
        warp_size=device.warp_size,
        facts=device.facts,
    )


def target_on(target: Target, device: GpuDevice) -> Target:
    """A target as it is tuned on a GPU: for that one's architecture where none is named, since code for the oldest one
    has neither its tensor cores nor its shared memory.

    Raises: TargetError when the GPU does not run code for the architecture that is named.
    """
    if not target.arch:
        here = Target("cuda", arch=device.arch, math=target.math)
        return here if _is_known(here) else target
    if not runs_code(device.arch, target.arch, assembled=assembles(target.arch)):
        raise TargetError(
            f"target {str(target)!r}: the GPU here, {device.name}, is {device.arch} and runs no code for "
            f"{target.arch}; name {device.arch}, or none"
        )
    return target


def _is_known(target: Target) -> bool:
    try:
        check_gpu(target)
    except TargetError:
        return False
    return True


def completed(hardware: HardwareParams, target: Target) -> HardwareParams:
    """The parameters with what was left at 0 filled in: the limits of a GPU, when `target` is one, or what no processor
    can be without. Raises: TargetError as `hardware_of`.
    """
    if not target.is_gpu:
        missing = [name for name in _OF_PROCESSORS if getattr(hardware, name) < 1]
        usual = hardware_of(target, len(usable_processors())) if missing else hardware
        return replace(hardware, **{name: getattr(usual, name) for name in missing})
    given = {field.name: value for field in fields(hardware) if (value := getattr(hardware, field.name))}
    return replace(hardware_of(target, 1), **given)


def _vector_unit(target: Target) -> tuple[int, int]:
    """Bytes of a vector register, and how many of them there are."""
    triple = describe(target)[0]
    if triple.startswith(("aarch64", "arm64")):
        return _PLAIN_BYTES, 32
    if not triple.startswith("x86_64"):
        return _PLAIN_BYTES, 16
    width = vector_bytes(target)
    return width, 32 if width == 64 else 16
