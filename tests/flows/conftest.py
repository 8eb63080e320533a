"""In: nothing. Out: a folder for a test of the command line, and what is said of mistakes. Always: the state folder is
in there, too.
"""

from functools import partial
from pathlib import Path

import pytest

from tests.flows import command_line
from tests.flows.command_line import Refused


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with its own state folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line that is a mistake: the one sentence that it comes to."""
    return partial(command_line.refused, monkeypatch, capsys)
