"""Finds a target's instructions for dot products of bytes and of bfloat16.

It compiles small functions that LLVM lowers to these instructions where they exist; there is no list of CPUs. A CPU
with unknown instructions has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from retune.compiler.codegen.cpu import assembly, describe
from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.target import Target
from retune.compiler.ir.dot import BYTES, WIDENED, Pair
from retune.compiler.schedule.task import SearchTask


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """An LLVM intrinsic `(sums, lhs, rhs)` by the number of sums; the factors are vectors of `element`. For `i16` it
    is one of `(lhs, rhs)` that adds pairs of products.
    """

    names: Mapping[int, str]
    element: str


_X86_BYTES = {size // 32: f"llvm.x86.avx512.vpdpbusd.{size}" for size in (512, 256, 128)}
_X86_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
_X86_HALVES = {size // 32: f"llvm.x86.avx512bf16.dpbf16ps.{size}" for size in (512, 256, 128)}

_X86_PROBE = """
define <4 x i32> @bytes(<4 x i32> %c, <8 x i16> %a, <8 x i16> %b) {
  %p = call <4 x i32> @llvm.x86.sse2.pmadd.wd(<8 x i16> %a, <8 x i16> %b)
  %r = add <4 x i32> %c, %p
  ret <4 x i32> %r
}
define <16 x i32> @wide(<16 x i32> %a, <16 x i32> %b) "prefer-vector-width"="512" "min-legal-vector-width"="512" {
  %r = add <16 x i32> %a, %b
  ret <16 x i32> %r
}
define <32 x i16> @pairs(<32 x i16> %a, <32 x i16> %b) "prefer-vector-width"="512" "min-legal-vector-width"="512" {
  %r = add <32 x i16> %a, %b
  ret <32 x i16> %r
}
define <16 x bfloat> @halves(<16 x float> %a) "prefer-vector-width"="512" "min-legal-vector-width"="512" {
  %r = fptrunc <16 x float> %a to <16 x bfloat>
  ret <16 x bfloat> %r
}
"""
"""`bytes` becomes vpdpwssd, an instruction of the same extension, `wide` uses zmm, `pairs` does with products of 16
bits, `halves` becomes vcvtneps2bf16.
"""

_ARM_PROBE = """
define i32 @bytes(<16 x i8> %a) {
  %w = zext <16 x i8> %a to <16 x i32>
  %r = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %w)
  ret i32 %r
}
define <4 x bfloat> @halves(<4 x float> %a) {
  %r = fptrunc <4 x float> %a to <4 x bfloat>
  ret <4 x bfloat> %r
}
"""
"""`bytes` becomes udot, `halves` becomes bfcvtn."""


def dots_of(task: SearchTask) -> Mapping[Pair, DotInstruction]:
    """The instructions of a task's target, if there are narrow numbers to multiply.

    Raises: TargetError as `dot_instructions`.
    """
    narrow = any(tensor.dtype in (*BYTES, BFLOAT16) for tensor in task.dag.inputs)
    return dot_instructions(task.target) if narrow else {}


@lru_cache(maxsize=16)
def dot_instructions(target: Target) -> Mapping[Pair, DotInstruction]:
    """Instructions by the types of their factors, in the instruction's order.

    Raises: TargetError when there is no code generation for the target.
    """
    triple = describe(target)[0]
    if triple.startswith("x86_64"):
        return _of_x86(assembly(_X86_PROBE, target))
    if triple.startswith(("aarch64", "arm64")):
        return _of_arm(assembly(_ARM_PROBE, target))
    return {}


def _of_x86(probed: str) -> dict[Pair, DotInstruction]:
    # Without AVX-512 there may be AVX-VNNI, on half the width.
    widest = 16 if "zmm" in probed else 8
    instructions: dict[Pair, DotInstruction] = {}
    if "vpdpwssd" in probed:
        names = {lanes: name for lanes, name in _X86_BYTES.items() if lanes <= widest}
        instructions["uint8", "int8"] = DotInstruction(names, "i8")
    else:
        # Two bytes make 16 bits, and a pair of such products 32: pmaddwd never saturates, as pmaddubsw does.
        lines = [line for line in probed.splitlines() if "vpaddw" in line]
        most = 16 if any("zmm" in line for line in lines) else 8 if any("ymm" in line for line in lines) else 4
        names = {lanes: name for lanes, name in _X86_PAIRS.items() if lanes <= most}
        instructions[WIDENED, WIDENED] = DotInstruction(names, "i16")
    # On half the width the conversion alone proves nothing: a later extension has it without the dot product.
    if "vcvtneps2bf16" in probed and widest == 16:
        instructions[BFLOAT16, BFLOAT16] = DotInstruction(_X86_HALVES, "bfloat")
    return instructions


def _of_arm(probed: str) -> dict[Pair, DotInstruction]:
    instructions: dict[Pair, DotInstruction] = {}
    if "udot" in probed:
        # sdot and udot are one extension (dotprod); factors of different sign need another (i8mm), which is not probed.
        for kind, name in (("int8", "sdot"), ("uint8", "udot")):
            instructions[kind, kind] = DotInstruction({4: f"llvm.aarch64.neon.{name}.v4i32.v16i8"}, "i8")
    if "bfcvtn" in probed:
        instructions[BFLOAT16, BFLOAT16] = DotInstruction({4: "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}, "bfloat")
    return instructions
