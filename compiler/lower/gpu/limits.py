"""Check a kernel against the limits of a GPU, before any code is made."""

from enum import StrEnum

from retune.compiler.core.errors import DeviceLimitError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.rewrite import find_stmts
from retune.compiler.ir.stmt import BLOCK_KINDS, THREAD_KINDS, For, LoopFunction, LoopKind

# Compute capability 3.0 and later (CUDA C++ Programming Guide, technical specifications).
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
MOST_THREADS = (1024, 1024, 64)
"""Along x, y and z, of every NVIDIA GPU since 2012."""


class Limit(StrEnum):
    """The limited resources of a GPU, in the order in which a kernel is checked."""

    VIRTUAL_THREADS = "virtual threads"
    BLOCKS_X = "blocks along x"
    BLOCKS_Y = "blocks along y"
    BLOCKS_Z = "blocks along z"
    THREADS_X = "threads along x"
    THREADS_Y = "threads along y"
    THREADS_Z = "threads along z"
    THREADS = "threads in a block"
    SHARED = "bytes of shared memory"
    LOCAL = "bytes of local memory"


BLOCK_LIMITS = dict(zip(BLOCK_KINDS, (Limit.BLOCKS_X, Limit.BLOCKS_Y, Limit.BLOCKS_Z), strict=True))
THREAD_LIMITS = dict(zip(THREAD_KINDS, (Limit.THREADS_X, Limit.THREADS_Y, Limit.THREADS_Z), strict=True))

_ADVICE = {
    **dict.fromkeys(BLOCK_LIMITS.values(), "bind longer loops to threads"),
    **dict.fromkeys(THREAD_LIMITS.values(), "bind shorter loops to threads"),
    Limit.THREADS: "bind shorter loops to them",
    Limit.SHARED: "choose smaller tiles",
    Limit.LOCAL: "choose smaller tiles",
}


def most_of(hardware: HardwareParams) -> dict[Limit, int]:
    """The amount of every resource of a GPU."""
    return {
        Limit.VIRTUAL_THREADS: hardware.max_vthread_extent,
        **dict(zip(BLOCK_LIMITS.values(), MOST_BLOCKS, strict=True)),
        **dict(zip(THREAD_LIMITS.values(), MOST_THREADS, strict=True)),
        Limit.THREADS: hardware.max_threads_per_block,
        Limit.SHARED: hardware.max_shared_memory_per_block,
        Limit.LOCAL: hardware.max_local_memory_per_block,
    }


def check_limits(kernel: Kernel, hardware: HardwareParams) -> None:
    """Refuse a kernel that cannot be launched.

    Raises: DeviceLimitError naming the kernel, the amount, the limit and a remedy.
    """
    sizes = kernel.sizes
    required = {
        **{limit: sizes[kind] for kind, limit in (*BLOCK_LIMITS.items(), *THREAD_LIMITS.items())},
        Limit.THREADS: kernel.threads,
        Limit.SHARED: kernel.bytes_of("shared"),
        Limit.LOCAL: kernel.bytes_of("local"),
    }
    most = most_of(hardware)
    for limit, count in required.items():
        if count > most[limit]:
            text = f"{kernel.name}: asks for {count} {limit}, the GPU has {most[limit]}; {_ADVICE[limit]}"
            raise DeviceLimitError(text, limit)


def check_virtual_threads(function: LoopFunction, hardware: HardwareParams) -> None:
    """Refuse more virtual threads in a loop than one thread may run. Raises: DeviceLimitError."""
    for stmt in find_stmts(For, function.body):
        if stmt.kind is LoopKind.VTHREAD and stmt.extent > hardware.max_vthread_extent:
            raise DeviceLimitError(
                f"{function.name}: {stmt.var} asks for {stmt.extent} virtual threads, a thread may run "
                f"{hardware.max_vthread_extent}; bind a shorter loop to them",
                Limit.VIRTUAL_THREADS,
            )
