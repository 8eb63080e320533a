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
from pydantic import TypeAdapter

from retune.compiler.core.errors import CorruptRecordError, StoreError, install_hint
from retune.storage.blob_store import BlobStore, LocalBlobStore
from retune.storage.documents import read_document
from retune.storage.layout import RECORDS, part_names
from retune.storage.parquet import ParquetRecordStore
from retune.storage.rounds import ROUNDS, all_rounds
from retune.storage.runs import RUN, RunLedger
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

_ARROW: Mapping[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "DOUBLE[]": pa.list_(pa.float64()),
    "STRUCT(record_id VARCHAR, best_seconds DOUBLE)[]": pa.list_(
        pa.struct([("record_id", pa.string()), ("best_seconds", pa.float64())])
    ),
}
"""Arrow's types for the views' columns."""

_READS = re.compile(
    r"(\s|--.*\n)*(EXPLAIN\s+(ANALYZE\s+)?)?\(*\s*(SELECT|FROM|WITH|VALUES|TABLE|PIVOT\w*)\b", re.IGNORECASE
)
"""The first words of reading queries that DuckDB does not mark as such: an EXPLAIN may run its query."""

_MISSING = f"SQL over records needs DuckDB: {install_hint('report')}"

Result = TypeVar("Result")

ROUND_COLUMNS = {
    "run_id": "VARCHAR",
    "round": "BIGINT",
    "task_key": "VARCHAR",
    "task_name": "VARCHAR",
    "failed": "BIGINT",
    "trials": "BIGINT",
    "elapsed": "DOUBLE",
    "best_seconds": "DOUBLE",
    "latency": "DOUBLE",
    "contention": "DOUBLE",
    "model_programs": "BIGINT",
    "model_trained_on": "BIGINT",
    "model_pair_accuracy": "DOUBLE",
    "model_top": "BIGINT",
    "model_top_recall": "DOUBLE",
    "model_peak": "DOUBLE",
}
"""The columns of a round; the `model_` columns are NULL while the cost model knew too little to be judged."""


LEDGER_COLUMNS = {
    "run_id": "VARCHAR",
    "describe": "JSON",
    "started": "DOUBLE",
    "resumed": "DOUBLE[]",
    "completed": "DOUBLE",
    "summary": "JSON",
    "precision": "JSON",
}
"""The columns of the run ledger, one file per run."""


def connect(root: Path | str) -> "duckdb.DuckDBPyConnection":
    """An in-memory connection with the views of `retune.storage.views` and `rounds`; close it after use.

    `records` and `best` have the columns of `retune.storage.schema.COLUMNS`, then `target_slug` and `workload`;
    `rounds` has `ROUND_COLUMNS`.

    Raises:
        StoreError: DuckDB is not installed.
    """
    if duckdb is None:
        raise StoreError(_MISSING)
    blobs = open_blob_store(root)
    return _while_files_move(blobs, lambda careful: _connect(blobs, careful=careful))


def _while_files_move(blobs: BlobStore, work: Callable[[bool], Result]) -> Result:
    """The result of `work`, repeated if a compaction removed listed files, and once carefully for unreadable files."""
    careful = False
    for attempt in range(1, _ATTEMPTS):
        try:
            return work(careful)
        except duckdb.IOException:
            time.sleep(attempt * _PAUSE_SECONDS)
        except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
            # an overflow of DuckDB's types is an error that does not name the file
            if careful or not (isinstance(error, duckdb.ConversionException) or f"{blobs.url}/" in str(error)):
                raise
            careful = True
            ParquetRecordStore(blobs.url).table(columns=("record_id",))  # sets damaged files aside
            RunLedger(blobs.url).list()
    return work(careful)


def _connect(blobs: BlobStore, *, careful: bool = False) -> "duckdb.DuckDBPyConnection":
    """A connection with all views; `careful` checks every JSON file before DuckDB reads it."""
    connection = duckdb.connect()
    # Otherwise days of `drift` would begin at another hour on each machine.
    connection.execute("SET TimeZone = 'UTC'")
    if isinstance(blobs, LocalBlobStore):
        _view_folder(connection, blobs, careful=careful)
    else:
        _register_objects(connection, blobs)
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
        return _while_files_move(blobs, lambda careful: _run_alone(blobs, sql, careful=careful))
    except duckdb.Error as error:
        raise StoreError(f"the query failed: {error}") from error


