"""Imports of every source file: they point down, stand at the top, form no circle, and each dependency has one door.

A string that is the dotted name of one of our modules, alone or with `:name`, counts as an import of it: `importlib`
loads it, a worker process does (`retune.compiler.measure.processes.worker_main.resolve`), or `python -m` starts it. So
it may not point upwards. It may not close a circle either, unless the module is the main module of a process, which
has imported nothing yet. The modules in `retune/` are above all parts, and may name any of them.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.support.sources import ENVIRONMENT, name_of, nodes_of

ROOT = Path(__file__).parent.parent

PACKAGES = ("compiler", "storage", "tasks", "flows")

FACE = "retune"
"""The package above all of these, whose own modules are in the folder of its name."""

BELOW = {
    "storage": {
        "storage",
        "compiler.measure.record",
        "compiler.core.errors",
        "compiler.runtime.atomic_write",
        "compiler.runtime.kernel_row",
        "compiler.runtime.temporaries",
    },
    "tasks": {"tasks", "storage", "compiler"},
    "flows": {"flows", "tasks", "storage", "compiler"},
}
"""What the packages above the compiler may import, by prefix."""

ROOMS = (
    "core",
    "ir",
    "runtime",
    "te",
    "schedule",
    "model",
    "ops",
    "graph",
    "frontend",
    "lower",
    "codegen",
    "measure",
    "search",
    "driver",
    "vm",
    "tune",
    "tvm",
)
"""The folders of the compiler from the bottom up: a module imports its own folder and those before it."""

DOORS = {
    "llvmlite": ("compiler/codegen/", "compiler/runtime/loader.py"),
    "ml_dtypes": ("compiler/core/dtype.py",),
    "xgboost": ("compiler/model/boosted_trees.py",),
    "onnx": ("compiler/frontend/",),
    "onnxruntime": ("compiler/tune/onnx_runtime.py",),
    "openvino": ("compiler/tune/openvino.py",),
    "pyarrow": ("storage/",),
    "duckdb": ("storage/",),
    "fsspec": ("storage/object_store.py",),
    "prefect": ("tasks/", "flows/"),
    "ctypes": ("compiler/runtime/",),
    "tvm_ffi": ("compiler/runtime/ffi/bindings.py",),
    "rich": ("flows/",),
    "typer": ("flows/",),
}
"""Who may import a dependency."""


RESOLVERS = {
    "compiler/core/lazy.py": "public names of packages, by the tables beside them",
    "compiler/measure/processes/worker_main.py": "functions by the paths of requests, each a checked string",
    "compiler/tune/operators.py": "modules of users, which register operators",
}
"""Files that load modules by names that they compute."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: where it stands, what it names, and whether it stands inside a function."""

    path: str
    line: int
    module: str
    nested: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"

    @property
    def is_upward(self) -> bool:
        """Whether it names one of our modules that is not below the file."""
        package, top = _top(self.path.replace("/", ".")), _top(self.module)
        if top == FACE:
            return True
        if top not in PACKAGES:
            return False
        if package != "compiler":
            return not any(f"{self.module}.".startswith(f"{prefix}.") for prefix in BELOW[package])
        here, there = _part(self.path), _part(self.module)
        if top != "compiler":
            return True
        if here in (there, "__init__"):
            return False
        return there == "" or ROOMS.index(there) > ROOMS.index(here)


@cache
def imports() -> tuple[Import, ...]:
    """Every import in the packages. Read once, by the first test that asks."""
    return tuple(_imports())


def _imports() -> Iterator[Import]:
    for path in _paths():
        yield from _imports_of(ast.parse((ROOT / path).read_text(encoding="utf-8")), path, nested=False)


@cache
def strings() -> tuple[Import, ...]:
    """Every string in the packages that names one of our modules."""
    return tuple(each for path in _paths() for each in _strings_in(nodes_of(ROOT / path), path))


def strings_of(source: str, path: str) -> Iterator[Import]:
    """The strings of a file that name one of our modules, and loads of `retune` itself or of what it computes there."""
    return _strings_in(ast.walk(ast.parse(source)), path)


def _strings_in(nodes: Iterable[ast.AST], path: str) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"retune\.([\w.]+)(:\w+)?", node.value)
            module = named and _module_of(named[1])
            if module:
                yield Import(path, node.lineno, module, nested=True)
        elif _is_load(node):
            begin = _begin_of_name(node)
            if isinstance(begin, ast.Constant) and begin.value in (FACE, f"{FACE}."):
                yield Import(path, node.lineno, FACE, nested=True)


