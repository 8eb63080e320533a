"""In: a store's root. Out: a DuckDB connection with views over its files. Always: copies nothing.

`storage.views` has the views' definitions, docs/analytics.md what to do with them.

Without Retune, the DuckDB command line reads the same files:

    SELECT task_name, min(seconds) * 1e3 AS best_ms, count(*) AS trials
    FROM read_parquet('STORE/records/*/*/*.parquet') GROUP BY task_name ORDER BY best_ms DESC;
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compiler.errors import StoreError
from storage.layout import RECORDS, part_paths
from storage.rounds import ROUNDS
from storage.schema import SCHEMA
from storage.views import VIEWS

try:
    import duckdb
except ImportError:  # the extra `report` is not installed; `connect` says so
    duckdb = None  # type: ignore[assignment]

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
"""What is noted of a round; the `model_` columns are NULL while the cost model knew too little to be judged."""


LEDGER_COLUMNS = {
    "run_id": "VARCHAR",
    "describe": "JSON",
    "started": "DOUBLE",
    "resumed": "DOUBLE[]",
    "completed": "DOUBLE",
    "summary": "JSON",
}
"""What the run ledger says, one file a run."""

REPORT_COLUMNS = {"run_id": "VARCHAR", "tasks": "STRUCT(record_id VARCHAR, best_seconds DOUBLE)[]"}
"""What is read of the reports of runs: which record serves each kernel, and its time when that was confirmed."""


def connect(root: Path | str) -> "duckdb.DuckDBPyConnection":
    """An in-memory connection with the views of `storage.views` and `rounds`; close it after use.

    `records` and `best` have the columns of `storage.schema.COLUMNS`, then `target_slug` and `workload`; `rounds` has
    those of `ROUND_COLUMNS`.

    Raises:
        StoreError: DuckDB is not installed.
    """
    if duckdb is None:
        raise StoreError("SQL over records needs DuckDB: pip install 'retune[report]'")
    folder = Path(root).absolute()
    connection = duckdb.connect()
    # files of older versions lack columns, which are NULL then
    connection.register("no_files", SCHEMA.empty_table())
    files = f" UNION ALL BY NAME SELECT * FROM {_source(folder)}" if part_paths(folder) else ""
    connection.execute(f"CREATE VIEW files AS SELECT *, '' AS target_slug, '' AS workload FROM no_files{files}")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(_rounds_view(folder))
    connection.execute(_json_view(folder, "ledger", "runs/*.json", "auto", LEDGER_COLUMNS))
    connection.execute(_json_view(folder, "reports", "runs/*/report.json", "auto", REPORT_COLUMNS))
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    return connection


def run_query(root: Path | str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The column names and rows of one SQL query over the views; it can read nothing but the store.

    Raises:
        StoreError: DuckDB is not installed, or refuses the query; the message says what it found.
    """
    with connect(root) as connection:
        try:
            connection.execute(f"SET allowed_directories = [{_quoted(str(Path(root).absolute()) + '/')}]")
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            result = connection.execute(sql)
            return [column[0] for column in result.description or []], result.fetchall()
        except duckdb.Error as error:
            raise StoreError(f"the query failed: {error}") from error


def _rounds_view(root: Path) -> str:
    """The view of all rounds that were noted; of one noted twice, after a run was resumed, the later."""
    latest = "row_number() OVER (PARTITION BY run_id, round ORDER BY elapsed DESC) = 1"
    noted = _json_view(root, "rounds", f"runs/*/{ROUNDS}", "newline_delimited", ROUND_COLUMNS)
    return f"{noted} QUALIFY {latest}"


def _json_view(root: Path, name: str, pattern: str, form: str, columns: Mapping[str, str]) -> str:
    """A view of the JSON files that match a pattern; what cannot be read is left out."""
    if not any(root.glob(pattern)):
        empty = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in columns.items())
        return f"CREATE VIEW {name} AS SELECT * FROM (SELECT {empty} WHERE false)"
    typed = ", ".join(f"'{column}': '{kind}'" for column, kind in columns.items())
    source = (
        f"read_json({_glob(root, pattern)}, format = '{form}', ignore_errors = {str(form != 'auto').lower()}, "
        f"columns = {{{typed}}})"
    )
    return f"CREATE VIEW {name} AS SELECT * FROM {source}"


def _glob(root: Path, pattern: str) -> str:
    """A pattern below the root as a literal."""
    return _quoted(re.sub(r"([*?\[\]])", r"[\1]", str(root)) + f"/{pattern}")


def _source(root: Path) -> str:
    """The table function over the files; a view takes no parameters, so the path is quoted here."""
    return (
        f"read_parquet({_glob(root, f'{RECORDS}/*/*/*.parquet')}, union_by_name = true, hive_partitioning = true, "
        "hive_types = {'target_slug': VARCHAR, 'workload': VARCHAR})"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