def _run_alone(blobs: BlobStore, sql: str, *, careful: bool) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run a query on its own connection that reads nothing but the store."""
    with _connect(blobs, careful=careful) as connection:
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


def _view_folder(connection: "duckdb.DuckDBPyConnection", blobs: LocalBlobStore, *, careful: bool) -> None:
    """`files`, `rounds` and `ledger` over the files of a folder."""
    root = blobs.root
    connection.register("no_files", SCHEMA.empty_table())
    files = "SELECT *, '' AS target_slug, '' AS workload FROM no_files"
    if parts := _files(root, f"{RECORDS}/*/*/*.parquet", part_names(blobs)):
        # files of older versions lack columns, which become NULL
        files += (
            f" UNION ALL BY NAME SELECT * FROM read_parquet({parts}, union_by_name = true, hive_partitioning = true, "
            "hive_types = {'target_slug': VARCHAR, 'workload': VARCHAR})"
        )
    connection.execute(f"CREATE VIEW files AS SELECT * REPLACE (coalesce(censored, false) AS censored) FROM ({files})")
    connection.execute(_rounds_view(root))
    connection.execute(_json_view(root, "ledger", "runs/*.json", "auto", LEDGER_COLUMNS, RUN, careful=careful))


def _register_objects(connection: "duckdb.DuckDBPyConnection", blobs: BlobStore) -> None:
    """The same three views of a store whose files DuckDB cannot open, read into memory."""
    connection.register("rows", ParquetRecordStore(blobs.url).table())
    connection.execute("CREATE VIEW files AS SELECT *, '' AS target_slug, '' AS workload FROM rows")
    connection.register("rounds", _table(all_rounds(blobs), ROUND_COLUMNS))
    runs = [asdict(run) for run in RunLedger(blobs.url).list()]
    texts = [name for name, kind in LEDGER_COLUMNS.items() if kind == "JSON"]
    rows = [{**run, **{name: json.dumps(run[name]) for name in texts}} for run in runs]
    connection.register("ledger", _table(rows, LEDGER_COLUMNS))


def _table(rows: Sequence[Mapping[str, object]], kinds: Mapping[str, str]) -> pa.Table:
    """Rows as an Arrow table with columns of these kinds."""
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in kinds.items()])
    return pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in kinds}, schema=schema)


def _rounds_view(root: Path) -> str:
    """The view of all recorded rounds; a round repeated after a resume counts once, the later line."""
    # The run's clock continues across a resume, so the later line of a round has the larger time.
    latest = "row_number() OVER (PARTITION BY run_id, round ORDER BY elapsed DESC) = 1"
    noted = _json_view(root, "rounds", f"runs/*/{ROUNDS}", "newline_delimited", ROUND_COLUMNS)
    return f"{noted} QUALIFY {latest}"


def _json_view(
    root: Path,
    name: str,
    pattern: str,
    form: str,
    columns: Mapping[str, str],
    kind: TypeAdapter[Any] | None = None,
    *,
    careful: bool = False,
) -> str:
    """A view of the JSON files of a pattern, without unreadable lines, and if `careful` unreadable files."""
    names = [str(path.relative_to(root)) for path in root.glob(pattern)]
    if careful and kind is not None:
        names = [each for each in names if _is_sound(LocalBlobStore(root), each, kind)]
    files = _files(root, pattern, names, listed=careful)
    if not files:
        empty = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in columns.items())
        return f"CREATE VIEW {name} AS SELECT * FROM (SELECT {empty} WHERE false)"
    typed = ", ".join(f"'{column}': '{kind}'" for column, kind in columns.items())
    source = (
        f"read_json({files}, format = '{form}', ignore_errors = {str(form != 'auto').lower()}, columns = {{{typed}}})"
    )
    return f"CREATE VIEW {name} AS SELECT * FROM {source}"


def _is_sound(blobs: BlobStore, name: str, kind: TypeAdapter[Any]) -> bool:
    try:
        read_document(blobs, name, kind)
    except (FileNotFoundError, CorruptRecordError):
        return False
    return True


def _files(root: Path, pattern: str, names: Sequence[str], *, listed: bool = False) -> str:
    """The files for DuckDB: the pattern, or a list if any of them is a pipe or a dangling link, on which it hangs or
    fails; empty without files.
    """
    regular = [name for name in names if os.path.isfile(root / name)]
    if regular and len(regular) == len(names) and not listed:
        return _glob(root, pattern)
    return f"[{', '.join(_glob(root, each) for each in regular)}]" if regular else ""


def _glob(root: Path, pattern: str) -> str:
    """A pattern below the root as a literal."""
    # A folder whose name holds a glob character must not match others: "[*]" is a literal star.
    return _quote(re.sub(r"([*?\[\]])", r"[\1]", str(root)) + f"/{pattern}")


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
