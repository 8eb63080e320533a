"""The recipes of CONTRIBUTING add what they say: each is applied to a copy of the sources, and its check runs there."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("compiler", "storage", "tasks", "flows", "retune")

_RECIPE = re.compile(r"^### Add (?:an? )([\w ]+)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"(?:New file `(?P<new>[^`]+)`|In `(?P<old>[^`]+)`, below `(?P<line>[^`]+)`|(?P<check>Check)):\n\n"
    r"```(?:python|text)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Recipe:
    """A recipe: its name and its text."""

    name: str
    text: str

    def check(self) -> str:
        """The program that shows that the addition works."""
        (found,) = [match["text"] for match in _BLOCK.finditer(self.text) if match["check"]]
        return found

    def apply(self, folder: Path) -> int:
        """Follow the recipe in a copy of the sources; how many files it touches."""
        touched = set()
        for match in _BLOCK.finditer(self.text):
            if match["new"]:
                assert not (folder / match["new"]).exists()
                (folder / match["new"]).write_text(match["text"], encoding="utf-8")
            elif match["old"]:
                path, line = folder / match["old"], f"{match['line']}\n"
                source = path.read_text(encoding="utf-8")
                assert f"\n{source}".count(f"\n{line}") == 1, f"{match['old']} has no single line {line!r}"
                space = "\n\n" if match["text"].startswith(("def ", "class ")) else ""
                added = f"\n{source}".replace(f"\n{line}", f"\n{line}{space}{match['text']}")
                path.write_text(added[1:], encoding="utf-8")
            touched.add(match["new"] or match["old"])
        return len(touched - {None})


def recipes() -> list[Recipe]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return [Recipe(match[1], match[2]) for match in _RECIPE.finditer(text)]


def copy_of_sources(folder: Path) -> Path:
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run_in(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "RETUNE_HOME": str(folder / "state")}
    command = [sys.executable, "-c", f"import retune\nassert retune.__file__.startswith({str(folder)!r})\n{program}"]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_there_are_recipes_for_what_is_added_most_often() -> None:
    assert [each.name for each in recipes()] == ["operator", "transform step", "graph pass", "sketch rule", "target"]


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(each, id=each.name.replace(" ", "-"), marks=() if each.name == "graph pass" else pytest.mark.long)
        for each in recipes()
    ],
)
def test_a_recipe_adds_what_its_check_uses(recipe: Recipe, tmp_path: Path) -> None:
    folder = copy_of_sources(tmp_path)
    before = run_in(folder, recipe.check())
    assert before.returncode != 0, "the check passes without the addition"
    assert recipe.apply(folder) <= 4
    after = run_in(folder, recipe.check())
    assert after.returncode == 0, after.stderr[-3000:]
