"""In: `retune records …`. Out: tables, records, and tuning logs in TVM's form. Always: only `import` adds to a store,
and only `compact` changes its files.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from compiler import config
from compiler.errors import OptionError
from compiler.measure.log import append_log, from_record, read_log, to_record
from flows.outcome import PIPE_WIDTH
from storage.compaction import compact
from storage.parquet import ParquetRecordStore
from storage.query import run_query

records_app = typer.Typer(help="Look at what was measured.", rich_markup_mode=None, no_args_is_help=True)

Store = Annotated[
    str | None,
    typer.Option("--store", help="State folder: records, runs, results. Default: $RETUNE_HOME or ./.retune."),
]

UNKNOWN_DEVICE = "unknown"
"""Where the trials of an imported log ran, unless told: no machine takes them for its own."""
_IMPORTED_AT_ONCE = 10_000


@records_app.command("list")
def records_list(store: Store = None) -> None:
    """List every task that was ever tuned: its trials, failures and best time."""
    table = _table("task", "threads", "trials", "failed", "best ms", "target", "device")
    for task in _records(store).tasks():
        best = "-" if task.best_seconds is None else f"{task.best_seconds * 1e3:.4f}"
        table.add_row(
            task.task_name, f"{task.threads}", f"{task.trials}", f"{task.failures}", best, task.target, task.device
        )
    _show(table)


@records_app.command("best")
def records_best(store: Store = None) -> None:
    """List the best record of every task on this machine."""
    table = _table("record", "task", "threads", "best ms", "network")
    for record in _records(store).best_per_task(device=config.device_name()).values():
        table.add_row(
            record.record_id, record.task_name, f"{record.threads}", f"{record.seconds * 1e3:.4f}", record.network
        )
    _show(table)


@records_app.command("show")
def records_show(record_id: Annotated[str, typer.Argument(help="The id of a record.")], store: Store = None) -> None:
    """Print one record, every field of it, as JSON."""
    found = [record for record in _records(store).records() if record.record_id == record_id]
    if not found:
        raise OptionError(f"no record {record_id} in {home_of(store)}; `retune records best` lists some")
    typer.echo(json.dumps({**asdict(found[0]), "status": found[0].status.name}, indent=2))


@records_app.command("import")
def records_import(
    log: Annotated[Path, typer.Argument(help="A tuning log: JSON lines as TVM's auto-scheduler writes them.")],
    device: Annotated[
        str, typer.Option(help="The machine that the log was made on; `this` for the one you are on.")
    ] = UNKNOWN_DEVICE,
    store: Store = None,
) -> None:
    """Add the trials of a tuning log to the records. Importing a log twice changes nothing."""
    place = config.device_name() if device == "this" else device
    records = [to_record(trial, place) for trial in read_log(log)]
    into = _records(store)
    for start in range(0, len(records), _IMPORTED_AT_ONCE):
        into.append(records[start : start + _IMPORTED_AT_ONCE])
    typer.echo(f"{len(records)} trials of {len({record.task_key for record in records})} tasks read from {log}")


@records_app.command("export")
def records_export(
    log: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    task: Annotated[str | None, typer.Option(help="Only the task of this name or key.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Only the best record of every task on this machine.")] = False,
    store: Store = None,
) -> None:
    """Write records as a tuning log: JSON lines as TVM's auto-scheduler writes them."""
    if log.exists():
        raise OptionError(f"{log} exists already; name a file that does not")
    source = _records(store)
    found = list(source.best_per_task(device=config.device_name()).values()) if best else source.records()
    chosen = [record for record in found if task is None or task in (record.task_name, record.task_key)]
    if not chosen:
        known = f"called {task}" if task is not None else "to export"
        raise OptionError(f"there is no record {known} in {home_of(store)}; `retune records list` shows what there is")
    typer.echo(f"{append_log(log, map(from_record, chosen))} trials written to {log}")


@records_app.command("query")
def records_query(
    sql: Annotated[str, typer.Argument(help="A DuckDB query over the views `records` and `best`.")],
    store: Store = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row instead of a table.")] = False,
) -> None:
    """Ask the records anything in SQL. Needs `pip install 'retune[report]'`."""
    columns, rows = run_query(home_of(store), sql)
    if as_json:
        for row in rows:
            typer.echo(json.dumps(dict(zip(columns, row, strict=True)), default=str))
        return
    table = _table(*columns)
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row))
    _show(table)


@records_app.command("compact")
def records_compact(
    least: Annotated[int, typer.Option(min=2, help="Join the files of a task when it has at least so many.")] = 8,
    store: Store = None,
) -> None:
    """Join the many small files of each task. Runs may go on meanwhile."""
    _records(store)
    done = compact(home_of(store), least)
    typer.echo(f"{done.files_before} files with {done.rows} records became {done.files_after}")


@records_app.command("check")
def records_check(store: Store = None) -> None:
    """Read every record file from beginning to end, and say whether all is well."""
    found = _records(store).check()
    typer.echo(f"{found.files} files with {found.rows} records are sound")
    for path in found.temporaries:
        typer.echo(f"{path}: left over by a process that was killed; it may be deleted when no run is active")


def home_of(store: str | None) -> Path:
    """The state folder that `--store` names, or the configured one."""
    return Path(store).absolute() if store else config.load().home


def _records(store: str | None) -> ParquetRecordStore:
    return ParquetRecordStore(home_of(store))


def _table(*headings: str) -> Table:
    """A table whose cells are never cut: ids are copied from it."""
    table = Table(box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "record")
    return table


def _show(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
