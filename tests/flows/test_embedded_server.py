"""The tables of Prefect's database, kept for the servers of other state folders."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retune.flows.server.embedded_server import EmbeddedServer


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(EmbeddedServer, "_begin", lambda made: made._listening.close())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedServer:
    monkeypatch.setenv("PREFECT_HOME", str(home))
    return EmbeddedServer()


def make_table(database: Path, name: str) -> "closing[sqlite3.Connection]":
    """As a server does: in a log beside the file, while the connection stays open."""
    database.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"CREATE TABLE {name} (number INTEGER)")
    connection.commit()
    return closing(connection)


def tables(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def test_tables_that_one_server_made_are_those_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server(tmp_path / "one", monkeypatch)
    assert not (tmp_path / "one" / "prefect.db").exists()
    with make_table(tmp_path / "one" / "prefect.db", "flow_run"):
        first.keep_tables()
        server(tmp_path / "two", monkeypatch)
    assert tables(tmp_path / "two" / "prefect.db") == ["flow_run"]
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["prefect.db"]


def test_a_database_that_is_there_stays_and_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        with make_table(tmp_path / name / "prefect.db", name):
            server(tmp_path / name, monkeypatch).keep_tables()
        assert tables(tmp_path / name / "prefect.db") == [name]
    assert not (tmp_path / "cache").exists()


def test_without_a_cache_that_can_be_written_a_server_makes_its_own_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    one = server(tmp_path / "one", monkeypatch)
    with make_table(tmp_path / "one" / "prefect.db", "flow_run"):
        one.keep_tables()
    server(tmp_path / "two", monkeypatch)
    assert not (tmp_path / "two" / "prefect.db").exists()


def test_a_server_without_its_database_here_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server(tmp_path / "one", monkeypatch).keep_tables()
    assert not (tmp_path / "one" / "prefect.db").exists()
    assert list((tmp_path / "cache").rglob("*.db")) == []


def test_the_log_of_a_database_that_is_gone_is_not_mixed_with_kept_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = server(tmp_path / "one", monkeypatch)
    with make_table(tmp_path / "one" / "prefect.db", "flow_run"):
        first.keep_tables()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "prefect.db-wal").write_bytes(b"log")
    server(tmp_path / "two", monkeypatch)
    assert not (tmp_path / "two" / "prefect.db").exists()


def test_a_user_without_a_home_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_folder() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_folder)
    one = server(tmp_path / "one", monkeypatch)
    with make_table(tmp_path / "one" / "prefect.db", "flow_run"):
        one.keep_tables()


def test_another_database_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://host/prefect")
    server(tmp_path / "two", monkeypatch).keep_tables()
    assert not (tmp_path / "two").exists()


def test_only_copied_tables_need_no_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server(tmp_path / "one", monkeypatch)
    assert first._has_tables is False
    with make_table(tmp_path / "one" / "prefect.db", "flow_run"):
        first.keep_tables()
        assert server(tmp_path / "one", monkeypatch)._has_tables is None  # perhaps those of an older version
    assert server(tmp_path / "two", monkeypatch)._has_tables is True
