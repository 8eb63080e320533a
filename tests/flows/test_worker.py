"""A worker of a fleet ends when it is told to, with the exit code that shells give to the signal."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import exits, worker
from storage.errands import ErrandStore
from tasks.agent import Agent


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_that_of_the_signal(
    signum: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_SECONDS", 0.01)
    with Agent(ErrandStore(tmp_path), ("build",), 1) as agent:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signum))
        timer.start()
        assert worker._serve(agent, ("build",), woken=False) == code
        timer.join()
    assert exits.stopped_by(signum) == code
