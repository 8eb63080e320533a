"""Prefect's server as a child process, which a session without a server at an address starts.

This module imports nothing of Prefect, so that the server starts while the session imports it: both take seconds.
"""

import atexit
import socket
import subprocess
import sys

from retune.compiler import config
from retune.flows.launch import GARBAGE
from retune.flows.prefect_tables import are_current, copy_tables, keep_tables

# SQLite commits within milliseconds, and the reaper kills what is left.
STOP_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_UVICORN = f"import gc, runpy; gc.set_threshold({GARBAGE}); runpy.run_module('uvicorn', run_name='__main__')"

_started: "EmbeddedServer | None" = None


class EmbeddedServer:
    """A server at a free port of the loopback address, with its database in PREFECT_HOME."""

    def __init__(self) -> None:
        with socket.socket() as free:
            # Port 0 lets the kernel pick a free one; loopback only, since the API has no login.
            free.bind((_LOOPBACK, 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://{_LOOPBACK}:{self.port}/api"
        self._database = config.prefect_database()
        self._makes_tables = self._database is not None and not copy_tables(self._database)
        self.process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        # as `prefect.server.api.server.SubprocessASGIServer`, whose import takes 3 s of CPU
        command = ["--factory", "prefect.server.api.server:create_app", "--log-level", "error"]
        where = ["--host", _LOOPBACK, "--port", str(self.port), "--lifespan", "on"]
        kind = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        if self._database is not None and are_current(self._database):
            kind["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "0"  # to find that nothing is to be done takes a second
        environment = config.child_environment(kind)
        environment.pop("PREFECT_API_URL", None)  # its own, when it is restarted
        # A session of its own, so that it has nothing to say about the user's Ctrl-C; the reaper ends it.
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _UVICORN, *command, *where], env=environment, start_new_session=True
        )

    def restart(self) -> None:
        """Start it once more after its process has ended, at the same address and on the same database."""
        self.process = self._begin()

    def keep_tables(self) -> None:
        """Keep the tables that this server has made, now that it answers and before anything is in them."""
        if self._database is not None and self._makes_tables:
            keep_tables(self._database)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start() -> str:
    """Start the server of this process, which ends with it. Returns its URL."""
    global _started
    _started = EmbeddedServer()
    # For ordinary ends; a process that is killed has its reaper.
    atexit.register(_started.stop)
    return _started.url


def started() -> EmbeddedServer | None:
    """The server that this process has started; None where the run uses one at an address."""
    return _started
