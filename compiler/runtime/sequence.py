"""Runs bound kernels in order, in one call.

The loop is machine code that reads a table: between two kernels the interpreter does nothing and nothing is allocated.
The interpreter lock is released meanwhile; signals are handled after the last kernel.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

from retune.compiler.runtime.loader import BoundKernel, native_address

_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
_NAME = "retune_sequence"
# A loop of LLVM text and not a C extension: the package needs no compiler when it is installed.
_TEXT = f"""
define i64 @{_NAME}(ptr %table, i64 %count) {{
entry:
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %row = getelementptr [3 x i64], ptr %table, i64 %i
  %function = load ptr, ptr %row
  %second = getelementptr i64, ptr %row, i64 1
  %buffers = load ptr, ptr %second
  %third = getelementptr i64, ptr %row, i64 2
  %wide = load i64, ptr %third
  %threads = trunc i64 %wide to i32
  %code = call i32 %function(ptr %buffers, i32 %threads)
  %next = add i64 %i, 1
  %good = icmp eq i32 %code, 0
  br i1 %good, label %test, label %failed
failed:
  %low = zext i32 %code to i64
  %high = shl i64 %next, 32
  %both = or i64 %high, %low
  ret i64 %both
done:
  ret i64 0
}}
"""
"""A row of the table is a kernel's address, the address of its buffers' addresses, and a number of threads. Returns 0,
or the code of the kernel that failed with its number, counted from 1, in the upper half."""


class KernelSequence:
    """Kernels to be run one after the other; arrays that they are bound to again later are used from then on."""

    __slots__ = ("_count", "_function", "_kernels", "_pointer", "_table")

    def __init__(self, kernels: Sequence[BoundKernel]) -> None:
        self._kernels = tuple(kernels)
        words = [word for kernel in kernels for word in kernel.row]
        # Rows hold the address of each kernel's pointers, not the pointers: rebinding a kernel needs no new table.
        self._table = (ctypes.c_uint64 * len(words))(*words)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._table))
        self._count = ctypes.c_int64(len(self._kernels))
        self._function = _loop()

    def __call__(self) -> None:
        """Run all kernels, or up to the first that fails. Raises: as that `BoundKernel` does."""
        if result := self._function(self._pointer, self._count):
            self._kernels[(result >> 32) - 1].failed(ctypes.c_int32(result & 0xFFFFFFFF).value)


@cache
def _loop() -> Any:
    return _RUN(native_address(_TEXT, _NAME))
