"""In: Python functions with names. Out: the functions, for code that knows only the name.

Always: one registry a process, safe to use from several threads.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

from compiler.errors import RegistryError

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)

_LOCK = threading.Lock()
_FUNCTIONS: dict[str, Function] = {}


@overload
def register_func(func_name: F, f: None = None, override: bool = False) -> F: ...
@overload
def register_func(func_name: str, f: None = None, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_func(func_name: str, f: F, override: bool = False) -> F: ...
def register_func(func_name: Any, f: Any = None, override: bool = False) -> Any:
    """Register a function that kernels may call, see `compiler.te.extern`.

    Used as `@register_func`, as `@register_func("name")`, or as `register_func("name", f)`; without a name the
    function's own is taken. Returns the function.
    Raises: RegistryError when the name is taken, unless `override`.
    """
    if callable(func_name):
        return _registered(func_name.__name__, func_name, override)
    if f is not None:
        return _registered(func_name, f, override)
    return lambda decorated: _registered(func_name, decorated, override)


def _registered(name: str, function: F, override: bool) -> F:
    if not isinstance(name, str) or not callable(function):
        raise RegistryError(f"register_func takes a name and a function, not {name!r} and {function!r}")
    with _LOCK:
        if name in _FUNCTIONS and not override:
            raise RegistryError(f"the function {name} is registered already; use another name, or override it")
        _FUNCTIONS[name] = function
    return function


@overload
def get_global_func(name: str) -> Function: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> Function | None: ...
def get_global_func(name: str, allow_missing: bool = False) -> Function | None:
    """The function registered under `name`; None for an unknown name when it may be missing.

    Raises: RegistryError for an unknown name.
    """
    with _LOCK:
        function = _FUNCTIONS.get(name)
    if function is None and not allow_missing:
        raise RegistryError(f"no function {name} is registered in this process; register it with register_func")
    return function


def list_global_func_names() -> list[str]:
    """The names of all registered functions, sorted."""
    with _LOCK:
        return sorted(_FUNCTIONS)


def remove_global_func(name: str) -> None:
    """Forget a function; kernels that were loaded before still have it.

    Raises: RegistryError for an unknown name.
    """
    with _LOCK:
        if _FUNCTIONS.pop(name, None) is None:
            raise RegistryError(f"no function {name} is registered in this process, so none can be removed")
