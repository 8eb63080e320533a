"""Relay-style virtual machine: compiles networks with dynamic shapes and control flow, and interprets their programs.

Names are imported on first use. An executable whose shapes were all known when it was compiled runs without importing
any part of the compiler.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retune.compiler.vm.compiler import VMCompiler, compile
    from retune.compiler.vm.executable import Executable
    from retune.compiler.vm.executor import VMExecutor
    from retune.compiler.vm.library import VMLibrary
    from retune.compiler.vm.machine import VirtualMachine
    from retune.compiler.vm.options import VMOptions
    from retune.compiler.vm.values import ADT

_HOMES = {
    "ADT": "values",
    "Executable": "executable",
    "VMCompiler": "compiler",
    "VMExecutor": "executor",
    "VMLibrary": "library",
    "VMOptions": "options",
    "VirtualMachine": "machine",
    "compile": "compiler",
}

__all__ = [
    "ADT",
    "Executable",
    "VMCompiler",
    "VMExecutor",
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
