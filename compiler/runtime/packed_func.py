"""In: Python values. Out: values and functions of the TVM FFI, which C, C++ and kernels understand.

Always: nothing is wrapped: a `PackedFunc` is the FFI's own function.
"""

from typing import Any

from compiler.runtime.ffi import PackedFunc, object_use_count
from compiler.runtime.ffi import convert as _convert

__all__ = ["PackedFunc", "convert", "object_use_count"]


def convert(value: Any) -> Any:
    """The value as the FFI passes it on.

    Lists and tuples become `Array`, dicts `Map`, functions `PackedFunc`, arrays of NumPy and of whoever speaks DLPack
    `NDArray` on the same memory; texts and bytes stay what they are, and so do numbers. Any other object is
    passed on as it is and comes back as the same object.
    """
    return _convert(value)
