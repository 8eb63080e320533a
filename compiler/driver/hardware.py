"""In: a target and a number of threads. Out: the hardware parameters that steer search and code generation.

Always: what the target's own instruction set offers, never more; an unknown processor counts as a plain one.
"""

from compiler.codegen.cpu import describe
from compiler.target import HardwareParams, Target

_WIDE_CPUS = ("znver4", "znver5", "znver6", "skylake-avx512", "cascadelake", "cooperlake", "icelake", "sapphirerapids")
"""Starts of the LLVM names of x86 processors with full-width AVX-512, for targets that give a name and no features."""


def hardware_of(target: Target, threads: int) -> HardwareParams:
    """Parameters of `target` for kernels that run on `threads` threads."""
    width, registers = _vector_unit(target)
    return HardwareParams(num_cores=threads, vector_unit_bytes=width, vector_registers=registers)


def _vector_unit(target: Target) -> tuple[int, int]:
    """Bytes of a vector register, and how many of them there are."""
    triple, cpu, text = describe(target)
    features = set(text.split(","))
    if triple.startswith(("aarch64", "arm64")):
        return 16, 32
    if not triple.startswith("x86_64"):
        return 16, 16
    if "+avx512f" in features or (target.cpu and cpu.startswith(_WIDE_CPUS)):
        return 64, 32
    narrow = "+avx" not in features and cpu in ("generic", "x86-64")
    return (16 if narrow else 32), 16
