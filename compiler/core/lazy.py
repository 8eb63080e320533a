"""Public names of a package, loaded on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. `modules` maps its modules to their public names, separated by spaces; a module
    without names is public itself.
    """
    homes = {name: module for module, names in modules.items() for name in names.split() or [module.rpartition(".")[2]]}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return getattr(module, name) if modules[homes[name]] else module

    return load
