"""Emits warp shuffles: a thread gets the value of another thread of its warp.

The hardware moves 32-bit words; narrower values use one word, wider values two. No bit changes.
"""

from retune.compiler.codegen.types import item_bytes, llvm_type
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.tensor_core import WARP

_WORD_BITS = 32
_LAST_LANE = 31


def shuffle(emit: Emit, value: Value, distance: int | None, width: int, threads: int) -> Value:
    """The value of the thread `distance` further on in its group of `width` (None: of the first of the group), in a
    block of `threads` threads.

    Raises: LoweringError where the last warp of several is not whole.
    """
    if threads > WARP and threads % WARP:
        raise LoweringError(f"a shuffle in a block of {threads} threads, whose last warp is not whole")
    # The mask names the participating threads: all of the block, since the instruction would wait for a missing thread.
    lanes = -1 if threads >= WARP else (1 << threads) - 1
    # PTX's operand c: bits 8 to 12 divide the warp into groups, bits 0 to 4 are the last lane of a group.
    group = (WARP - width) << 8 | _LAST_LANE
    mode, step = ("idx", 0) if distance is None else ("down", distance)

    def word(text: str, kind: str, suffix: str, dtype: str) -> Value:
        operands = f"i32 {lanes}, {kind} {text}, i32 {step}, i32 {group}"
        return emit(f"call {kind} @llvm.nvvm.shfl.sync.{mode}.{suffix}({operands})", 1, dtype)

    if value.dtype == "float32":
        return word(value.text, "float", "f32", value.dtype)
    bits = 1 if value.dtype == "bool" else 8 * item_bytes(value.dtype)
    bits_type, kind = f"i{bits}", llvm_type(value.dtype)
    plain = (
        value.text if kind == bits_type else emit(f"bitcast {kind} {value.text} to {bits_type}", 1, value.dtype).text
    )
    if bits < _WORD_BITS:
        wide = emit(f"zext {bits_type} {plain} to i32", 1, "int32")
        received = emit(f"trunc i32 {word(wide.text, 'i32', 'i32', 'int32').text} to {bits_type}", 1, value.dtype)
    elif bits == _WORD_BITS:
        received = word(plain, "i32", "i32", value.dtype)
    else:
        above = emit(f"lshr i64 {plain}, {_WORD_BITS}", 1, "int64")
        halves = [emit(f"trunc i64 {text} to i32", 1, "int32") for text in (plain, above.text)]
        low, high = (
            emit(f"zext i32 {word(half.text, 'i32', 'i32', 'int32').text} to i64", 1, "int64") for half in halves
        )
        shifted = emit(f"shl i64 {high.text}, {_WORD_BITS}", 1, "int64")
        received = emit(f"or i64 {low.text}, {shifted.text}", 1, value.dtype)
    return received if kind == bits_type else emit(f"bitcast {bits_type} {received.text} to {kind}", 1, value.dtype)
