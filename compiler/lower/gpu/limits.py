"""In: a kernel and the limits of a GPU. Out: nothing, or the first limit that it breaks. Always: before any code."""

from compiler.errors import LoweringError
from compiler.ir.kernel import Kernel
from compiler.ir.stmt import For, LoopFunction, LoopKind, walk_stmt
from compiler.target import HardwareParams

_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_THREADS = (1024, 1024, 64)
"""Along x, y and z, of every NVIDIA GPU since 2012."""


def check_limits(kernel: Kernel, hardware: HardwareParams) -> None:
    """Refuse what no launch of the kernel could do.

    Raises: LoweringError naming the kernel, what it asks for, the limit and what to do.
    """
    for name, asked, most in zip("xyz", kernel.grid, _MOST_BLOCKS, strict=True):
        _demand(kernel, f"blocks along {name}", asked, most, "bind longer loops to threads")
    for name, asked, most in zip("xyz", kernel.block, _MOST_THREADS, strict=True):
        _demand(kernel, f"threads along {name}", asked, most, "bind shorter loops to threads")
    _demand(kernel, "threads in a block", kernel.threads, hardware.max_threads_per_block, "bind shorter loops to them")
    shared = kernel.bytes_of("shared")
    _demand(kernel, "bytes of shared memory", shared, hardware.max_shared_memory_per_block, "choose smaller tiles")
    local = kernel.bytes_of("local", "register")
    _demand(kernel, "bytes of local memory", local, hardware.max_local_memory_per_block, "choose smaller tiles")


def check_virtual_threads(function: LoopFunction, hardware: HardwareParams) -> None:
    """Refuse more virtual threads in a loop than one thread may run.

    Raises: LoweringError.
    """
    for stmt in walk_stmt(function.body):
        if isinstance(stmt, For) and stmt.kind is LoopKind.VTHREAD and stmt.extent > hardware.max_vthread_extent:
            raise LoweringError(
                f"{function.name}: {stmt.var} asks for {stmt.extent} virtual threads, a thread may run "
                f"{hardware.max_vthread_extent}; bind a shorter loop to them"
            )


def _demand(kernel: Kernel, what: str, asked: int, most: int, advice: str) -> None:
    if asked > most:
        raise LoweringError(f"{kernel.name}: asks for {asked} {what}, the GPU has {most}; {advice}")
