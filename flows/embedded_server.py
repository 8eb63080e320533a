"""Prefect's server as a child process, which a session without a server at an address starts.

This module imports nothing of Prefect, so that the server starts while the session imports it: both take seconds.

To make its tables in a new state folder takes a server ten seconds more. The empty tables are therefore kept for other
state folders of the user, in a cache that may be deleted at any time.
"""

import atexit
import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from retune.compiler import config

# SQLite commits within milliseconds, and the reaper kills what is left.
STOP_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"

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
        self._makes_tables = self._database is not None and not _copy_tables(self._database)
        self.process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        # as `prefect.server.api.server.SubprocessASGIServer`, whose import takes 3 s of CPU
        command = ["uvicorn", "--factory", "prefect.server.api.server:create_app", "--log-level", "error"]
        where = ["--host", _LOOPBACK, "--port", str(self.port), "--lifespan", "on"]
        kind = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        environment = config.child_environment(kind)
        environment.pop("PREFECT_API_URL", None)  # its own, when it is restarted
        # A session of its own, so that it has nothing to say about the user's Ctrl-C; the reaper ends it.
        return subprocess.Popen([sys.executable, "-P", "-m", *command, *where], env=environment, start_new_session=True)

    def restart(self) -> None:
        """Start it once more after its process has ended, at the same address and on the same database."""
        self.process = self._begin()

    def keep_tables(self) -> None:
        """Keep the tables that this server has made, now that it answers and before anything is in them."""
        kept = _cached_tables()
        if self._database is not None and kept is not None and self._makes_tables:
            # The cache only saves time: where it cannot be written, the next server makes its own tables.
            with contextlib.suppress(OSError, sqlite3.Error):
                _keep(self._database, kept)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _cached_tables() -> Path | None:
    """The empty tables of the version of Prefect that is installed."""
    folder = config.cache_folder()
    return None if folder is None else folder / f"prefect-{metadata.version('prefect')}.db"


def _copy_tables(database: Path) -> bool:
    """Begin a new database with kept tables. Whether a database, or a part of one, was there or is now."""
    # SQLite would apply the log of a database that is gone to a new one of its name.
    if any(database.with_name(f"{database.name}{part}").exists() for part in ("", "-wal", "-shm", "-journal")):
        return True
    kept = _cached_tables()
    if kept is None:
        return False
    with contextlib.suppress(OSError):
        database.parent.mkdir(parents=True, exist_ok=True)
        # Complete or not there: another command may begin in the same folder.
        with tempfile.TemporaryDirectory(dir=database.parent) as folder:
            os.link(shutil.copyfile(kept, Path(folder) / "tables"), database)
        return True
    return database.exists()


def _keep(database: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        copy = Path(folder) / "tables"
        # Read-only: a server whose database is elsewhere has none here, and opening it must not make one.
        address = f"{database.absolute().as_uri()}?mode=ro"
        # SQLite's own copy: the newest pages of a live database are in another file.
        with (
            contextlib.closing(sqlite3.connect(address, uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as to,
        ):
            source.backup(to)
        copy.replace(kept)


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
