"""The PTX of warpgroup instructions, as inline assembly.

LLVM has no intrinsics for them. What starts a multiplication is one piece of assembly, so that nothing comes between
its instructions: registers that are touched between them would make the assembler serialize them.
"""

from collections.abc import Callable, Iterator

from retune.compiler.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.tensor_core import COLUMNS, CORE, SUM_ELEMENTS, GroupLayout, WarpgroupMma

PROXY_FENCE = "fence.proxy.async.shared::cta;"

ADDRESS_MASK, ADDRESS_SHIFT = (1 << 18) - 1, 4
"""PTX ISA, matrix descriptors: of byte addresses and distances, 18 bits count, in units of 16 bytes."""
_LEADING_BIT, _STRIDE_BIT = 16, 32
_TYPES = {"float16": "f16", BFLOAT16: "bf16"}


def wait_text(pending: int) -> str:
    """The instruction that waits for multiplications but the youngest."""
    return f"wgmma.wait_group.sync.aligned {pending};"


def descriptor_bits(layout: GroupLayout, dtype: str) -> int:
    """The descriptor of a factor but for its address; swizzle mode 0 is none."""
    size = item_bytes(dtype)
    leading, stride = (_encoded(distance * size) for distance in (layout.leading, layout.stride))
    return leading << _LEADING_BIT | stride << _STRIDE_BIT


def multiply_text(stmt: WarpgroupMma, operand: Callable[[int], str]) -> Iterator[str]:
    """The lines of a multiplication. Its operands are the sums, then the descriptors of the left and of the right
    factor; `operand` writes the one of a number.
    """
    shape, kind = stmt.shape, _TYPES[stmt.instruction.dtype]
    name = f"wgmma.mma_async.sync.aligned.m64n{shape.columns * COLUMNS}k16.f32.{kind}.{kind}"
    transposed = f"{int(stmt.left_layout.transposed)}, {int(stmt.right_layout.transposed)}"
    size = item_bytes(stmt.instruction.dtype)
    yield "{"
    yield ".reg .pred add;"
    yield ".reg .b64 left, right;"
    yield "setp.eq.u32 add, 0, 0;"
    yield "wgmma.fence.sync.aligned;"
    each = shape.columns * SUM_ELEMENTS
    for step in range(shape.steps):
        # A step is two core matrices further along the depth, 64 rows are eight further along the rows.
        right = _encoded(2 * step * stmt.right_layout.leading * size)
        for row in range(shape.rows):
            left = _encoded((2 * step * stmt.left_layout.leading + CORE * row * stmt.left_layout.stride) * size)
            sums = ", ".join(operand(row * each + number) for number in range(each))
            yield f"add.s64 left, {operand(shape.sums)}, {left};"
            yield f"add.s64 right, {operand(shape.sums + 1)}, {right};"
            yield f"{name} {{{sums}}}, left, right, add, 1, 1, {transposed};"
    yield "wgmma.commit_group.sync.aligned;"
    yield "}"


def _encoded(distance: int) -> int:
    return (distance & ADDRESS_MASK) >> ADDRESS_SHIFT
