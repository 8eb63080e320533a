"""The PTX of warpgroup instructions, as inline assembly.

LLVM has no intrinsics for them. The start of a multiplication is one piece of assembly, so that nothing comes between
its instructions: touching registers between them would make the assembler serialize them.
"""

from collections.abc import Iterator

from retune.compiler.core.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.tensor_core import COLUMNS, CORE, GROUP_ROWS, SUM_ELEMENTS, SWIZZLED, GroupLayout, WarpgroupMma

PROXY_FENCE = "fence.proxy.async.shared::cta;"

ADDRESS_MASK, ADDRESS_SHIFT = (1 << 18) - 1, 4
"""PTX ISA, matrix descriptors: 18 bits of byte addresses and distances, in units of 16 bytes."""
_LEADING_BIT, _STRIDE_BIT, _SWIZZLE_BIT = 16, 32, 62
_SWIZZLES = dict(zip((CORE, *SWIZZLED), (0, 3, 2, 1), strict=True))
"""The number of a swizzling mode by the halves in a line."""
_TYPES = {"float16": "f16", BFLOAT16: "bf16"}


def wait_text(pending: int) -> str:
    """The instruction that waits for all multiplications but the `pending` youngest."""
    return f"wgmma.wait_group.sync.aligned {pending};"


def descriptor_bits(layout: GroupLayout, dtype: str) -> int:
    """The descriptor of a factor, without its address."""
    size = item_bytes(dtype)
    # PTX ISA, canonical layouts: from slab to slab, and from eight lines to the next eight. Without swizzle and with
    # neighbors along the rows the two are swapped.
    leading, stride = layout.lines * layout.width * size, CORE * layout.width * size
    if layout.transposed and layout.width == CORE:
        leading, stride = stride, leading
    distances = _encode(leading) << _LEADING_BIT | _encode(stride) << _STRIDE_BIT
    return distances | _SWIZZLES[layout.width] << _SWIZZLE_BIT


def multiply_text(stmt: WarpgroupMma) -> Iterator[str]:
    """The lines of a multiplication. Its operands, `$0` and so on, are the sums, then the descriptors of the left and
    of the right factor.
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
    row_sums = shape.columns * SUM_ELEMENTS
    # An instruction's factors begin in a line whose pieces are in order; the tensor cores swizzle the addresses.
    for step in range(shape.steps):
        depth = step * stmt.instruction.depth
        right = _encode(stmt.right_layout.offset(0, depth) * size)
        for row in range(shape.rows):
            left = _encode(stmt.left_layout.offset(row * GROUP_ROWS, depth) * size)
            sums = ", ".join(f"${row * row_sums + number}" for number in range(row_sums))
            yield f"add.s64 left, ${shape.sums}, {left};"
            yield f"add.s64 right, ${shape.sums + 1}, {right};"
            yield f"{name} {{{sums}}}, left, right, add, 1, 1, {transposed};"
    yield "wgmma.commit_group.sync.aligned;"
    yield "}"


def _encode(distance: int) -> int:
    return (distance & ADDRESS_MASK) >> ADDRESS_SHIFT
