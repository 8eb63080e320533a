"""Generates a kernel that evicts cache lines from all caches (x86 only).

Its only argument is an int64 array of shape (RANGES, 2): the address of a first line, and the number of following lines
(0: nothing to do). A line is 64 bytes.
"""

from functools import lru_cache

from retune.compiler.codegen.abi.c_module import LONG, POINTER, CModule
from retune.compiler.codegen.cpu import compile_module, describe
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact

RANGES = 64
"""Most buffers of one call."""
LINE = 64

_NAME = "retune_flush"


@lru_cache(maxsize=1)
def flush_kernel() -> KernelArtifact | None:
    """The kernel; None where the CPU has no known instruction for it."""
    target = Target.host()
    triple, _, features = describe(target)
    if not triple.startswith("x86_64"):
        return None
    # clflushopt, unlike clflush, is not ordered with other flushes: many are in flight until the fence at the end.
    several = "+clflushopt" in features.split(",")
    text = _kernel_text("clflushopt" if several else "sse2.clflush")
    table = ArgSpec("table", (RANGES, 2), "int64", False)
    return KernelArtifact(_NAME, compile_module(text, target), (table,), 0, str(target))


def _kernel_text(instruction: str) -> str:
    """The kernel as LLVM text; `instruction` evicts one line."""
    module = CModule()
    evict = module.declare(f"llvm.x86.{instruction}", "void", "ptr")
    kernel = module.define(_NAME, "i32", "ptr, i32", "")
    table = kernel.load(POINTER, kernel.args[0])
    with kernel.loop(LONG(RANGES)) as number:
        row = kernel.at(table, kernel.builder.mul(number, LONG(16)))
        first = kernel.load(POINTER, row)
        with kernel.loop(kernel.load(LONG, row, 8)) as line:
            kernel.call(evict, kernel.at(first, kernel.builder.mul(line, LONG(LINE))))
    kernel.call(module.declare("llvm.x86.sse2.mfence", "void"))
    kernel.ret(0)
    return str(module)
