"""In: every source file. Out: its imports, checked.

Always: imports point down, stand at the top, and each dependency has one door.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PACKAGES = ("compiler", "storage", "tasks", "flows")

BELOW = {
    "storage": {
        "storage",
        "compiler.measure.record",
        "compiler.errors",
        "compiler.runtime.published",
        "compiler.runtime.temporaries",
    },
    "tasks": {"tasks", "storage", "compiler"},
    "flows": {"flows", "tasks", "storage", "compiler"},
}
"""What the packages above the compiler may import, by prefix."""

RANK = {
    "errors": 0,
    "config": 0,
    "settings": 0,
    "options": 0,
    "dtype": 0,
    "packing": 0,
    "target": 0,
    "gpu_facts": 0,
    "ir": 1,
    "runtime": 1,
    "te": 2,
    "nd": 2,
    "executor": 2,
    "graph_executor": 3,
    "debug_executor": 3,
    "ops": 3,
    "schedule": 3,
    "lower": 4,
    "codegen": 5,
    "features": 5,
    "simt": 5,
    "cost_model": 6,
    "measure": 6,
    "search": 7,
    "graph": 8,
    "frontend": 9,
    "driver": 10,
    "auto_scheduler": 11,
    "vm": 11,
}
"""The order inside the compiler: a part imports itself and parts of a lower rank, never a neighbour of its own."""

NEIGHBOURS = {
    ("target", "errors"),
    ("target", "gpu_facts"),
    ("dtype", "errors"),
    ("packing", "errors"),
    ("settings", "errors"),
    ("options", "errors"),
    ("settings", "options"),
    ("config", "settings"),
}
"""Exceptions to that: the exception tree is below everything, and `config` applies what `settings` defines."""

DOORS = {
    "llvmlite": ("compiler/codegen/", "compiler/runtime/loader.py"),
    "ml_dtypes": ("compiler/dtype.py",),
    "xgboost": ("compiler/cost_model/xgb.py",),
    "onnx": ("compiler/frontend/",),
    "onnxruntime": ("compiler/driver/onnx_runtime.py",),
    "pyarrow": ("storage/",),
    "duckdb": ("storage/",),
    "fsspec": ("storage/objects.py",),
    "prefect": ("tasks/", "flows/"),
    "ctypes": ("compiler/runtime/",),
    "tvm_ffi": ("compiler/runtime/ffi.py",),
    "rich": ("flows/",),
    "typer": ("flows/",),
}
"""Who may import a dependency."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: where it stands, what it names, and whether it stands inside a function."""

    path: str
    line: int
    module: str
    nested: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


@cache
def imports() -> tuple[Import, ...]:
    """Every import in the packages. Read once, by the first test that asks."""
    return tuple(_imports())


def _imports() -> Iterator[Import]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            yield from _imports_of(ast.parse(path.read_text(encoding="utf-8")), name, nested=False)


def _folder(module: str) -> str:
    """The path of one of our modules from the root on, with dots: `compiler.te` of `retune.compiler.te`."""
    return module.removeprefix("retune.")


def _imports_of(tree: ast.AST, path: str, *, nested: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, _folder(alias.name), nested) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _imports_from(node, path, nested=nested)
        else:
            inner = nested or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_of(node, path, nested=inner)


def _imports_from(node: ast.ImportFrom, path: str, *, nested: bool) -> Iterator[Import]:
    module = "." * node.level + (node.module or "")
    for alias in node.names:
        deeper = _folder(f"{module}.{alias.name}")
        is_module = (ROOT / deeper.replace(".", "/")).with_suffix(".py").exists()
        is_package = (ROOT / deeper.replace(".", "/") / "__init__.py").exists()
        yield Import(path, node.lineno, deeper if is_module or is_package else _folder(module), nested)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _part(text: str) -> str:
    """The part of the compiler that a module or a path belongs to: `compiler.te.tensor` and `compiler/te/x.py` are
    `te`.
    """
    words = text.replace("/", ".").removesuffix(".py").split(".")
    return words[1] if len(words) > 1 else ""


def test_every_part_of_the_compiler_has_a_rank() -> None:
    parts = {_part(path.relative_to(ROOT).as_posix()) for path in (ROOT / "compiler").rglob("*.py")} - {"__init__"}
    assert parts <= set(RANK)


def test_packages_import_only_what_is_below_them() -> None:
    wrong = [
        str(each)
        for each in imports()
        if _top(each.module) in PACKAGES
        and _top(each.path.replace("/", ".")) != "compiler"
        and not any(
            each.module == prefix or each.module.startswith(f"{prefix}.")
            for prefix in BELOW[_top(each.path.replace("/", "."))]
        )
    ]
    assert wrong == []


def test_pages_are_drawn_without_the_workflow_engine() -> None:
    allowed = ("tasks.pages", "storage", "compiler")
    wrong = [
        str(each)
        for each in imports()
        if each.path.startswith("tasks/pages/")
        and (_top(each.module) == "prefect" or (_top(each.module) in PACKAGES and not each.module.startswith(allowed)))
    ]
    assert wrong == []


def test_the_compiler_imports_nothing_above_it() -> None:
    wrong = [
        str(each)
        for each in imports()
        if each.path.startswith("compiler/") and _top(each.module) in ("storage", "tasks", "flows")
    ]
    assert wrong == []


def test_parts_of_the_compiler_import_only_lower_parts() -> None:
    wrong = []
    for each in imports():
        here, there = _part(each.path), _part(each.module)
        if not each.path.startswith("compiler/") or _top(each.module) != "compiler" or "" in (here, there):
            continue
        if here not in (there, "__init__") and RANK[there] >= RANK[here] and (here, there) not in NEIGHBOURS:
            wrong.append(str(each))
    assert wrong == []


@pytest.mark.parametrize("dependency", sorted(DOORS))
def test_a_dependency_has_one_door(dependency: str) -> None:
    wrong = [
        str(each)
        for each in imports()
        if _top(each.module) == dependency and not each.path.startswith(DOORS[dependency])
    ]
    assert wrong == []


def test_imports_are_absolute_and_at_the_top() -> None:
    wrong = [
        str(each)
        for each in imports()
        if each.module.startswith(".") or (each.nested and _top(each.module) in PACKAGES)
    ]
    assert wrong == []


def test_only_the_configuration_reads_the_environment() -> None:
    wrong = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv", "os.putenv"):
                    wrong.append(f"{name}:{node.lineno}")
    assert [each for each in wrong if not each.startswith("compiler/config.py:")] == []


def test_only_the_command_line_prints() -> None:
    wrong = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                    wrong.append(f"{name}:{node.lineno}")
    assert wrong == []


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks"])
def test_our_packages_are_imported_as_parts_of_retune(folder: str) -> None:
    """Outside the root of a clone there is no package `compiler`, `storage`, `tasks` or `flows`."""
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ImportFrom(module=str(module)):
                    names = [module]
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case _:
                    continue
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in names if _top(name) in PACKAGES]
    assert wrong == []
