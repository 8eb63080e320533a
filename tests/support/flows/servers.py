"""Prefect servers in processes of their own."""

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

from retune.compiler.core import config
from tests.support.flows.simulated_runs import PATIENCE_SECONDS


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
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number
