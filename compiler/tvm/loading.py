"""Loads any file of compiled code: a module, the library of a network, or that of a virtual machine.

A file that Retune wrote names its kind in its archive. Any other shared library is a library of FFI functions.
"""

from pathlib import Path
from typing import Any

from retune.compiler import runtime, vm
from retune.compiler.runtime.archive import VM_EXECUTABLE, has_part, kind_of
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.executor.library import Library

_NETWORKS = ("network", "network library")
_PROGRAM = "program.json"


def load_module(path: str | Path) -> Any:
    """Load a file of compiled code: a `Module`; the `Library` of a network, whose `["default"](cpu())` makes an
    executor; the `VMLibrary` that `Executable.load_exec` takes; or a whole `Executable`.

    Code runs with your rights: load only files that you trust.
    Raises: ArtifactError when the file is missing, damaged, or of another kind.
    """
    path = path_of(path)
    kind = kind_of(path)
    if kind in _NETWORKS:
        return Library.load(path)
    if kind == VM_EXECUTABLE:
        return (vm.Executable if has_part(path, _PROGRAM) else vm.VMLibrary).load(path)
    return runtime.Module.load(path)
