"""A module: compiled functions by name, as the TVM FFI calls them.

Code is loaded on first use of its function, and stays as long as the function; loading and running a module needs no
part of the compiler.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.artifact import entry_symbol
from retune.compiler.runtime.ffi.bindings import FFIModule, PackedFunc, new_function, open_library
from retune.compiler.runtime.ffi.linking import LINKERS
from retune.compiler.runtime.ffi.module_file import (
    CompiledFunction,
    check_library,
    load_functions,
    save_functions,
    write_library,
)
from retune.compiler.runtime.loader import load_entry
from retune.compiler.runtime.threads.openmp import openmp_runtime
from retune.compiler.runtime.timing import TimedFunctions

ENTRY = "main"
_LIBRARY, _ARCHIVE, _OLD_ARCHIVE = ".so", ".retune", ".tar"
_ARCHIVES = (_ARCHIVE, _OLD_ARCHIVE)


class Module(TimedFunctions):
    """Functions by name: `module["name"]`, `module.name`, or, for the main one, `module(...)`.

    A function takes one array for each of its tensors (`retune.compiler.tvm.nd`, NumPy, PyTorch, any library with
    DLPack), then optionally a number of threads. Functions of imported modules are looked up on use.
    """

    def __init__(self, functions: Sequence[CompiledFunction] = (), library: FFIModule | None = None) -> None:
        """Compiled `functions`, or a `library` loaded by the FFI.

        Raises: ArtifactError when two functions have one name.
        """
        self._functions = {function.name: function for function in functions}
        if len(self._functions) != len(functions):
            raise ArtifactError(f"two functions of a module have one name: {[each.name for each in functions]}")
        self._library = library
        self._loaded: dict[str, PackedFunc] = {}
        self._main: PackedFunc | None = None
        self._imports: list[Module] = []

    @staticmethod
    def load(path: str | Path) -> "Module":
        """The module in a file of `export_library` or `save`, or in any shared library with functions of the FFI.

        Code runs with your rights: load only files that you trust.
        Raises: ArtifactError when the file is missing, damaged, or neither.
        """
        path = path_of(path)
        if not path.is_file():
            raise ArtifactError(f"{path}: there is no such file")
        if path.suffix == _LIBRARY:
            # Before dlopen, which runs constructors of the library.
            check_library(path)
            with suppress(ArtifactError):  # a library without parallel loops needs no OpenMP
                openmp_runtime()  # first, so that its threads wait with our settings
            return Module(library=open_library(path.absolute()))
        if path.suffix in _ARCHIVES:
            return Module(load_functions(path))
        raise OptionError(f"{path}: a module is a {_LIBRARY} or a {_ARCHIVE}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions; empty for a shared library, which does not list them."""
        return tuple(self._functions)

    @property
    def entry_name(self) -> str:
        """The function that a call of the module calls: "main", or the only function."""
        return self.names[0] if len(self.names) == 1 else ENTRY

    @property
    def imports(self) -> "tuple[Module, ...]":
        return tuple(self._imports)

    imported_modules = imports

    @property
    def type_key(self) -> str:
        """The kind of module: "library", loaded from a shared library, or "native", with objects of its own."""
        return "native" if self._library is None else "library"

    @property
    def is_runnable(self) -> bool:
        """Whether its functions can be called: always."""
        return True

    @property
    def is_dso_exportable(self) -> bool:
        """Whether `export_library` can make a shared library: the module and all its imports have objects."""
        return all(module._library is None for module in (self, *self._all_imports()))

    @property
    def is_binary_serializable(self) -> bool:
        """Whether `save` can write it: same as `is_dso_exportable`."""
        return self.is_dso_exportable

    def import_module(self, module: "Module") -> None:
        """Search `module` for functions too.

        Raises: ArtifactError when that is not a module, or imports this one.
        """
        if not isinstance(module, Module):
            raise ArtifactError(f"a module imports modules, not {module!r:.80}")
        if self is module or any(self is each for each in module._all_imports()):
            raise ArtifactError("a module cannot import itself")
        self._imports.append(module)

    def implements_function(self, name: str, query_imports: bool = False) -> bool:
        return self._own(name) is not None or (
            query_imports and any(each.implements_function(name, True) for each in self._imports)
        )

    def get_function(self, name: str, query_imports: bool = False) -> PackedFunc:
        """The function of that name.

        Raises: ArtifactError when there is none, or its code cannot be loaded.
        """
        function = self._own(name)
        for module in self._imports if query_imports and function is None else ():
            if module.implements_function(name, True):
                return module.get_function(name, True)
        if function is None:
            known = f"; it has {', '.join(self.names)}" if self.names else ""
            raise ArtifactError(f"the module has no function {name}{known}")
        return function

    def _own(self, name: str) -> PackedFunc | None:
        if not isinstance(name, str):
            return None
        if name not in self._loaded:
            if name in self._functions:
                function = self._functions[name]
                self._loaded[name] = new_function(*load_entry(function.kernel, function.entry, entry_symbol(name)))
            elif self._library is not None and self._library.implements_function(name):
                self._loaded[name] = self._library.get_function(name)
        return self._loaded.get(name)

    def _all_imports(self) -> "list[Module]":
        # The list grows during the loop: breadth first over the imports, which have no cycles.
        modules = list(self._imports)
        for module in modules:
            modules += module._imports
        return modules

    def __getitem__(self, name: str) -> PackedFunc:
        return self.get_function(name, True)

    def __getattr__(self, name: str) -> PackedFunc:
        # copy and pickle look up such names before __init__ has run, where get_function would recurse.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.get_function(name, True)
        except ArtifactError as error:
            raise AttributeError(str(error)) from error

    def __call__(self, *args: object) -> Any:
        if self._main is None:
            self._main = self.get_function(self.entry_name, True)
        return self._main(*args)

    def __reduce__(self) -> tuple[object, ...]:
        if self._library is not None or self._imports:
            raise ArtifactError("a module that was loaded from a library, or imports others, cannot be pickled")
        return Module, (tuple(self._functions.values()),)

    def export_library(self, path: str | Path, linkers: Sequence[str] = LINKERS) -> Path:
        """Write the functions, with those of imported modules, into one file: a shared library (.so), made with the
        system's linker, that every host of the FFI loads, or an archive (.retune), which needs no linker. The
        deprecated ending .tar writes the same archive.

        Raises: ArtifactError for another ending, when there is no linker or it fails, when a function has no object
        code because it was loaded from a library, or when the file cannot be written.
        """
        path = path_of(path)
        if path.suffix not in (_LIBRARY, *_ARCHIVES):
            raise ArtifactError(f"{path}: a module is exported to {_LIBRARY} or {_ARCHIVE}")
        if path.suffix == _OLD_ARCHIVE:
            advice = f"{path}: the ending {_OLD_ARCHIVE} of modules is deprecated, save as {_ARCHIVE}"
            warnings.warn(advice, DeprecationWarning, stacklevel=2)
        modules = [self, *self._all_imports()]
        if any(module._library is not None for module in modules):
            raise ArtifactError(f"{path}: a module that was loaded from a library has no objects; copy that file")
        functions: dict[str, CompiledFunction] = {}
        for module in modules:
            for name, function in module._functions.items():
                functions.setdefault(name, function)
        if not functions:
            raise ArtifactError(f"{path}: the module has no functions")
        _refuse_clashes(path, list(functions.values()))
        if path.suffix == _LIBRARY:
            write_library(list(functions.values()), path, linkers)
        else:
            save_functions(list(functions.values()), path)
        return path

    def save(self, path: str | Path) -> Path:
        """Write an archive (.retune) of the module, which needs no linker. Raises: like `export_library`."""
        if path_of(path).suffix not in _ARCHIVES:
            raise ArtifactError(f"{path}: a module is saved as {_ARCHIVE}; export_library makes a shared library")
        return self.export_library(path)


def _refuse_clashes(path: Path, functions: Sequence[CompiledFunction]) -> None:
    """Ensure that no two kernels have one symbol, for a clearer message than the linker's."""
    symbols: dict[str, str] = {}
    for function in functions:
        other = symbols.setdefault(function.kernel.name, function.name)
        if other != function.name:
            raise ArtifactError(f"{path}: the functions {other} and {function.name} have the same kernel's symbol")
