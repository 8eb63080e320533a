"""Starts Prefect's server, unless a URL names another, and the reaper process, for a run at the command line.

This module imports nothing of Prefect, so that the server starts while the session imports it: both take seconds. To
make the empty tables of Prefect's database takes a server ten seconds; they are kept for other runs of the user, in a
cache that may be deleted at any time.
"""

import atexit
import contextlib
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from retune.compiler.core import config
from retune.flows.cli.launch import GARBAGE, RESUMABLE, end_on_signals, use_prefect
from retune.flows.cli.state_folder import make_private_folder
from retune.flows.server.reaper import start_reaper
from retune.storage.files import new_id


def copy_tables(database: Path) -> bool | None:
    """Begin a new database with kept tables, if there are. Whether it has them; None where a database was there."""
    # SQLite would apply the log of a database that is gone to a new database of its name.
    if any(database.with_name(f"{database.name}{part}").exists() for part in ("", "-wal", "-shm", "-journal")):
        return None
    kept = _cached_tables()
    if kept is None:
        return False
    with contextlib.suppress(OSError):
        database.parent.mkdir(parents=True, exist_ok=True)
        # Complete or not there: another command may begin in the same folder.
        with tempfile.TemporaryDirectory(dir=database.parent) as folder:
            os.link(shutil.copyfile(kept, Path(folder) / "tables"), database)
        return True
    return None if database.exists() else False


def _open(database: Path) -> sqlite3.Connection:
    """A connection that only reads: opening a database that is not there must not create it."""
    return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)


def keep_tables(database: Path) -> None:
    """Keep the tables of a database, in which nothing is yet, for others."""
    kept = _cached_tables()
    if kept is not None:
        # The cache only saves time: where it cannot be written, the next server makes its own tables.
        with contextlib.suppress(OSError, sqlite3.Error):
            _store(database, kept)


def _cached_tables() -> Path | None:
    """The empty tables of the version of Prefect that is installed."""
    folder = config.cache_folder()
    return None if folder is None else folder / f"prefect-{metadata.version('prefect')}.db"


def _store(database: Path, kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        copy = Path(folder) / "tables"
        # SQLite's own copy: the newest pages of a live database are in another file.
        with contextlib.closing(_open(database)) as source, contextlib.closing(sqlite3.connect(copy)) as to:
            source.backup(to)
        copy.replace(kept)


# SQLite commits within milliseconds, and the reaper kills what is left.
STOP_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_SERVE = f"""
import gc, socket, sys
gc.set_threshold({GARBAGE})
import uvicorn
config = uvicorn.Config("prefect.server.api.server:create_app", factory=True, log_level="error", lifespan="on")
uvicorn.Server(config).run([socket.socket(fileno=int(sys.argv[1]))])
"""


class EmbeddedServer:
    """A server at a free port of the loopback address, with its database in PREFECT_HOME."""

    def __init__(self) -> None:
        # Bound here and for as long as this process runs: another account that took the port would be the server.
        self._listening = socket.create_server((_LOOPBACK, 0))
        self.url = f"http://{_LOOPBACK}:{self._listening.getsockname()[1]}/api"
        self._database = config.prefect_database()
        self._has_tables = copy_tables(self._database) if self._database else None
        self.process = self._begin()

    def _begin(self) -> "subprocess.Popen[bytes]":
        # as `prefect.server.api.server.SubprocessASGIServer`, whose import takes 3 s of CPU
        kind = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        if self._has_tables:
            kind["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "0"  # to find that nothing is to be done takes a second
        environment = config.child_environment(kind)
        environment.pop("PREFECT_API_URL", None)  # its own, when it is restarted
        # A session of its own, so that it has nothing to say about the user's Ctrl-C; the reaper ends it.
        handle = self._listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE, str(handle)],
            pass_fds=(handle,),
            env=environment,
            cwd=Path(__file__).parent,  # see `import_prefect`
            start_new_session=True,
        )

    def restart(self) -> None:
        """Start it once more after its process has ended, on the same socket and the same database."""
        self.process = self._begin()

    def keep_tables(self) -> None:
        """Keep the tables that this server has made, now that it answers and before anything is in them."""
        if self._database and self._has_tables is False:
            keep_tables(self._database)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listening.close()


def start() -> EmbeddedServer:
    """Start a server for this process, which ends with it. Its address and login are in the environment, which other
    accounts cannot read.
    """
    login = f"retune:{secrets.token_urlsafe(32)}"
    config.set_environment({"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login})
    server = EmbeddedServer()
    config.set_environment({"PREFECT_API_URL": server.url})
    # For ordinary ends; a process that is killed has its reaper.
    atexit.register(server.stop)
    return server


def begin_session() -> EmbeddedServer | None:
    """Make this process a session of `retune tune`, which ends with all that it starts, and import Prefect's settings.
    Returns the server that was started; None where the settings name one.
    """
    end_on_signals(RESUMABLE)
    address = config.load().prefect_api
    folder = None if address else make_private_folder()
    config.set_environment({config.SESSION: new_id(), **config.prefect_environment(folder)})
    start_reaper(config.session(), folder)
    server = None if address else start()
    use_prefect({"PREFECT_API_URL": address} if address else {}, RESUMABLE)
    return server
