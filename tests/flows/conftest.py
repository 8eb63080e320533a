"""In: nothing. Out: a folder for a test of the command line. Always: the state folder is in there, too."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with its own state folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path / "state"))
    return tmp_path
