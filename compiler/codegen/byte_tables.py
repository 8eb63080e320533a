"""Looks up bytes in a table of 256 that stays in four registers.

`vpermi2b` picks each of 64 bytes from two registers by the low seven bits of its index; two of them and a choice by the
highest bit replace a load and an insertion for each byte.
"""

from retune.compiler.codegen.types import item_bytes, llvm_type
from retune.compiler.codegen.values import Emit, Value
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
    parts = []
    for start in range(0, index.lanes, _LANES):
        order = ", ".join(f"i32 {min(start + lane, index.lanes - 1)}" for lane in range(_LANES))
        part = index
        if index.lanes != _LANES:
            part = emit(
                f"shufflevector {index.typed}, {llvm_type('uint8', index.lanes)} poison, <{_LANES} x i32> <{order}>",
                _LANES,
                "uint8",
            )
        parts.append(_whole(emit, table, part, dtype))
    while len(parts) > 1:
        lanes = parts[0].lanes
        joined = []
        for low, high in zip(parts[::2], [*parts[1::2], parts[-1]], strict=False):
            order = ", ".join(f"i32 {lane}" for lane in range(2 * lanes))
            joined.append(
                emit(f"shufflevector {low.typed}, {high.typed}, <{2 * lanes} x i32> <{order}>", 2 * lanes, dtype)
            )
        parts = joined
    if parts[0].lanes == index.lanes:
        return parts[0]
    order = ", ".join(f"i32 {lane}" for lane in range(index.lanes))
    kind = llvm_type(dtype, parts[0].lanes)
    return emit(f"shufflevector {parts[0].typed}, {kind} poison, <{index.lanes} x i32> <{order}>", index.lanes, dtype)


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
