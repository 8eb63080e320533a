"""The public names of the runtime, each loaded on first use.

Most of them load the TVM FFI, see `retune.compiler.runtime.ffi.bindings`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retune.compiler.core.lazy import lazy

if TYPE_CHECKING:
    from retune.compiler.runtime.ffi.bindings import NDArray, PackedFunc, convert, object_use_count
    from retune.compiler.runtime.ffi.container import (
        Array,
        Map,
        assert_structural_equal,
        load_json,
        save_json,
        structural_equal,
    )
    from retune.compiler.runtime.ffi.module import Module
    from retune.compiler.runtime.timing import BenchmarkResult

__all__ = [
    "Array",
    "BenchmarkResult",
    "Map",
    "Module",
    "NDArray",
    "PackedFunc",
    "assert_structural_equal",
    "convert",
    "load_json",
    "load_module",
    "object_use_count",
    "save_json",
    "structural_equal",
]


load_module: Callable[..., Any]
"""Loads any file of compiled code. `retune.compiler` sets it, since packages above this one also have files."""

__getattr__ = lazy(
    __name__,
    {
        "ffi.container": "Array Map assert_structural_equal load_json save_json structural_equal",
        "ffi.bindings": "NDArray PackedFunc convert object_use_count",
        "ffi.module": "Module",
        "timing": "BenchmarkResult",
    },
)
