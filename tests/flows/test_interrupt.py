"""Ctrl-C ends a run at once, with one sentence and nothing left behind, though the embedded API dies of it too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiler import config
from tests.flows.networks import write_mlp
from tests.flows.test_kill import PATIENCE_SECONDS, command, processes_of, rounds, stored

MESSAGE = "retune: stopped; what was measured is kept, and the same command goes on from there"


@pytest.mark.parametrize("wanted", [0, 2])
def test_ctrl_c_ends_a_run_with_one_sentence(tmp_path: Path, wanted: int) -> None:
    """While it starts, and after two rounds: the signal goes to every process of the terminal, as Ctrl-C does."""
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "log.txt"
    environment = config.child_environment({"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)})
    for name in ("PREFECT_HOME", "PREFECT_PROFILES_PATH", "PREFECT_API_URL"):
        environment.pop(name, None)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command(network, home), stdout=stream, stderr=stream, env=environment, start_new_session=True
        )
    try:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not (home / "prefect").exists() or rounds(home) < wanted:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.05)
        time.sleep(1.0)  # past the exec that follows the making of the folder
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert log.read_text().splitlines()[-1] == MESSAGE
    assert "Traceback" not in log.read_text()
    assert len(stored(home)) >= wanted
    limit = time.monotonic() + 20
    while (left := processes_of(home)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left == []
