"""Element types: size, precision and promotion of NumPy's types and those of `ml_dtypes`.

Importing this module makes NumPy know the types of `ml_dtypes` by name: bfloat16, integers below a byte, and floats of
a byte or less. Like NumPy's arrays, ours hold an element below a byte in the low bits of a byte of its own.
"""

from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array of any shape and element type."""
DType = np.dtype[Any]
"""An element type of NumPy's or of `ml_dtypes`."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16).name
# No number type has a longer name; NumPy would parse, and remember, any text of a file.
_LONGEST = 15
HALVES = ("float16", BFLOAT16)
"""16-bit floats. Functions of them are computed in float32 and rounded once."""
NARROW_INTEGERS = ("int4", "uint4", "int2", "uint2")
NARROW_FLOATS = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn"),
)
NARROW = (*NARROW_INTEGERS, *NARROW_FLOATS)
"""Types that are stored and converted alone: each operation on them computes in `arithmetic_type` and rounds."""


def number_type(name: object) -> str:
    """The name of an element type from a file. Raises: ValueError if it is no number type."""
    # NumPy reads structures and byte orders too, such as "i4,>f8"; no name of a type has such characters.
    if not isinstance(name, str) or not name.replace("_", "").isalnum() or len(name) > _LONGEST:
        raise ValueError(f"{name!r} is no element type")
    return _number_type(name)


@lru_cache(maxsize=64)
def _number_type(name: str) -> str:
    if name.startswith("a"):  # NumPy's old name of bytes, which makes it warn
        raise ValueError(f"{name!r} is no element type")
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise ValueError(f"{name!r} is no element type") from None
    if not is_number(dtype):
        raise ValueError(f"{name!r} is no element type of numbers")
    return dtype.name


def is_number(dtype: DType) -> bool:
    """Whether arrays of `dtype` hold numbers that kernels know."""
    # Most types of ml_dtypes are of NumPy's kind V, so they are known by their names.
    return dtype.kind in "biuf" or dtype.name in (BFLOAT16, *NARROW)


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_unsigned(dtype: str) -> bool:
    return dtype.startswith("uint")


def item_bytes(dtype: str) -> int:
    """Bytes of one element in memory."""
    return int(np.dtype(dtype).itemsize)


@cache
def item_bits(dtype: str) -> int:
    """Bits that the value of one element has: fewer than its bytes hold for types below a byte."""
    if dtype in NARROW:
        limits = ml_dtypes.finfo if is_float(dtype) else ml_dtypes.iinfo
        return int(limits(dtype).bits)
    return 8 * item_bytes(dtype)


def sum_type(dtype: str) -> str:
    """The type in which registers accumulate values of `dtype`: float32 for floats of 16 bits or less."""
    return "float32" if dtype in HALVES or dtype in NARROW_FLOATS else dtype


def arithmetic_type(dtype: str) -> str:
    """The type that computes operations on `dtype`: wider for `NARROW` types alone."""
    if dtype in NARROW:
        return "float32" if is_float(dtype) else "uint8" if is_unsigned(dtype) else "int8"
    return dtype


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next larger number of a float type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def least_normal(dtype: str) -> float:
    """The smallest positive number of a float type that is not subnormal."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


@cache
def finite_limit(dtype: str, *, is_least: bool) -> float:
    if not is_float(dtype):
        limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        return int(limits.min if is_least else limits.max)
    # NumPy's `finfo` refuses bfloat16; ml_dtypes' takes all.
    finfo = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(finfo.min if is_least else finfo.max)


def promoted_type(left: str, right: str) -> str:
    """The common type of two types, by NumPy's rules; where it has none, both become float32."""
    try:
        return str(np.result_type(left, right).name)
    except TypeError:
        return "float32"
