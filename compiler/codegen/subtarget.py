"""The instructions that the code of a kernel may use.

Whether a CPU looks up sixteen floats, or 64 bytes, in registers in one instruction each is found by compiling small
functions that LLVM lowers to these instructions where they exist; there is no list of CPUs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from retune.compiler.codegen.cpu import assembly, describe, function_attributes
from retune.compiler.codegen.dot_instructions import DotInstruction, dots_of
from retune.compiler.core.target import Target
from retune.compiler.ir.dot import Pair
from retune.compiler.schedule.task import SearchTask


@dataclass(frozen=True, slots=True)
class Subtarget:
    """What the code generator knows of a target."""

    vector_bytes: int
    """The width of a register."""
    dots: Mapping[Pair, DotInstruction] = field(default_factory=dict)
    """Dot-product instructions, by the types of their factors."""
    permutes_tables: bool = False
    """There are the instructions of `VectorBuilder.look_up`, `VectorBuilder.scale_by_floor` and `gather_items`."""
    permutes_bytes: bool = False
    """There are the instructions of `byte_tables`."""
    has_library: bool = True
    """Functions of the C library can be called."""


def subtarget_of(task: SearchTask) -> Subtarget:
    """The instructions of the CPU of a task. Raises: TargetError when there is no code generation for it."""
    width = task.hardware.vector_unit_bytes
    is_wide = width >= PERMUTE_BYTES
    tables, permutes_bytes = (is_wide and has(task.target) for has in (has_table_permute, has_byte_permute))
    return Subtarget(width, dots_of(task), tables, permutes_bytes)


_PROBE = """
define <16 x float> @probe(<16 x float> %a, <16 x i32> %b) ATTRIBUTES {
  %r = call <16 x float> @llvm.ldexp.v16f32.v16i32(<16 x float> %a, <16 x i32> %b)
  ret <16 x float> %r
}
"""
"""Becomes vscalefps on zmm registers, whose extension also has vpermps."""
_BYTES_PROBE = """
define <64 x i8> @probe(<64 x i8> %a) ATTRIBUTES {
  %r = shufflevector <64 x i8> %a, <64 x i8> poison, <64 x i32> <ORDER>
  ret <64 x i8> %r
}
""".replace("ORDER", ", ".join(f"i32 {37 * lane % 64}" for lane in range(64)))
"""Becomes vpermb on zmm registers, whose extension (VBMI) also has vpermi2b."""
PERMUTE_BYTES = 64
"""The necessary width of the registers."""


@lru_cache(maxsize=16)
def has_table_permute(target: Target) -> bool:
    """Whether code for the target may use `VectorBuilder.look_up` and `VectorBuilder.scale_by_floor`.

    Raises: TargetError when there is no code generation for the target.
    """
    return _has(_PROBE, "vscalefps", target)


@lru_cache(maxsize=16)
def has_byte_permute(target: Target) -> bool:
    """Whether code for the target may look up bytes by `vpermi2b`. Raises: as `has_table_permute`."""
    return _has(_BYTES_PROBE, "vpermb", target)


def _has(probe: str, instruction: str, target: Target) -> bool:
    if not describe(target)[0].startswith("x86_64"):
        return False
    lines = assembly(probe.replace("ATTRIBUTES", function_attributes(PERMUTE_BYTES)), target).splitlines()
    return any(instruction in line and "zmm" in line for line in lines)
