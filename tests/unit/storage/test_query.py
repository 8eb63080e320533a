"""Tests of SQL queries: views agree with the store, also without Retune."""

import re
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from retune.compiler.core.errors import StoreError
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import connect, run_query
from retune.storage.runs import RunLedger
from retune.storage.schema import SCHEMA
from tests.support.record_samples import CPU, failed, timed


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
    monkeypatch.setattr("retune.storage.query.duckdb", None)
    with pytest.raises(StoreError, match=r"pip install -e '\.\[report\]'"):
        connect(tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1 AS x) TO '{file}' (FORMAT parquet)",
        "SELECT 1; COPY (SELECT 1 AS x) TO '{file}' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS x) TO '{file}' (FORMAT parquet)",
        "COPY (PIVOT (SELECT 1 AS a, 2 AS b) ON a USING sum(b)) TO '{file}' (FORMAT parquet)",
        "ATTACH '{root}/new.db' AS new; CREATE TABLE new.t AS SELECT 1; SELECT 1",
        "EXPORT DATABASE '{root}/export'",
    ],
)
def test_a_query_changes_nothing(tmp_path: Path, sql: str) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3)])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (file,) = tmp_path.glob("records/*/*/*.parquet")
    with pytest.raises(StoreError, match="can only read"):
        run_query(tmp_path, sql.format(file=file, root=tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "sql",
    [
        "-- what is best\nSELECT task_key FROM best",
        "WITH one AS (FROM best) SELECT task_key FROM one",
        "EXPLAIN SELECT * FROM best",
        "DESCRIBE best",
    ],
)
def test_whatever_reads_is_a_query(tmp_path: Path, sql: str) -> None:
    ParquetRecordStore(tmp_path).append([timed("w0", 1e-3)])
    assert run_query(tmp_path, sql)[1]


def test_an_empty_query_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the query is empty"):
        run_query(tmp_path, " -- nothing")


def test_columns_of_one_name_get_numbers(tmp_path: Path) -> None:
    names, rows = run_query(tmp_path, "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a")
    assert (names, rows) == (["a", "a_1", "a_1_1", "a_2"], [(1, 2, 3, 4)])


def test_damaged_files_are_set_aside_and_the_query_goes_on(tmp_path: Path) -> None:
    store, ledger = ParquetRecordStore(tmp_path), RunLedger(tmp_path)
    store.append([timed("w0", 1e-3)])
    store.append([timed("w1", 2e-3)])
    ids = []
    for name in ("a", "b"):
        with ledger.open_or_resume(name, {"network": name}) as opened:
            ids.append(opened.run_id)
    part, _ = tmp_path.glob("records/*/*/*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    (tmp_path / "runs" / f"{ids[0]}.json").write_text('{"run_')
    (tmp_path / "runs" / ids[0]).mkdir()
    report = tmp_path / "runs" / ids[0] / "report.json"
    report.write_text('{"ta')
    assert len(run_query(tmp_path, "SELECT * FROM records")[1]) == 1
    assert run_query(tmp_path, "SELECT run_id FROM runs")[1] == [(ids[1],)]
    assert run_query(tmp_path, "SELECT sum(trials) FROM drift")[1] == [(1,)]
    moved = {path.name for path in (tmp_path / "quarantine").rglob("*") if path.is_file()}
    assert moved == {part.name, f"{ids[0]}.json"}
    assert report.exists()  # a run may be writing it


def test_numbers_beyond_the_types_of_columns_cost_that_run_alone(tmp_path: Path) -> None:
    ledger, ids = RunLedger(tmp_path), []
    for request in ({"network": "a", "threads": 1e300}, {"network": "b"}, {"network": "c", "threads": 2}):
        with ledger.open_or_resume(str(request["network"]), request) as opened:
            ids.append(opened.run_id)
    path = tmp_path / "runs" / f"{ids[1]}.json"
    path.write_text(re.sub(r'"started": [\d.]+', '"started": 1e300', path.read_text()))
    found = run_query(tmp_path, "SELECT network, threads, started FROM runs ORDER BY network")[1]
    assert [row[:2] for row in found] == [("a", None), ("c", 2)]
