"""In: a store on disk. Out: proof that SQL sees what the store sees. Always: also without Retune's views."""

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from compiler.errors import StoreError
from storage.parquet import ParquetRecordStore
from storage.query import connect
from storage.schema import SCHEMA
from tests.unit.storage.samples import CPU, failed, timed


def test_the_views_agree_with_the_store(tmp_path: Path) -> None:
    root = tmp_path / "it's [a] *store*"
    store = ParquetRecordStore(root)
    repeated = timed("w0", 3e-3)
    store.append([repeated, failed("w0"), timed("w1", 2e-3)])
    store.append([repeated, timed("w0", 1e-3), replace(timed("w0", 2e-3), threads=1)])
    with connect(root) as sql:
        assert sql.sql("SELECT count(*) FROM records").fetchall() == [(5,)]
        assert sql.sql("SELECT task_key, threads, seconds FROM best ORDER BY ALL").fetchall() == [
            ("w0", 1, 2e-3),
            ("w0", 2, 1e-3),
            ("w1", 2, 2e-3),
        ]
        assert sql.sql("SELECT DISTINCT target FROM records").fetchall() == [(CPU,)]
        failures = sql.sql("SELECT status_name, seconds FROM records WHERE status <> 0").fetchall()
        assert failures == [("RUN_TIMEOUT", None)]
        assert sql.table("records").columns == [*SCHEMA.names, "target_slug", "workload"]


def test_best_has_one_row_where_two_are_equal(tmp_path: Path) -> None:
    late, early = timed("w0", 1e-3, timestamp=2.0), timed("w0", 1e-3, timestamp=1.0)
    ParquetRecordStore(tmp_path).append([late, early])
    with connect(tmp_path) as sql:
        assert sql.sql("SELECT record_id FROM best").fetchall() == [(early.record_id,)]


def test_an_empty_store_has_empty_views(tmp_path: Path) -> None:
    with connect(tmp_path / "none") as sql:
        assert sql.sql("SELECT * FROM records").fetchall() == []
        assert sql.sql("SELECT * FROM best").fetchall() == []
        assert sql.table("best").columns == [*SCHEMA.names, "target_slug", "workload"]


def test_the_plain_glob_reads_the_files_while_a_writer_is_at_work(tmp_path: Path) -> None:
    store = ParquetRecordStore(tmp_path)
    store.append([timed("w0", 1e-3), timed("w1", 2e-3)])
    for folder in (tmp_path / "records").glob("*/*"):
        (folder / ".01ABC.tmp").write_bytes(b"half")
    query = f"SELECT task_key, min(seconds) FROM '{tmp_path}/records/**/*.parquet' GROUP BY 1 ORDER BY 1"
    with duckdb.connect() as plain:
        assert plain.sql(query).fetchall() == [("w0", 1e-3), ("w1", 2e-3)]
    folder_table = pq.read_table(tmp_path / "records")
    assert sorted(folder_table.column("task_key").to_pylist()) == ["w0", "w1"]


def test_without_duckdb_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.query.duckdb", None)
    with pytest.raises(StoreError, match=r"pip install 'retune\[report\]'"):
        connect(tmp_path)
