"""Element types: size, precision and promotion of NumPy's types and bfloat16.

Importing this module makes NumPy know bfloat16 by name, through the package `ml_dtypes`.
"""

from functools import lru_cache

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16).name
# No number type has a longer name; NumPy would parse, and remember, any text of a file.
_LONGEST = 12
HALVES = ("float16", BFLOAT16)
"""16-bit floats. Functions of them are computed in float32 and rounded once."""


def number_type(name: object) -> str:
    """The name of an element type from a file. Raises: ValueError if it is no number type."""
    # NumPy reads structures and byte orders too, such as "i4,>f8"; no name of a type has such characters.
    if not isinstance(name, str) or not name.isalnum() or len(name) > _LONGEST:
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
    # The types of ml_dtypes are of NumPy's kind V, so bfloat16 is known by its name.
    if dtype.kind not in "biuf" and dtype.name != BFLOAT16:
        raise ValueError(f"{name!r} is no element type of numbers")
    return dtype.name


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_unsigned(dtype: str) -> bool:
    return dtype.startswith("uint")


def item_bytes(dtype: str) -> int:
    """Bytes of one element in memory."""
    return int(np.dtype(dtype).itemsize)


def accumulated(dtype: str) -> str:
    """The type in which registers accumulate values of `dtype`: float32 for 16-bit floats."""
    return "float32" if dtype in HALVES else dtype


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next larger number of a float type."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def finite_limit(dtype: str, *, is_least: bool) -> float:
    if not is_float(dtype):
        limits = np.iinfo(dtype)
        return int(limits.min if is_least else limits.max)
    # NumPy's `finfo` refuses bfloat16; ml_dtypes' takes all.
    finfo = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(finfo.min if is_least else finfo.max)


def promoted(left: str, right: str) -> str:
    """The common type of two types, by NumPy's rules; where it has none, bfloat16 and the other become float32."""
    try:
        return str(np.result_type(left, right).name)
    except TypeError:
        return "float32"
