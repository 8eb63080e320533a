"""In: NumPy type names and numbers. Out: LLVM's spelling of them. Always: exact, a float literal keeps every bit."""

import math
import struct

import numpy as np

from compiler.errors import LoweringError

_SCALARS = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "i64",
    "uint32": "i32",
    "uint16": "i16",
    "uint8": "i8",
    "bool": "i1",
}


def llvm_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in a register.

    Raises: LoweringError for a type without one.
    """
    if dtype not in _SCALARS:
        raise LoweringError(f"the type {dtype} has no code; known: {', '.join(_SCALARS)}")
    scalar = _SCALARS[dtype]
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def memory_type(dtype: str, lanes: int = 1) -> str:
    """The LLVM type of a value in memory: a bool takes a byte."""
    return llvm_type("int8" if dtype == "bool" else dtype, lanes)


def item_bytes(dtype: str) -> int:
    """Bytes of one element in memory."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def literal(value: float, dtype: str, lanes: int = 1) -> str:
    """A constant operand, without its type."""
    if dtype == "bool":
        text = "true" if value else "false"
    elif dtype in ("float64", "float32"):
        exact = float(np.float32(value)) if dtype == "float32" else float(value)
        text = f"0x{struct.unpack('>Q', struct.pack('>d', exact))[0]:016X}"
    elif dtype == "float16":
        largest = float(np.finfo("float16").max)
        near = value if abs(value) <= largest else math.copysign(math.inf, value)
        text = f"0xH{struct.unpack('>H', struct.pack('>e', near))[0]:04X}"
    elif dtype == "bfloat16":
        text = f"0xR{struct.unpack('>I', struct.pack('>f', value))[0] >> 16:04X}"
    else:
        text = str(int(value))
    return text if lanes == 1 else f"splat ({_SCALARS[dtype]} {text})"


def is_float(dtype: str) -> bool:
    """Whether the type is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def is_unsigned(dtype: str) -> bool:
    """Whether the type is an unsigned integer type."""
    return dtype.startswith("uint")


def intrinsic_suffix(dtype: str, lanes: int = 1) -> str:
    """How LLVM names an intrinsic's instance for a type, as `v16f32`."""
    if dtype == "bool":
        return "i1" if lanes == 1 else f"v{lanes}i1"
    scalar = "bf16" if dtype == "bfloat16" else f"{'f' if is_float(dtype) else 'i'}{item_bytes(dtype) * 8}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"
