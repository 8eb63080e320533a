"""Looks up bytes in a table of 256 that stays in four registers.

`vpermi2b` picks each of 64 bytes from two registers by the low seven bits of its index; two of them and a choice by the
highest bit replace a load and an insertion for each byte.
"""

from retune.compiler.codegen.types import item_bytes
from retune.compiler.codegen.values import Emit, Value
from retune.compiler.codegen.vector_builder import in_parts
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Cast, Expr, Load

_LANES = 64
_TABLE = 256
_KIND = f"<{_LANES} x i8>"


def is_byte_table(load: Load) -> bool:
    """Whether a load reads an element of a whole table of bytes at a byte."""
    shape = load.buffer.shape
    is_symbolic = any(isinstance(extent, Dim) for extent in shape)
    is_table = not is_symbolic and shape == (_TABLE,) and load.dtype != "bool" and item_bytes(load.dtype) == 1
    return is_table and byte_index(load).dtype == "uint8"


def byte_index(load: Load) -> Expr:
    """The index of a load, without casts that keep the value of a byte."""
    index = load.indices[0]
    while isinstance(index, Cast) and index.dtype in ("int16", "int32", "int64", "uint16", "uint32", "uint64"):
        index = index.value
    return index


def look_up(emit: Emit, table: str, index: Value, dtype: str) -> Value:
    """The elements of the table at `index`, a vector of uint8."""
    return in_parts(emit, index, _LANES, lambda part: _whole(emit, table, part, dtype))


def _whole(emit: Emit, table: str, index: Value, dtype: str) -> Value:
    """64 elements of the table."""
    halves = []
    for half in range(2):
        rows = []
        for row in (2 * half, 2 * half + 1):
            pointer = emit(f"getelementptr i8, ptr {table}, i64 {row * _LANES}", 1, "int64").text
            rows.append(emit(f"load {_KIND}, ptr {pointer}, align 1", _LANES, dtype))
        call = f"call {_KIND} @llvm.x86.avx512.vpermi2var.qi.512({rows[0].typed}, {index.typed}, {rows[1].typed})"
        halves.append(emit(call, _LANES, dtype))
    high = emit(f"icmp slt {index.typed}, zeroinitializer", _LANES, "bool")
    return emit(f"select {high.typed}, {halves[1].typed}, {halves[0].typed}", _LANES, dtype)
