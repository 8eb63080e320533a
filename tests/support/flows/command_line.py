"""The command line in this process: what it ends with, and what it says of a mistake."""

import sys
from collections.abc import Callable

import pytest

from retune.flows.cli import app as cli
from retune.flows.cli import exits

Refused = Callable[..., str]
"""`refused` of a test: the words of a command line are given, what is said comes back."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command line in this process; the second half of `tune` must not be reached."""
    monkeypatch.setattr(sys, "argv", ["retune", *arguments])
    monkeypatch.setattr(
        "retune.flows.server.embedded_server.begin_session", lambda: pytest.fail("the flow would have been started")
    )
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence, on stderr alone, that a user's mistake comes to."""
    assert run(monkeypatch, *arguments) == exits.USER_ERROR
    said = capsys.readouterr()
    assert said.out == "" or (said.out.startswith("reading ") and said.out.count("\n") == 1)
    assert said.err.startswith("retune: ")
    assert said.err.count("\n") == 1
    return said.err
