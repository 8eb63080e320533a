"""Every file, module and name that README, docs and the other pages mention exists. Nothing is imported."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
OURS = ("benchmarks", "compiler", "deployments", "docs", "flows", "storage", "tasks", "tests")

_CODE = re.compile(r"^```.*?^```|`[^`]+`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_PATH = re.compile(rf"(?<![\w/.])(?:{'|'.join(OURS)})/[\w./-]*\w")
_NAME = re.compile(
    r"(?<![\w/.])(?:retune\.(?:compiler|flows|storage|tasks)|benchmarks|deployments|docs|tests)(?:\.[A-Za-z_]\w*)+"
)
_STRANGER = re.compile(r"pip install\s+(-\S+\s+)*['\"]?retune\b(?!-)")
"""PyPI's `retune` is another project's package: ours is installed by path, see
`retune.compiler.core.errors.install_hint`.
"""
_MADE_BY_USERS = {"benchmarks.NAME", "deployments/containers/.env"}
_MADE_BY_RECIPES = re.compile(r"^New file `([\w/]+)\.py`", re.MULTILINE)


def _links(page: Path) -> set[str]:
    found = set(_LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))))
    return {link for link in found if "://" not in link}


def _made(text: str) -> set[str]:
    """What users and the recipes of a page make: paths, and names of modules."""
    paths = _MADE_BY_RECIPES.findall(text)
    modules = {f"retune.{path.replace('/', '.')}" for path in paths}
    return _MADE_BY_USERS | {f"{path}.py" for path in paths} | modules


@cache
def _defined(module: Path) -> frozenset[str]:
    """The names at the top of a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return frozenset(names)


def _exists(name: str) -> bool:
    """Whether a dotted name is a package, a module, or what a module defines."""
    folder, words = ROOT, name.split(".")
    for number, word in enumerate(words):
        module = folder / f"{word}.py"
        if module.is_file() or not (folder / word).is_dir():
            module = module if module.is_file() else folder / "__init__.py"
            rest = words[number + 1 :] if module.name != "__init__.py" else words[number:]
            return module.is_file() and all(each in _defined(module) for each in rest)
        folder = folder / word
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert {link for link in _links(page) if not (page.parent / link).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_in_the_documents_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {path for path in set(_PATH.findall(text)) - _made(text) if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_documents_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    names = {name for name in set(_NAME.findall(text)) - _made(text) if not name.endswith(".md")}
    assert {name for name in names if not _exists(name)} == set()


def test_nothing_says_to_install_from_pypi_what_is_another_project_there() -> None:
    sources = [path for folder in OURS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")]
    told = {path for path in (*PAGES, *sources) if _STRANGER.search(path.read_text(encoding="utf-8"))}
    assert told == set()


def test_the_tables_of_folders_are_complete() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("compiler/*/__init__.py")}
    assert {*re.findall(r"^\| `(\S+)/` \|", text, re.M)} == {"flows", "tasks", "storage", "retune", *rooms}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {
        folder
        for folder in ("flows", "tasks", "compiler", "storage", "retune", *rooms)
        if f"`{folder.removeprefix('compiler/')}" not in readme
    } == set()


def test_no_module_docstring_uses_the_formula_of_in_out_and_always() -> None:
    sources = [path for folder in OURS for path in (ROOT / folder).rglob("*.py")]
    formula = re.compile(r"\AIn: |^Always: ", re.MULTILINE)
    suspects = {path: text for path in sources if re.search("In: |Always: ", text := path.read_text(encoding="utf-8"))}
    docstrings = {path: ast.get_docstring(ast.parse(text)) or "" for path, text in suspects.items()}
    assert {path.relative_to(ROOT).as_posix() for path, text in docstrings.items() if formula.search(text)} == set()
