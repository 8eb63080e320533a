"""Writes a function that asks an x86 CPU whether it has the features that compiled code uses.

An instruction that a CPU lacks ends the process. So a library that any program may load, as those of `custom_ops`,
calls the function before other code.
"""

from collections.abc import Collection, Sequence

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import INT, CFunction, CModule

CPUID_BITS = {
    "sse3": (1, 0, 2, 0), "ssse3": (1, 0, 2, 9), "fma": (1, 0, 2, 12), "sse4.1": (1, 0, 2, 19),
    "sse4.2": (1, 0, 2, 20), "movbe": (1, 0, 2, 22), "popcnt": (1, 0, 2, 23), "avx": (1, 0, 2, 28),
    "f16c": (1, 0, 2, 29), "bmi": (7, 0, 1, 3), "avx2": (7, 0, 1, 5), "bmi2": (7, 0, 1, 8), "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17), "avx512ifma": (7, 0, 1, 21), "avx512cd": (7, 0, 1, 28), "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31), "avx512vbmi": (7, 0, 2, 1), "avx512vbmi2": (7, 0, 2, 6), "gfni": (7, 0, 2, 8),
    "avx512vnni": (7, 0, 2, 11), "avx512bitalg": (7, 0, 2, 12), "avx512vpopcntdq": (7, 0, 2, 14),
    "avx512fp16": (7, 0, 3, 23), "avxvnni": (7, 1, 0, 4), "avx512bf16": (7, 1, 0, 5), "lzcnt": (0x80000001, 0, 2, 5),
}  # fmt: skip
"""Where CPUID reports a feature: its leaf and sub-leaf, the register (of eax, ebx, ecx, edx) and the bit.
These are the features that LLVM uses for code such as ours, in its words.
"""

_SAVES_VECTORS, _OF_AVX, _OF_AVX512 = (1, 0, 2, 27), 0b110, 0b11100110
"""Bit of CPUID: the system saves the registers that XCR0 names. Bits of that: XMM and YMM; and those of AVX-512."""

_CLOBBERS = "~{dirflag},~{fpsr},~{flags}"
_CPUID = "cpuid", 4, "={ax},={bx},={cx},={dx},{ax},{cx}"
_XGETBV = "xgetbv", 2, "={ax},={dx},{cx}"
"""Instructions: the number of registers that they write, and the registers that they write and read."""


def cpu_guard(module: CModule, name: str, triple: str, needs: Collection[str]) -> ir.Function:
    """Define the function `i1 NAME()` in `module`: true if the CPU has all features in `needs`, which are LLVM's names.
    Features that `CPUID_BITS` lacks are ignored. Unless `triple` is of x86-64, the function is always true.
    """
    tested = [feature for feature in needs if feature in CPUID_BITS and triple.startswith("x86_64")]
    locations = [CPUID_BITS[feature] for feature in tested]
    registers = 0
    # CPUID reports the CPU, XCR0 whether the system saves the wide registers: without that they fault.
    if any(feature.startswith("avx") for feature in tested):
        locations.append(_SAVES_VECTORS)
        registers = _OF_AVX512 if any(feature.startswith("avx512") for feature in tested) else _OF_AVX
    # One CPUID a leaf, all of whose bits are tested together.
    masks: dict[tuple[int, int], list[int]] = {}
    for leaf, sub, register, bit in locations:
        masks.setdefault((leaf, sub), [0, 0, 0, 0])[register] |= 1 << bit
    guard = module.define(name, "i1")
    for arguments, bits in sorted(masks.items()):
        _require(guard, _CPUID, arguments, bits)
    # Only here: XGETBV itself faults without OSXSAVE (`_SAVES_VECTORS`), which was tested above.
    if registers:
        _require(guard, _XGETBV, (0,), [registers])
    guard.ret(1)
    return guard.function


def _require(
    guard: CFunction, instruction: tuple[str, int, str], arguments: Sequence[int], masks: Sequence[int]
) -> None:
    """Return false unless the registers that an instruction writes have all bits of `masks`."""
    builder = guard.builder
    name, count, registers = instruction
    kind = ir.FunctionType(ir.LiteralStructType([INT] * count), [INT] * len(arguments))
    results = builder.asm(kind, name, f"{registers},{_CLOBBERS}", list(map(INT, arguments)), side_effect=True)
    for register, mask in enumerate(masks):
        if mask:
            bits = builder.and_(builder.extract_value(results, register), INT(mask))
            with guard.unless(guard.equals(bits, mask)):
                guard.ret(0)
