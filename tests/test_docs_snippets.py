"""Every example of README and docs runs: programs in the order of their page, SQL on a small store, command lines.

A fence of ```python gpu or ```python torch needs a GPU or PyTorch; without, only what it imports of ours is looked for.
"""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from retune import compiler
from retune.compiler.runtime.cuda import why_not
from retune.compiler.schedule import workload_registry
from retune.flows import cli
from retune.storage.query import run_query
from tests.flows.command_line import run
from tests.test_docs import OURS, PAGES
from tests.unit.storage.samples import write_store

SLOW = {"README.md", "scripts.md", "vm.md"}
"""Pages whose programs take more than 2 s: they tune, or compile networks."""

FIRST = {"README.md": "retune compile resnet18 -o resnet18.so"}
"""A command of the page that makes what its programs load."""

RUNS = re.compile(r"retune (networks|runs|config|records (best|check|compact\b.*|query .*(best|runs).*))$")
"""Commands that are run as they stand, on a small store; the others are only parsed."""

_FENCE = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`(retune [^`]+)`")
_COMMAND = re.compile(r"^(?:    )?(retune .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what it needs, its text, and where that begins."""

    language: str
    needs: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match[1], match[2], match[3], text.count("\n", 0, match.start(3))) for match in _FENCE.finditer(text)
    ]
    return [block for block in found if block.language == language]


def can_run(block: Block) -> bool:
    return {"": True, "torch": find_spec("torch") is not None, "gpu": not why_not()}[block.needs]


def imports_of_ours(tree: ast.Module) -> ast.Module:
    def is_ours(node: ast.stmt) -> bool:
        return isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS

    return ast.Module([node for node in tree.body if is_ours(node)], [])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, whose state folder has two runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / ".retune"))
    return write_store(tmp_path / ".retune")


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example registers is forgotten."""
    monkeypatch.setattr(workload_registry, "_REGISTRY", dict(workload_registry._REGISTRY))
    before = set(compiler.list_global_func_names())
    yield
    for name in set(compiler.list_global_func_names()) - before:
        compiler.remove_global_func(name)


def pages_with(language: str) -> list[Any]:
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in PAGES
        if blocks(page, language)
    ]


@pytest.mark.usefixtures("store", "registries")
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # DuckDB's way of making a pandas frame
@pytest.mark.parametrize("page", pages_with("python"))
def test_the_programs_of_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in FIRST:
        assert FIRST[page.name] in page.read_text(encoding="utf-8")
        assert run(monkeypatch, *shlex.split(FIRST[page.name])[1:]) == 0
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where pickle looks for the functions of the page
    for block in blocks(page, "python"):
        tree = ast.parse("\n" * block.line + block.text, str(page))  # errors have the lines of the page
        exec(compile(tree if can_run(block) else imports_of_ours(tree), str(page), "exec"), vars(example))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sql")], ids=lambda page: page.name)
def test_documented_queries_find_something(page: Path, store: Path) -> None:
    for block in blocks(page, "sql"):
        columns, rows = run_query(store, block.text)
        assert columns
        assert rows, block.text


def documented_commands() -> list[str]:
    """Every command line in a block or between backticks, without its comment."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = [*_COMMAND.findall(text), *_SPAN.findall(text)]
    return sorted({shlex.join(shlex.split(line, comments=True)) for line in lines})


@pytest.mark.parametrize("line", documented_commands())
def test_documented_commands_and_options_exist(line: str) -> None:
    """A line in running text may leave out arguments."""
    command, context, words = typer.main.get_command(cli.app), None, shlex.split(line)
    name: str | None = words.pop(0)
    while "--help" not in words and "--version" not in words and name != "COMMAND":
        try:
            context = command.make_context(name, list(words), parent=context)
        except typer.TyperException as error:
            assert error.format_message().startswith("Missing argument"), line  # noqa: PT017
            break
        if not hasattr(command, "resolve_command"):
            break
        name, command, words = command.resolve_command(context, words)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("line", [line for line in documented_commands() if RUNS.match(line)])
def test_cheap_documented_commands_run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, *shlex.split(line)[1:]) == 0
