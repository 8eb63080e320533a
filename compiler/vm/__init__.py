"""Relay-style virtual machine: compiles networks with dynamic shapes and control flow, and interprets their programs.

Names are imported on first use. An executable whose shapes were all known when it was compiled runs without importing
any part of the compiler.
"""

from typing import TYPE_CHECKING, Any

from retune.compiler.core.lazy import lazy

if TYPE_CHECKING:
    from retune.compiler.vm.compiler import VMCompiler as VMCompiler
    from retune.compiler.vm.compiler import compile as compile
    from retune.compiler.vm.executable import Executable as Executable
    from retune.compiler.vm.executor import VMExecutor as VMExecutor
    from retune.compiler.vm.library import VMLibrary as VMLibrary
    from retune.compiler.vm.machine import VirtualMachine as VirtualMachine
    from retune.compiler.vm.resources import VMOptions as VMOptions
    from retune.compiler.vm.values import ADT as ADT

_load, __all__ = lazy(
    __name__,
    {
        "compiler": "VMCompiler compile",
        "executable": "Executable",
        "executor": "VMExecutor",
        "library": "VMLibrary",
        "machine": "VirtualMachine",
        "resources": "VMOptions",
        "values": "ADT",
    },
)
__all__ += ["load_module"]


def __getattr__(name: str) -> Any:
    return _load("VMLibrary").load if name == "load_module" else _load(name)
