"""In: a network of any shapes and course. Out: bytecode for it, and a virtual machine that runs that.

Always: names only, each looked up when it is first used; what was compiled for known shapes runs without any part of
the compiler.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retune.compiler.vm.compiler import VMCompiler, compile
    from retune.compiler.vm.contents import Contents, LateBound, Primitive, VMFunction
    from retune.compiler.vm.executable import Executable
    from retune.compiler.vm.executor import VMExecutor
    from retune.compiler.vm.library import VMLibrary
    from retune.compiler.vm.machine import VirtualMachine
    from retune.compiler.vm.options import VMOptions
    from retune.compiler.vm.values import ADT, Closure

_HOMES = {
    "ADT": "values",
    "Closure": "values",
    "Contents": "contents",
    "Executable": "executable",
    "LateBound": "contents",
    "Primitive": "contents",
    "VMCompiler": "compiler",
    "VMExecutor": "executor",
    "VMFunction": "contents",
    "VMLibrary": "library",
    "VMOptions": "options",
    "VirtualMachine": "machine",
    "compile": "compiler",
}

__all__ = [
    "ADT",
    "Closure",
    "Contents",
    "Executable",
    "LateBound",
    "Primitive",
    "VMCompiler",
    "VMExecutor",
    "VMFunction",
    "VMLibrary",
    "VMOptions",
    "VirtualMachine",
    "compile",
    "load_module",
]


def __getattr__(name: str) -> Any:
    if name == "load_module":
        return importlib.import_module("retune.compiler.vm.library").VMLibrary.load
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
