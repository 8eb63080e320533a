"""Finds whether a target can look up sixteen floats in a register, and scale them, in one instruction each.

It compiles a small function that LLVM lowers to these instructions where they exist; there is no list of CPUs.
"""

from functools import lru_cache

from retune.compiler.codegen.cpu import assembly, describe, function_attributes
from retune.compiler.core.target import Target

_PROBE = """
define <16 x float> @probe(<16 x float> %a, <16 x i32> %b) ATTRIBUTES {
  %r = call <16 x float> @llvm.ldexp.v16f32.v16i32(<16 x float> %a, <16 x i32> %b)
  ret <16 x float> %r
}
"""
"""Becomes vscalefps on zmm registers, whose extension also has vpermps."""
PERMUTE_BYTES = 64
"""The necessary width of the registers."""


@lru_cache(maxsize=16)
def has_table_permute(target: Target) -> bool:
    """Whether code for the target may use `VectorBuilder.looked_up` and `VectorBuilder.scaled_by_floor`.

    Raises: TargetError when there is no code generation for the target.
    """
    if not describe(target)[0].startswith("x86_64"):
        return False
    lines = assembly(_PROBE.replace("ATTRIBUTES", function_attributes(PERMUTE_BYTES)), target).splitlines()
    return any("vscalefps" in line and "zmm" in line for line in lines)
