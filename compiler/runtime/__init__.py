"""The public names of the runtime, each loaded on first use.

Most of them load the TVM FFI, see `retune.compiler.runtime.ffi.bindings`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retune.compiler.core.lazy import lazy

if TYPE_CHECKING:
    from retune.compiler.runtime.ffi.bindings import NDArray as NDArray
    from retune.compiler.runtime.ffi.bindings import PackedFunc as PackedFunc
    from retune.compiler.runtime.ffi.bindings import convert as convert
    from retune.compiler.runtime.ffi.bindings import object_use_count as object_use_count
    from retune.compiler.runtime.ffi.container import Array as Array
    from retune.compiler.runtime.ffi.container import Map as Map
    from retune.compiler.runtime.ffi.container import assert_structural_equal as assert_structural_equal
    from retune.compiler.runtime.ffi.container import load_json as load_json
    from retune.compiler.runtime.ffi.container import save_json as save_json
    from retune.compiler.runtime.ffi.container import structural_equal as structural_equal
    from retune.compiler.runtime.ffi.module import Module as Module
    from retune.compiler.runtime.timing import BenchmarkResult as BenchmarkResult


load_module: Callable[..., Any]
"""Loads any file of compiled code. `retune.compiler` sets it, since packages above this one also have files."""

__getattr__, __all__ = lazy(
    __name__,
    {
        "ffi.container": "Array Map assert_structural_equal load_json save_json structural_equal",
        "ffi.bindings": "NDArray PackedFunc convert object_use_count",
        "ffi.module": "Module",
        "timing": "BenchmarkResult",
    },
)
__all__ += ["load_module"]
