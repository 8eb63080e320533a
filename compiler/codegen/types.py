"""LLVM's spelling of NumPy's types and of numbers.

A float literal keeps every bit. bfloat16 is an i16 in LLVM, because LLVM's own bfloat type has no code on CPUs without
bfloat16 arithmetic.
"""

import struct
from functools import cache

import numpy as np

from retune.compiler.core.dtype import HALVES, NARROW, NARROW_FLOATS, item_bits
from retune.compiler.core.dtype import is_float as is_float
from retune.compiler.core.dtype import is_unsigned as is_unsigned
from retune.compiler.core.dtype import item_bytes as item_bytes
from retune.compiler.core.errors import LoweringError

_SCALARS = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "i16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "i64",
    "uint32": "i32",
    "uint16": "i16",
    "uint8": "i8",
    "bool": "i1",
    # A byte in a register too: integers extended by their sign or zeros, floats as their code.
    **dict.fromkeys(NARROW, "i8"),
}


BYTE = 8
"""Bits of a byte."""


@cache
def llvm_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in a register. Raises: LoweringError for a type without any."""
    if dtype not in _SCALARS:
        raise LoweringError(f"the type {dtype} has no code; known: {', '.join(_SCALARS)}")
    scalar = _SCALARS[dtype]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def memory_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in memory: a bool takes a byte, as does an element below a byte."""
    return llvm_type("int8" if dtype == "bool" else dtype, lanes)


def has_memory_form(dtype: str) -> bool:
    """Whether a value in memory differs from that in a register: a bool, or an element below a byte."""
    return dtype == "bool" or (dtype in NARROW and item_bits(dtype) < BYTE)


def literal(value: float, dtype: str, lanes: int = 1) -> str:
    """A constant operand, without its type."""
    if dtype == "bool":
        text = "true" if value else "false"
    elif dtype in ("float64", "float32"):
        exact = float(np.float32(value)) if dtype == "float32" else float(value)
        # LLVM writes a float32 as the bits of the float64 with the same value.
        text = f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    elif dtype in HALVES:
        # A literal beyond the range is infinite, as after a cast.
        with np.errstate(over="ignore"):
            bits = int(np.array(value, dtype).view("uint16"))
        text = f"0xH{bits:04X}" if dtype == "float16" else str(bits)
    elif dtype in NARROW_FLOATS:
        text = str(int(np.array(value, dtype).view("uint8")))
    else:
        text = str(int(value))
    return text if lanes == 1 else f"splat ({_SCALARS[dtype]} {text})"


def intrinsic_suffix(dtype: str, lanes: int = 1) -> str:
    """The suffix of an intrinsic's instance for a type, as `v16f32`."""
    if dtype == "bool":
        return "i1" if lanes == 1 else f"v{lanes}i1"
    scalar = f"{'i' if _SCALARS[dtype].startswith('i') else 'f'}{item_bytes(dtype) * 8}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"
