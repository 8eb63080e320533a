"""The hardware parameters of targets and of the GPUs that are there.

They say what the target's own instruction set offers, never more, as LLVM itself uses it.
"""

from dataclasses import replace

from retune.compiler.codegen.backend import CUDA_HARDWARE, backend_of
from retune.compiler.codegen.nvidia.nvptx import check_gpu
from retune.compiler.codegen.nvidia.ptxas import assembles
from retune.compiler.core import config
from retune.compiler.core.errors import TargetError
from retune.compiler.core.gpu_facts import group_tensor_of, runs_code
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.runtime.cuda.driver_interface import GpuDevice


def hardware_of(target: Target, threads: int) -> HardwareParams:
    """Parameters of `target` for kernels that run on `threads` threads; a GPU has its own number of them.

    Raises: TargetError when LLVM does not know the triple, the CPU, a feature or the GPU, or that is too old.
    """
    return backend_of(target).hardware(target, threads)


def threads_of(target: Target, threads: int | None) -> int:
    """How many threads a network for `target` is compiled for: `threads`, else as many as the settings, or the target,
    say, else all cores.
    """
    return threads or config.thread_count(target.num_cores or config.usable_cores())


def hardware_of_gpu(device: GpuDevice, target: Target | None = None) -> HardwareParams:
    """Parameters of a GPU that is there, with the numbers that its driver tells, for code for a target; by default for
    a target that names the architecture of the device.
    """
    arch = device.arch if target is None else target.arch
    return replace(
        CUDA_HARDWARE,
        max_shared_memory_per_block=device.max_shared_memory_per_block,
        max_threads_per_block=device.max_threads_per_block,
        warp_size=device.warp_size,
        facts=replace(device.facts, group_tensor=group_tensor_of(arch)),
    )


def target_on(target: Target, device: GpuDevice) -> Target:
    """A target as it is tuned on a GPU: for that GPU's architecture where none is named, since code for the oldest
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


def complete(hardware: HardwareParams, target: Target) -> HardwareParams:
    """The parameters with what was left at 0 filled in: the limits of a GPU, when `target` is a GPU, or what no CPU
    can be without. Raises: TargetError as `hardware_of`.
    """
    return backend_of(target).complete(hardware, target)
