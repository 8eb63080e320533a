"""The empty tables of Prefect's database, kept for other runs of the user.

To make them takes a server ten seconds. They lie in a cache that may be deleted at any time.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from importlib import metadata
from pathlib import Path

from retune.compiler.core import config


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
