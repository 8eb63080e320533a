"""The Prefect server is killed in the middle of a run, and started again or not. What is stored is right either way."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retune.compiler import config
from retune.storage.runs import RunLedger
from tests.flows.test_faults import PATIENCE_SECONDS, TRIALS, Lab, outcome


@contextmanager
def server(home: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A Prefect server that keeps its database in `home`; killed in the end, with all that it started."""
    places = {"PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    environment = config.child_environment(places)
    environment.pop("PREFECT_API_URL", None)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (home.parent / "server.txt").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not answers(port):
            assert process.poll() is None, (home.parent / "server.txt").read_text()
            assert time.monotonic() < limit
            time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Prefect may ask a server that is away for many minutes; who does not want to wait ends the run."""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False], ids=["returns", "stays away"])
def test_a_server_that_is_killed(tmp_path: Path, returns: bool) -> None:
    port = free_port()
    lab = Lab(tmp_path, f"http://127.0.0.1:{port}/api")
    with server(tmp_path / "prefect", port):
        lab.finish()
        undisturbed = outcome(lab.home)
    lab.name = "disturbed"
    with server(tmp_path / "prefect", port):
        disturbed = lab.started(pause=0.5)
        process = disturbed.__enter__()
        lab.wait_for_rounds(process, 3)
    acknowledged = {record.record_id for record in lab.stored()}
    try:
        if returns:
            with server(tmp_path / "prefect", port):
                process.wait(PATIENCE_SECONDS)
        else:
            wait_or_kill(process)
    finally:
        disturbed.__exit__(None, None, None)
    assert acknowledged <= {record.record_id for record in lab.stored()}
    (run,) = RunLedger(lab.home).list()
    if not run.is_complete:
        with server(tmp_path / "prefect", port):
            lab.finish()
    assert outcome(lab.home) == undisturbed
    assert len(undisturbed) == TRIALS
