"""SQL queries over a store: a DuckDB connection with views over its files, without copying them.

`retune.storage.views` defines the views, docs/how-to/analytics.md shows how to use them.

Without Retune, the DuckDB command line reads the same files:

    SELECT task_name, min(seconds) * 1e3 AS best_ms, count(*) AS trials
    FROM read_parquet('STORE/records/*/*/*.parquet') GROUP BY task_name ORDER BY best_ms DESC;
"""

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from retune.compiler.core.errors import StoreError, install_hint
from retune.storage.blob_store import BlobStore, LocalBlobStore
from retune.storage.layout import RECORDS, SUFFIX, part_names
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger, all_rounds
from retune.storage.schema import SCHEMA
from retune.storage.store_url import open_blob_store
from retune.storage.views import VIEWS

try:
    import duckdb
except ImportError:  # the extra `report` is not installed; `connect` reports it
    duckdb = None  # type: ignore[assignment]

# Waits 0.02 x (1 + ... + 9) = 0.9 s in total: a compaction removes the files of one task at a time.
_ATTEMPTS, _PAUSE_SECONDS = 10, 0.02
"""Attempts of a query during compactions, and the increment of the wait before each."""

_ARROW: Mapping[str, tuple[pa.DataType, type | tuple[type, ...]]] = {
    "VARCHAR": (pa.string(), str),
    "JSON": (pa.string(), str),
    "BIGINT": (pa.int64(), int),
    "DOUBLE": (pa.float64(), (int, float)),
    "DOUBLE[]": (pa.list_(pa.float64()), (list, tuple)),
}
"""Arrow's types for the views' columns, and Python's; a value of another type is NULL."""

_READS = re.compile(
    r"(\s|--.*\n)*(EXPLAIN\s+(ANALYZE\s+)?)?\(*\s*(SELECT|FROM|WITH|VALUES|TABLE|PIVOT\w*)\b", re.IGNORECASE
)
"""The first words of reading queries that DuckDB does not mark as such: an EXPLAIN may run its query."""

_MISSING = f"SQL over records needs DuckDB: {install_hint('report')}"

Result = TypeVar("Result")

ROUND_COLUMNS = {
    "run_id": "VARCHAR", "round": "BIGINT", "task_key": "VARCHAR", "task_name": "VARCHAR", "failed": "BIGINT",
    "trials": "BIGINT", "elapsed": "DOUBLE", "best_seconds": "DOUBLE", "latency": "DOUBLE", "contention": "DOUBLE",
    "model_programs": "BIGINT", "model_trained_on": "BIGINT", "model_pair_accuracy": "DOUBLE", "model_top": "BIGINT",
    "model_top_recall": "DOUBLE", "model_peak": "DOUBLE",
}  # fmt: skip
"""The columns of a round; the `model_` columns are NULL while the cost model knew too little to be judged."""


LEDGER_COLUMNS = {
    "run_id": "VARCHAR", "describe": "JSON", "started": "DOUBLE", "resumed": "DOUBLE[]", "completed": "DOUBLE",
    "summary": "JSON", "precision": "JSON",
}  # fmt: skip
"""The columns of the run ledger, one file per run."""


def connect(root: Path | str) -> "duckdb.DuckDBPyConnection":
    """An in-memory connection with the views of `retune.storage.views`, `rounds` and `ledger`; close it after use.

    `records` and `best` have the columns of `retune.storage.schema.COLUMNS`, then `target_slug` and `workload`;
    `rounds` has `ROUND_COLUMNS`. Rounds and runs are those of the moment of the call.

    Raises:
        StoreError: DuckDB is not installed.
    """
    if duckdb is None:
        raise StoreError(_MISSING)
    blobs = open_blob_store(root)
    return _while_files_move(blobs, lambda: _connect(blobs))


def _while_files_move(blobs: BlobStore, work: Callable[[], Result]) -> Result:
    """The result of `work`, repeated while a compaction removes files, and once after damaged files were set aside."""
    is_checked = False
    for attempt in range(1, _ATTEMPTS):
        try:
            return work()
        except duckdb.IOException:
            time.sleep(attempt * _PAUSE_SECONDS)
        except duckdb.InvalidInputException as error:
            if is_checked or f"{blobs.url}/" not in str(error):
                raise
            is_checked = True
            ParquetRecordStore(blobs.url).table(columns=("record_id",))  # sets damaged files aside
    return work()


