"""Public names of a package, loaded on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of `package`; a public name is imported when it is first used.

    `modules` maps modules, relative to `package`, to their public names: `{"driver.modules": "build Module"}`. A module
    with the text "" is public itself.
    """
    homes = {name: module for module, names in modules.items() for name in names.split() or [module.rpartition(".")[2]]}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return getattr(module, name) if modules[homes[name]] else module

    return load, sorted(name for name, module in homes.items() if modules[module])
