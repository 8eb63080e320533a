"""A damaged file of a store costs what was in it, never a command."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retune.storage.artifacts import ArtifactStore
from retune.storage.checkpoints import CheckpointStore
from tests.support.flows.command_line import run
from tests.support.flows.damages import DAMAGES
from tests.support.stored_runs import finished_run, interrupted_run
from tests.support.tiers import long_except

LISTS = (["runs"], ["records", "list"], ["records", "best"], ["records", "query", "SELECT * FROM runs"])
COMMANDS = (
    *LISTS,
    ["report", "-o", "page.html"],
    ["records", "show", "0"],
    ["records", "query", "SELECT count(*) FROM records"],
    ["records", "query", "SELECT count(*) FROM rounds, drift"],
    ["records", "export", "out.json"],
    ["records", "check"],
    ["records", "compact"],
)
SOUND_OR_SAID = (0, 2)


class HangError(BaseException):
    """A command did not come back; no handler of the command line takes it for a fault."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of file, and two runs more than the one that is damaged."""
    root = tmp_path_factory.mktemp("sample") / "state"
    for _ in range(2):
        finished_run(root, tasks=2)
    interrupted_run(root)
    ArtifactStore(root).put("key", {"file": b"content"})
    CheckpointStore(root, "llvm", "here", 1, 1).save(b"lessons")
    return root


def kinds_of_files(root: Path) -> dict[str, Path]:
    """One file of every kind, by what it is called without its identifier."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {
        f"{path.relative_to(root).parts[0]}{path.suffix}{'' if path.stem.isupper() else path.stem[:6]}": path
        for path in found
        if not path.name.endswith((".md", ".html"))
    }


def damaged(sample: Path, to: Path, file: Path, damage: str) -> None:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(sample, to, symlinks=True)
    DAMAGES[damage](to / file.relative_to(sample))


def attack(commands: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    failed = []
    for words in commands:  # type: ignore[attr-defined]
        (folder / "out.json").unlink(missing_ok=True)
        with within(600):
            code = run(monkeypatch, *words)
        allowed = (0,) if words in LISTS else SOUND_OR_SAID
        if code not in allowed:
            failed.append(f"{' '.join(words)}: {code}")
    return failed


@pytest.mark.parametrize(
    "damage", long_except(["a pipe"], ["nested deep", "a pipe", "a link to nothing", "every value a string"])
)
def test_no_list_stops_at_a_damaged_file(
    damage: str, folder: Path, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in kinds_of_files(sample).values():
        damaged(sample, folder / "state", file, damage)
        assert attack(LISTS, folder, monkeypatch) == [], (file, capsys.readouterr().err[-2000:])


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_of_any_file_is_a_fault_of_any_command(
    damage: str, folder: Path, sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = []
    for kind, file in kinds_of_files(sample).items():
        damaged(sample, folder / "state", file, damage)
        found = attack(COMMANDS, folder, monkeypatch)
        said = capsys.readouterr().err[-2000:]
        failed += [f"{kind}: {each}: {said}" for each in found]
    assert failed == []


def test_every_kind_of_damage_is_tried() -> None:
    assert len(DAMAGES) >= 48