def _connect(blobs: BlobStore) -> "duckdb.DuckDBPyConnection":
    connection = duckdb.connect()
    # Otherwise days of `drift` would begin at another hour on each machine.
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW files AS {_files(connection, blobs)}")
    connection.register("rounds", _table(all_rounds(blobs), ROUND_COLUMNS))
    runs = [asdict(run) for run in RunLedger(blobs.url).list()]
    texts = [name for name, kind in LEDGER_COLUMNS.items() if kind == "JSON"]
    rows = [{**run, **{name: json.dumps(run[name]) for name in texts}} for run in runs]
    connection.register("ledger", _table(rows, LEDGER_COLUMNS))
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    return connection


def run_query(root: Path | str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The column names and rows of one SQL query over the views; it can read nothing but the store, and change nothing.

    Names are distinct: repeated names are numbered.

    Raises:
        StoreError: DuckDB is not installed or refuses the query, or the query does more than read; the message has the
        reason.
    """
    if duckdb is None:
        raise StoreError(_MISSING)
    blobs = open_blob_store(root)
    try:
        return _while_files_move(blobs, lambda: _run_alone(blobs, sql))
    except duckdb.Error as error:
        raise StoreError(f"the query failed: {error}") from error


def _run_alone(blobs: BlobStore, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run a query on its own connection that reads nothing but the store."""
    with _connect(blobs) as connection:
        _refuse_changes(connection, sql)
        if isinstance(blobs, LocalBlobStore):
            connection.execute(f"SET allowed_directories = [{_quote(f'{blobs.root}/')}]")
        # In this order: after the first nothing else can be opened, and the second keeps a query from undoing it.
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        result = connection.execute(sql)
        return _distinct([column[0] for column in result.description or []]), result.fetchall()


def _refuse_changes(connection: "duckdb.DuckDBPyConnection", sql: str) -> None:
    """Reject queries that do more than read: file access would let them write files, and spoil records."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise StoreError("the query is empty: give one such as SELECT * FROM best")
    for statement in statements:
        kind = statement.type.name
        if kind != "SELECT" and not (kind in ("EXPLAIN", "MULTI") and _READS.match(statement.query)):
            raise StoreError(f"a query can only read, so {kind} is refused: begin with SELECT, FROM, WITH or DESCRIBE")


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with numbers after repeated ones."""
    result: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in result:
            number += 1
            unique = f"{name}_{number}"
        result.append(unique)
    return result


def _files(connection: "duckdb.DuckDBPyConnection", blobs: BlobStore) -> str:
    """The query of the view `files`: of a folder the files themselves; of another store, whose files DuckDB cannot
    open, their rows in memory.
    """
    is_local = isinstance(blobs, LocalBlobStore)
    connection.register("rows", SCHEMA.empty_table() if is_local else ParquetRecordStore(blobs.url).table())
    rows = "SELECT *, '' AS target_slug, '' AS workload FROM rows"
    names = part_names(blobs) if isinstance(blobs, LocalBlobStore) else []
    # DuckDB hangs on a pipe, and fails on a dangling link.
    regular = [name for name in names if os.path.isfile(Path(blobs.url, name))]
    if not regular:
        return rows
    patterns = [f"{RECORDS}/*/*/*{SUFFIX}"] if len(regular) == len(names) else regular
    paths = ", ".join(_glob(blobs.url, pattern) for pattern in patterns)
    # files of older versions lack columns, which become NULL
    files = (
        f"SELECT * FROM read_parquet([{paths}], union_by_name = true, hive_partitioning = true, "
        "hive_types = {'target_slug': VARCHAR, 'workload': VARCHAR})"
    )
    return f"SELECT * REPLACE (coalesce(censored, false) AS censored) FROM ({rows} UNION ALL BY NAME {files})"


def _table(rows: Sequence[Mapping[str, object]], kinds: Mapping[str, str]) -> pa.Table:
    """Rows as an Arrow table with columns of these kinds."""
    columns = {}
    for name, (arrow_type, types) in ((name, _ARROW[kind]) for name, kind in kinds.items()):
        values = (row.get(name) for row in rows)
        columns[name] = pa.array([value if isinstance(value, types) else None for value in values], arrow_type)
    return pa.table(columns)


def _glob(root: str, pattern: str) -> str:
    """A pattern below the root as a literal."""
    # A folder whose name holds a glob character must not match others: "[*]" is a literal star.
    return _quote(re.sub(r"([*?\[\]])", r"[\1]", root) + f"/{pattern}")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
