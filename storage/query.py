"""In: a store's root. Out: a DuckDB connection with views over its files. Always: copies nothing.

Without Retune, the DuckDB command line reads the same files:

    SELECT task_name, min(seconds) * 1e3 AS best_ms, count(*) AS trials
    FROM read_parquet('STORE/records/*/*/*.parquet') GROUP BY task_name ORDER BY best_ms DESC;
"""

import re
from pathlib import Path
from typing import Any

from compiler.errors import StoreError
from storage.layout import RECORDS, part_paths
from storage.rounds import ROUNDS
from storage.schema import SCHEMA

try:
    import duckdb
except ImportError:  # the extra `report` is not installed; `connect` says so
    duckdb = None  # type: ignore[assignment]

RECORDS_VIEW = """
CREATE VIEW records AS SELECT * FROM files
QUALIFY row_number() OVER (PARTITION BY record_id ORDER BY timestamp) = 1
"""
"""Every trial once, even if a retried append stored it twice."""

BEST_VIEW = """
CREATE VIEW best AS
WITH fastest AS (
  SELECT task_key, target, device, threads, min(seconds) AS seconds FROM files
  WHERE seconds IS NOT NULL GROUP BY ALL
)
SELECT DISTINCT ON (task_key, target, device, threads) files.*
FROM files JOIN fastest USING (task_key, target, device, threads, seconds)
ORDER BY task_key, target, device, threads, timestamp, record_id
"""
"""The fastest successful trial per task, target, device and threads."""

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


def connect(root: Path | str) -> "duckdb.DuckDBPyConnection":
    """An in-memory connection with the views `records`, `best` and `rounds`; close it after use.

    The first two have the columns of `storage.schema.COLUMNS`, then `target_slug` and `workload`; `rounds` has those of
    `ROUND_COLUMNS`.

    Raises:
        StoreError: DuckDB is not installed.
    """
    if duckdb is None:
        raise StoreError("SQL over records needs DuckDB: pip install 'retune[report]'")
    folder = Path(root).absolute()
    connection = duckdb.connect()
    if part_paths(folder):
        connection.execute(f"CREATE VIEW files AS SELECT * FROM {_source(folder)}")
    else:
        connection.register("no_files", SCHEMA.empty_table())
        connection.execute("CREATE VIEW files AS SELECT *, '' AS target_slug, '' AS workload FROM no_files")
    connection.execute(RECORDS_VIEW)
    connection.execute(BEST_VIEW)
    connection.execute(_rounds_view(folder))
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
    names = ", ".join(f"'{name}': '{kind}'" for name, kind in ROUND_COLUMNS.items())
    if not any(root.glob(f"runs/*/{ROUNDS}")):
        empty = ", ".join(f"NULL::{kind} AS {name}" for name, kind in ROUND_COLUMNS.items())
        return f"CREATE VIEW rounds AS SELECT {empty} WHERE false"
    source = (
        f"read_json({_glob(root, f'runs/*/{ROUNDS}')}, format = 'newline_delimited', ignore_errors = true, "
        f"columns = {{{names}}})"
    )
    latest = "row_number() OVER (PARTITION BY run_id, round ORDER BY elapsed DESC) = 1"
    return f"CREATE VIEW rounds AS SELECT * FROM {source} QUALIFY {latest}"


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