def _module_of(name: str) -> str | None:
    """The module in a dotted name, which may go on with names inside the module."""
    words = name.strip(".").split(".")
    while words:
        for module in (words, [FACE, *words]):
            path = ROOT.joinpath(*module)
            if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
                return ".".join(module)
        words.pop()
    return None


def _is_load(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether a node is a call that loads a module by its name."""
    return isinstance(node, ast.Call) and name_of(node.func).rpartition(".")[2] in ("import_module", "__import__")


def _begin_of_name(call: ast.Call) -> ast.expr:
    """The name of the module that a call loads; of a formatted string its first piece."""
    return call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]


def computed_loads_of(source: str, path: str) -> Iterator[str]:
    """Where a file loads a module by a name that is no string, nor begins with its own name or one of ours."""
    return _computed_loads_in(ast.walk(ast.parse(source)), path)


def _computed_loads_in(nodes: Iterable[ast.AST], path: str) -> Iterator[str]:
    for node in nodes:
        if not _is_load(node):
            continue
        begin = _begin_of_name(node)
        own = isinstance(begin, ast.FormattedValue) and ast.unparse(begin.value) == "__name__"
        if not own and not isinstance(begin, ast.Constant):
            yield f"{path}:{node.lineno}"


def _paths() -> Iterator[str]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix()


def _is_main(module: str) -> bool:
    """Whether a module is run as the main one of a process."""
    path = (ROOT / module.replace(".", "/")).with_suffix(".py")
    return path.exists() and 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def circles(edges: Iterable[Import]) -> list[str]:
    """The modules of each circle of imports."""
    follows: dict[str, set[str]] = {}
    for each in edges:
        if each.module != _name(each.path):  # a main module may import the copy of itself that others import
            follows.setdefault(_name(each.path), set()).add(each.module)
    try:
        tuple(TopologicalSorter(follows).static_order())
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def _name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


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


def test_every_part_of_the_compiler_is_a_room() -> None:
    parts = {_part(path.relative_to(ROOT).as_posix()) for path in (ROOT / "compiler").rglob("*.py")} - {"__init__"}
    assert parts == set(ROOMS)


def test_no_folder_is_flat() -> None:
    """So that a reader finds a module by the folders."""
    counts = Counter(path.rpartition("/")[0] for path in _paths() if not path.endswith("__init__.py"))
    assert [folder for folder, count in counts.items() if count > 25] == []


def test_imports_point_down() -> None:
    assert [str(each) for each in imports() if each.is_upward] == []


def test_strings_that_name_modules_point_down() -> None:
    assert [str(each) for each in strings() if each.is_upward] == []


@pytest.mark.parametrize(
    ("path", "text", "is_upward"),
    [
        ("compiler/tvm/auto_scheduler/remote.py", '_COURIER = "retune.tasks.rpc:prefect_courier"', True),
        ("compiler/measure/builder.py", 'worker.call("retune.compiler.driver.build:build")', True),
        ("compiler/measure/builder.py", 'worker.call("retune.compiler.codegen.build:build_kernel")', False),
        ("storage/base.py", 'importlib.import_module("retune.tasks.store")', True),
        ("tasks/verify.py", 'importlib.import_module("retune.storage")', False),
        ("compiler/tune/extract.py", '["-m", "retune.flows.server.reaper"]', True),
        ("compiler/runtime/__init__.py", 'importlib.import_module("retune.compiler").load_module', True),
        ("compiler/runtime/loader.py", '__import__("retune.compiler.tune")', True),
        ("compiler/runtime/loader.py", 'import_module("retune").load', True),
        ("compiler/runtime/loader.py", 'import_module(f"retune.{part}")', True),
        ("tasks/verify.py", 'importlib.import_module("retune.network")', True),
    ],
)
def test_a_string_that_points_upwards_is_found(path: str, text: str, is_upward: bool) -> None:
    (found,) = strings_of(text, path)
    assert found.is_upward == is_upward


def test_no_modules_import_each_other_in_a_circle() -> None:
    named = [each for each in strings() if not _is_main(each.module)]
    assert circles([*imports(), *named]) == []


def test_a_running_machine_names_the_front_end_once() -> None:
    """For regions that have no symbolic graph for the shapes at hand, by a string."""
    compilers = {"compiler/vm/compiler.py", "compiler/vm/executor.py"}
    named = [each for each in (*imports(), *strings()) if each.module.startswith("compiler.frontend")]
    places = {each.path for each in named if each.path.startswith(("compiler/vm/", "compiler/runtime/executor/"))}
    assert places - compilers == {"compiler/vm/saved_program.py"}
    assert [str(each) for each in imports() if each.path == "compiler/vm/saved_program.py" and each in named] == []
    ops = ("compiler/graph/", "compiler/ops/", "compiler/runtime/executor/", "compiler/runtime/")
    assert [str(each) for each in named if each.path.startswith(ops)] == []


def test_a_circle_through_a_string_is_found() -> None:
    planted = strings_of('importlib.import_module("retune.compiler.vm.machine")', "compiler/vm/callees.py")
    assert {"compiler.vm.machine", "compiler.vm.callees"} <= set(circles([*imports(), *planted]))


def test_modules_are_loaded_by_names_that_can_be_checked() -> None:
    found = [each for path in _paths() for each in _computed_loads_in(nodes_of(ROOT / path), path)]
    assert {each.partition(":")[0] for each in found} == set(RESOLVERS)
    for text in ("importlib.import_module(name)", "__import__(part + '.x')", "import_module(f'{package}.rpc')"):
        assert list(computed_loads_of(text, "compiler/x.py")) == ["compiler/x.py:1"]
    assert list(computed_loads_of("import_module(f'{__name__}.{part}')", "compiler/x.py")) == []


def test_pages_are_drawn_without_the_workflow_engine() -> None:
    allowed = ("tasks.report", "storage", "compiler")
    wrong = [
        str(each)
        for each in imports()
        if each.path.startswith("tasks/report/")
        and (_top(each.module) == "prefect" or (_top(each.module) in PACKAGES and not each.module.startswith(allowed)))
    ]
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


def test_only_tables_of_a_module_keep_their_own_layout() -> None:
    """`# fmt: skip` may stand behind the bracket that ends a table, in the first column, and nowhere else."""
    elsewhere = re.compile(r"^(?![)\]}]+(?: \+ \w+)?  # fmt: skip$).*# fmt: skip$", re.MULTILINE)
    assert [path for path in _paths() if elsewhere.search((ROOT / path).read_text(encoding="utf-8"))] == []


def test_only_the_configuration_reads_the_environment() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in _paths()
        for node in nodes_of(ROOT / path)
        if isinstance(node, ast.Attribute) and name_of(node) in [f"os.{name}" for name in ENVIRONMENT]
    ]
    assert [each for each in wrong if not each.startswith("compiler/core/config.py:")] == []


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in _paths()
        for node in nodes_of(ROOT / path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "benchmarks"])
def test_our_packages_are_imported_as_parts_of_retune(folder: str) -> None:
    """Outside the root of a clone there is no package `compiler`, `storage`, `tasks` or `flows`."""
    suspect = re.compile(rf"^\s*(from|import)\b.*(?<![\w.])({'|'.join(PACKAGES)})\b", re.MULTILINE)
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if suspect.search(text) else ():
            match node:
                case ast.ImportFrom(module=str(module)):
                    names = [module]
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case _:
                    continue
            wrong += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in names if _top(name) in PACKAGES]
    assert wrong == []


TVM_FORMS = (
    "compiler/tvm/auto_scheduler/",
    "compiler/tvm/debug_executor.py",
    "compiler/tvm/graph_executor.py",
    "compiler/runtime/timing.py",
    "compiler/core/target.py",
    "compiler/te/extern.py",
    "compiler/vm/machine.py",
)
"""Where TVM says how many parameters a function has."""


def test_signatures_have_at_most_seven_parameters() -> None:
    """Those of commands are options of the command line."""
    paths = [path for path in _paths() if not path.startswith((*TVM_FORMS, "flows/cli/commands/"))]
    assert not {f"{path} {name}" for path in paths for name in long_signatures(nodes_of(ROOT / path))}
    assert list(long_signatures(ast.walk(ast.parse("def f(self, a, b, c, d, e, /, f, *, g): ...")))) == []
    assert list(long_signatures(ast.walk(ast.parse("def f(self, a, b, c, d, e, /, f, *, g, h): ...")))) == ["f"]


def long_signatures(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names of functions with more than seven parameters."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len(parameters) - (bool(parameters) and parameters[0].arg in ("self", "cls")) > 7:
                yield node.name
