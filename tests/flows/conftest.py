"""Fixtures of command-line tests: a working folder that contains the state folder, and the error of a bad command."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.flows import command_line
from tests.support.flows.command_line import Refused


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
