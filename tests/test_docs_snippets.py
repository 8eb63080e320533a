"""Every example of README and docs runs: programs and commands in the order of their page, SQL on a small store.

The word behind the language of a fence says what a block needs: `python gpu` and `python torch` run where there is a
GPU or PyTorch, elsewhere only what they import of ours is looked for; the words in `ELSEWHERE` mark commands for other
machines, whose options are still checked. A `console` block has commands behind `$` and what they print; its lines must
appear in the output in their order, numbers, run ids and the state folder aside.
"""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import typer

from retune import compiler
from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.schedule import workload_registry
from retune.flows.cli import app as cli
from retune.storage.query import run_query
from tests.support.flows.command_line import run
from tests.support.record_samples import write_store
from tests.test_docs import OURS, PAGES, ROOT

SLOW = {
    "README.md",
    "first-network.md",
    "operator.md",
    "python.md",
    "pytorch.md",
    "scripts.md",
    "slow-kernel.md",
    "vm.md",
}
"""Pages whose examples take more than some seconds: they tune, or compile networks."""

LONG = {"cli.md", "onnxruntime.md", "precision.md"}
"""Pages whose examples take more than 3 s of CPU."""

ELSEWHERE = {
    "install": "makes an environment or tunes for minutes",
    "server": "needs a Prefect server that stays",
    "hosts": "is for several machines",
    "docker": "needs Docker",
    "model": "needs a model of the reader, or serves it",
}
"""What a block of commands needs that a test has not, and why it is only parsed."""

SERVERS = ("mlflow", "ray", "triton")
"""What a Python block needs that runs in a process of its own, see `tests.flows.test_serving_recipes`."""

RUNS = re.compile(r"retune (networks|runs|config|records (best|check|compact\b.*|query .*(best|runs).*))$")
"""Commands that are run as they stand, on a small store; the others are only parsed."""

_FENCE = re.compile(r"^```(\w+) ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`(retune [^`]+)`")
_COMMAND = re.compile(r"^(?:    |\$ )?(?:\.venv/bin/)?(retune (?!\d).*)$", re.MULTILINE)


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


def examples(page: Path) -> list[Block]:
    """The blocks of a page that can be run, in their order; those of recipes are for a copy of the sources, see
    `tests.test_recipes`.
    """
    if page.name == "CONTRIBUTING.md":
        return []
    found = [block for language in ("python", "sh", "console") for block in blocks(page, language)]
    return sorted((block for block in found if block.needs not in ELSEWHERE), key=lambda block: block.line)


def can_run(block: Block) -> bool:
    if block.needs in SERVERS:
        return False
    return {"": True, "torch": find_spec("torch") is not None, "gpu": not why_not()}[block.needs]


def in_shell(script: str) -> str:
    """What a script prints, run as a person would: with our commands on the path, until the first that fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "110", "PYTHONPATH": str(ROOT)}  # for benchmarks
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def plain(line: str) -> str:
    """A line of output without what differs from run to run."""
    line = re.sub(r"\S*/\.retune", ".retune", line)
    line = re.sub(r"\b01[0-9A-HJKMNP-TV-Z]{24}\b", "RUN", line)
    line = re.sub(r"\d[\d.,:e+-]*", "#", line)
    return " ".join(re.sub(r"[─━]+", "─", line).split())


def run_console(block: Block, page: Path) -> None:
    """Run the commands of a console block, each with the lines below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        printed = iter([plain(line) for line in in_shell(command).splitlines()])
        for line in shown.splitlines():
            if line.strip() not in ("", "..."):
                assert plain(line) in printed, f"{page.name}:{block.line}: `{command}` does not print {line!r}"


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
    """What an example registers is forgotten, but not what our own modules register when they are first imported."""
    import_module("retune.compiler.tune.operators")
    monkeypatch.setattr(workload_registry, "WORKLOAD_FUNC_REGISTRY", dict(workload_registry.WORKLOAD_FUNC_REGISTRY))
    before = set(compiler.list_global_func_names())
    yield
    for name in set(compiler.list_global_func_names()) - before:
        compiler.remove_global_func(name)


def _tier(page: Path) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow, pytest.mark.timeout(1800)]
    return slow if page.name in SLOW else [pytest.mark.long] if page.name in LONG else []


@pytest.mark.usefixtures("store", "registries")
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # DuckDB's way of making a pandas frame
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning", "ignore::DeprecationWarning:torch")  # of its exporter
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=_tier(page)) for page in PAGES if examples(page)],
)
def test_the_examples_of_a_page_run_one_after_the_other(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)  # where pickle looks for the functions of the page
    for block in examples(page):
        if block.language == "sh":
            in_shell(block.text)
        elif block.language == "console":
            run_console(block, page)
        else:
            tree = ast.parse("\n" * block.line + block.text, str(page))  # errors have the lines of the page
            exec(compile(tree if can_run(block) else imports_of_ours(tree), str(page), "exec"), vars(example))


def test_every_block_of_commands_runs_or_says_why_not() -> None:
    needs = {block.needs for page in PAGES for language in ("sh", "console") for block in blocks(page, language)}
    assert needs <= {"", *ELSEWHERE}


def test_no_page_of_the_default_tests_tunes_for_minutes() -> None:
    texts = {
        page.name: "".join(block.text for block in examples(page)) for page in PAGES if page.name not in SLOW | LONG
    }
    assert [name for name, text in texts.items() if re.search(r"--minutes|minutes=|retune tune (?!mlp)", text)] == []


def test_no_block_of_commands_hides_from_the_tests() -> None:
    """An indented block, or a fence without a language, is neither run nor parsed."""
    fence = re.compile(r"^```$\n(\$ |retune |python |prefect )", re.MULTILINE)
    hidden = {page.name for page in PAGES if fence.search(_FENCE.sub("", page.read_text(encoding="utf-8")))}
    assert hidden == set()


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
