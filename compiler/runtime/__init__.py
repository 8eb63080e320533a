"""The public names of the runtime, each loaded on first use.

Most of them load the TVM FFI, see `retune.compiler.runtime.ffi`.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retune.compiler.runtime.container import (
        Array,
        Map,
        assert_structural_equal,
        load_json,
        save_json,
        structural_equal,
    )
    from retune.compiler.runtime.ffi import NDArray
    from retune.compiler.runtime.module import Module
    from retune.compiler.runtime.packed_func import PackedFunc, convert, object_use_count
    from retune.compiler.runtime.timing import BenchmarkResult

_HOMES = {
    "Array": "container",
    "BenchmarkResult": "timing",
    "Map": "container",
    "Module": "module",
    "NDArray": "ffi",
    "PackedFunc": "packed_func",
    "assert_structural_equal": "container",
    "convert": "packed_func",
    "load_json": "container",
    "object_use_count": "packed_func",
    "save_json": "container",
    "structural_equal": "container",
}

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
