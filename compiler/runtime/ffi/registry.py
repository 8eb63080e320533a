"""Registers functions by name for code that knows only the name.

The registry is the TVM FFI's: functions of Python, C and C++ share one table. The first call that needs it loads the
FFI, see `retune.compiler.runtime.ffi.bindings`.
"""

import importlib
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from retune.compiler.core.errors import RegistryError

if TYPE_CHECKING:
    from retune.compiler.runtime.ffi.bindings import PackedFunc

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

_FFI = "tvm_ffi"
_LOCK = threading.RLock()  # the destructor of a replaced function may come here
_PYTHON: dict[str, "tuple[PackedFunc, Function]"] = {}
"""Functions registered from here: the function in the table, and the Python function that it calls."""
_WAITING: dict[str, Function] = {}
"""Functions of the compiler itself that enter the table when the FFI is loaded, which takes seconds."""


@overload
def register_func(func_name: F, f: None = None, override: bool = False) -> F: ...
@overload
def register_func(func_name: str, f: None = None, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_func(func_name: str, f: F, override: bool = False) -> F: ...
def register_func(func_name: F | str, f: F | None = None, override: bool = False) -> F | Callable[[F], F]:
    """Register a function for kernels, see `retune.compiler.te.extern`, for C and C++, and for `get_global_func`.

    Used as `@register_func`, as `@register_func("name")`, or as `register_func("name", f)`; the default name is the
    function's own. Returns the function.
    Raises: RegistryError when the name is taken, unless `override`.
    """
    return registration(_register, func_name, f, override)


def register_when_loaded(name: str, function: F) -> F:
    """Register a function of the compiler on first use of the table. Returns it."""
    _WAITING[name] = function
    return function


def registration(
    register: Callable[[str, F, bool], F], func_name: F | str, f: F | None, override: bool
) -> F | Callable[[F], F]:
    """Dispatch the forms of a registering function: a function alone, a name and a function, or a decorator with a
    name. `register` takes the name, the function, and whether it overrides.
    """
    if callable(func_name):
        return register(func_name.__name__, func_name, override)
    if f is not None:
        return register(func_name, f, override)
    return lambda decorated: register(func_name, decorated, override)


def _register(name: str, function: F, override: bool) -> F:
    if not isinstance(name, str) or not callable(function):
        raise RegistryError(f"register_func takes a name and a function, not {name!r} and {function!r}")
    ffi = _ffi()
    with _LOCK:
        if not override and ffi.get_function(name, allow_missing=True) is not None:
            raise RegistryError(f"the function {name} is registered already; use another name, or override it")
        known = ffi.set_function(name, function, override=override)
        if known is function:  # of another language
            _PYTHON.pop(name, None)
        else:
            _PYTHON[name] = (known, function)
    return function


@overload
def get_global_func(name: str) -> "PackedFunc": ...
@overload
def get_global_func(name: str, allow_missing: bool) -> "PackedFunc | None": ...
def get_global_func(name: str, allow_missing: bool = False) -> "PackedFunc | None":
    """The function registered under `name`, in any language; None for an unknown name with `allow_missing`.

    Raises: RegistryError for an unknown name.
    """
    function: PackedFunc | None = _ffi().get_function(_check_name(name), allow_missing=True)
    if function is None and not allow_missing:
        raise RegistryError(f"no function {name} is registered in this process; register it with register_func")
    return function


def find_function(name: str) -> Function | None:
    """The function `name` for NumPy arguments in this process: the Python function itself if it is one, so that its
    exceptions keep their class.

    None for an unknown name. Does not load the FFI for the search.
    """
    if _FFI not in sys.modules:
        return None
    function = get_global_func(name, allow_missing=True)
    with _LOCK:
        known, python = _PYTHON.get(name, (None, None))
    if function is None or (known is not None and function.same_as(known)):
        return python if function is not None else None
    return with_lent_arrays(function)


def with_lent_arrays(function: "PackedFunc") -> Function:
    """A wrapper of an FFI function for NumPy arrays, including read-only ones, whose memory it works on."""
    return partial(_call_lending, function)


def _call_lending(function: "PackedFunc", *args: object) -> Any:
    lend = _ffi().lend
    return function(*(lend(arg) if isinstance(arg, np.ndarray) else arg for arg in args))


def list_global_func_names() -> list[str]:
    """The names of all registered functions, sorted; the FFI's own begin with "ffi."."""
    names: list[str] = _ffi().list_functions()
    return sorted(str(name) for name in names)


def remove_global_func(name: str) -> None:
    """Remove a function; callers that got it before keep it.

    Raises: RegistryError for an unknown name.
    """
    with _LOCK:
        if _ffi().get_function(_check_name(name), allow_missing=True) is None:
            raise RegistryError(f"no function {name} is registered in this process, so none can be removed")
        _ffi().remove_function(name)
        _PYTHON.pop(name, None)


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise RegistryError(f"functions are registered by names, not by {name!r:.80}")
    return name


def _ffi() -> Any:
    ffi = importlib.import_module("retune.compiler.runtime.ffi.bindings")
    with _LOCK:
        while _WAITING:
            ffi.set_function(*_WAITING.popitem(), override=True)
    return ffi
