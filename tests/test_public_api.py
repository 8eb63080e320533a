"""The public names of `retune`, `retune.compiler` and the modules in TVM's form, with their signatures, in one file.

`pytest tests/test_public_api.py --update-golden` rewrites it; the difference is what users see.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from retune.compiler import auto_scheduler, te

FILE = Path(__file__).parent / "cases" / "public_api.txt"
MODULES = (
    "retune",
    "retune.compiler",
    "retune.compiler.tvm.auto_scheduler",
    "retune.compiler.tvm.debug_executor",
    "retune.compiler.tvm.graph_executor",
    "retune.compiler.tvm.nd",
    "retune.compiler.runtime",
    "retune.compiler.te",
    "retune.compiler.vm",
)


def _signature(found: Any) -> str:
    """The parameters with their defaults; without annotations, which mypy checks."""
    if inspect.isclass(found) and issubclass(found, Enum):
        return ""  # Python's own, which differs between its versions
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # a class of the FFI, written in Cython
        return "(...)"
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<([\w.]+)[^<>]* at 0x[0-9a-f]+>", r"<\1>", text)


def _members(name: str, found: type) -> Iterator[str]:
    """The methods and properties that our own classes define or inherit from our own."""
    seen: set[str] = set()
    for base in found.__mro__:
        if not base.__module__.startswith("retune"):
            continue
        for member, value in sorted(vars(base).items()):
            if member.startswith("_") or member in seen:
                continue
            seen.add(member)
            plain = getattr(value, "__func__", value)
            yield f"  {name}.{member}{_signature(plain) if callable(plain) else ''}"


def _lines() -> Iterator[str]:
    for path in MODULES:
        module = importlib.import_module(path)
        yield path
        for name in sorted(module.__all__):
            found = getattr(module, name)
            yield f"  {name}{_signature(found) if callable(found) else ''}"
            if inspect.isclass(found):
                yield from _members(name, found)


def test_the_public_surface_is_the_recorded_one(update_golden: bool) -> None:
    text = "\n".join(_lines()) + "\n"
    if update_golden:
        FILE.write_text(text, encoding="utf-8")
    assert text == FILE.read_text(encoding="utf-8"), "run with --update-golden; name the change in CHANGELOG.md"


@pytest.mark.parametrize("path", MODULES)
def test_every_public_name_is_there(path: str) -> None:
    module = importlib.import_module(path)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []
    assert len(set(module.__all__)) == len(module.__all__)


def _tensors() -> list[te.Tensor]:
    a = te.placeholder((4,), name="a")
    return [a, te.compute((4,), lambda i: a[i] + 1.0, name="b")]


def _deprecated_task() -> object:
    auto_scheduler.register_workload("public_api", _tensors, override=True)
    return auto_scheduler.create_task("public_api", (), "llvm")


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        (_deprecated_task, "SearchTask"),
        (lambda: auto_scheduler.ComputeDAG(compute=_tensors()), "compute_or_sche"),
    ],
)
def test_a_deprecated_name_warns_and_names_its_successor(use: Callable[[], object], advice: str) -> None:
    with pytest.warns(DeprecationWarning, match=advice):
        use()
