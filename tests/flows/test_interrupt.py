"""A signal to the process group ends a run at once, with one sentence and nothing left."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.flows.networks import write_mlp
from tests.support.flows.runs import (
    PATIENCE_SECONDS,
    command,
    environment_on,
    has_session,
    processes_of,
    rounds,
    stored,
)
from tests.support.tiers import long_rows

MESSAGE = "retune: stopped; finished rounds are kept, and the same command goes on from there"


@pytest.mark.parametrize("wanted", [0, pytest.param(2, marks=pytest.mark.slow)], ids=["starting", "tuning"])
@pytest.mark.parametrize(
    ("signum", "code"), long_rows([(signal.SIGINT, 130)], [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
)
def test_a_signal_to_the_group_ends_a_run(tmp_path: Path, signum: int, code: int, wanted: int) -> None:
    """As Ctrl-C on a terminal, `timeout` and systemd send it: while it starts, and after two rounds."""
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "log.txt"
    environment = environment_on(home)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(network, home), stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
    try:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not has_session(process) or rounds(home) < wanted:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.05)
        os.killpg(process.pid, signum)
        assert process.wait(PATIENCE_SECONDS) == code, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert log.read_text().splitlines()[-1] == MESSAGE
    assert "Traceback" not in log.read_text()
    assert len(stored(home)) >= wanted
    limit = time.monotonic() + 120
    while (left := processes_of(home)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left == []
