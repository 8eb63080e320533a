"""`retune records`: only `import` adds to a store, and only `compact` changes its files."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core import config
from retune.compiler.core.errors import LogFormatError, OptionError
from retune.compiler.measure.logs.log import append_log, from_record, read_log, to_record, write_line
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.runtime.readable import count, finite, milliseconds
from retune.flows.cli.commands.arguments import Store, home_of
from retune.flows.cli.commands.output import Column, Commands, Group, Output
from retune.storage.compaction import Retention, compact
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import run_query

records_app = Commands(
    cls=Group, help="Look at what was measured.", rich_markup_mode=None, no_args_is_help=True, add_completion=False
)

UNKNOWN_DEVICE = "unknown"
"""Where the trials of an imported log ran, unless told: no machine takes them for its own."""
# One append is one file a task: parts bound the memory, and larger parts leave fewer files.
_IMPORTED_AT_ONCE = 10_000


@records_app.command("list")
def records_list(output: Output, store: Store = None) -> None:
    """List every task that was ever tuned: its trials, failures and best time."""
    output.table(
        _records(store).tasks(),
        (
            Column("task", lambda row: row["task_name"]),
            Column("threads", lambda row: row["threads"]),
            Column("trials", lambda row: row["trials"]),
            Column("failed", lambda row: row["failures"]),
            Column("best ms", lambda row: milliseconds(row["best_seconds"])),
            Column("target", lambda row: row["target"]),
            Column("device", lambda row: row["device"]),
        ),
    )


@records_app.command("best")
def records_best(
    output: Output,
    threads: Annotated[int | None, typer.Option(min=1, help="Only programs of so many threads.")] = None,
    store: Store = None,
) -> None:
    """List the best record of every task on this machine, by the task's name."""
    best = _records(store).best_per_task(device=config.device_name(), threads=threads)
    output.table(
        [_fields(record) for record in sorted(best.values(), key=lambda record: (record.task_name, record.task_key))],
        (
            Column("record", lambda row: row["record_id"], folds=False),
            Column("task", lambda row: row["task_name"]),
            Column("threads", lambda row: row["threads"]),
            Column("best ms", lambda row: milliseconds(row["seconds"])),
            Column("network", lambda row: row["network"]),
        ),
    )


@records_app.command("show")
def records_show(
    output: Output,
    record_id: Annotated[str, typer.Argument(help="The id of a record, or its beginning.")],
    store: Store = None,
) -> None:
    """Print one record, every field of it."""
    text = record_id.upper()
    every = _records(store).records(confirmations=True)
    alike = [record for record in every if text and record.record_id.upper().startswith(text)]
    matches = [record for record in alike if record.record_id == record_id] or alike
    if len(matches) != 1:
        many = f"{len(matches)} records begin with {record_id}" if matches else f"no record {record_id}"
        raise OptionError(f"{many} in {home_of(store)}; `retune records best` lists some")
    fields = _fields(matches[0])
    text = json.dumps(finite(fields), indent=2)
    output.say(text, **fields)


@records_app.command("import")
def records_import(
    output: Output,
    log: Annotated[Path, typer.Argument(help="A tuning log: JSON lines as TVM's auto-scheduler writes them.")],
    device: Annotated[
        str, typer.Option(help="The machine that the log was made on; `this` for the one you are on.")
    ] = UNKNOWN_DEVICE,
    store: Store = None,
) -> None:
    """Add the trials of a tuning log to the records, but those that it has, as of a log that was exported from it."""
    device_name = config.device_name() if device == "this" else device
    records = [to_record(trial, device_name) for trial in read_log(log)]
    into = _records(store)
    # A log has no names for people: tasks that are known keep theirs.
    tasks_known = ((task["task_key"], task["task_name"]) for task in into.tasks())
    names = {key: name for key, name in tasks_known if name not in key}
    named = [replace(record, task_name=names.get(record.task_key, record.task_name)) for record in records]
    fresh = _without_known(named, into)
    added = sum(into.add(fresh[at : at + _IMPORTED_AT_ONCE]) for at in range(0, len(fresh), _IMPORTED_AT_ONCE))
    tasks = len({record.task_key for record in records})
    said = f"{len(records)} trials of {count(tasks, 'task')} read from {log}, {added} of them new"
    output.say(said, trials=len(records), tasks=tasks, added=added, log=log)


@records_app.command("export")
def records_export(
    output: Output,
    log: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    task: Annotated[str | None, typer.Option(help="Only the task of this name or key.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Only the best record of every task on this machine.")] = False,
    store: Store = None,
) -> None:
    """Write records as a tuning log: JSON lines as TVM's auto-scheduler writes them."""
    # A log is appended to: an old log would be mixed with this export.
    if log.exists():
        raise OptionError(f"{log} exists already; name a file that does not")
    source = _records(store)
    records = list(source.best_per_task(device=config.device_name()).values()) if best else source.records()
    chosen = [record for record in records if task is None or task in (record.task_name, record.task_key)]
    if not chosen:
        known = f"called {task}" if task is not None else "to export"
        raise OptionError(f"there is no record {known} in {home_of(store)}; `retune records list` shows what there is")
    count = append_log(log, map(from_record, chosen))
    output.say(f"{count} trials written to {log}", trials=count, log=log)


@records_app.command("query")
def records_query(
    output: Output,
    sql: Annotated[str, typer.Argument(help="A DuckDB query over the views that docs/how-to/analytics.md lists.")],
    store: Store = None,
) -> None:
    """Ask the records anything in SQL. Needs the extra `report`."""
    names, rows = run_query(home_of(store), sql)
    output.table(
        (dict(zip(names, row, strict=True)) for row in rows),
        [Column(name, lambda row, name=name: row[name]) for name in names],  # type: ignore[misc] # a loop's variable
    )


@records_app.command("compact")
def records_compact(
    output: Output,
    least: Annotated[int, typer.Option(min=2, help="Join the files of a task when it has at least so many.")] = 2,
    keep_best: Annotated[
        int | None, typer.Option(help="Drop records, but never the N fastest of a task.", metavar="N")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(help="Drop records, but none younger than so many days.", metavar="D")
    ] = None,
    store: Store = None,
) -> None:
    """Join the many small files of each task. Runs may go on meanwhile.

    With --keep-best or --keep-days, or both, records that neither of them keeps are dropped; the best of a task and
    those of unfinished runs always stay.
    """
    _records(store)
    done = compact(home_of(store), least, Retention.of(keep_best, keep_days))
    dropped = f"; {done.dropped} were dropped" if done.dropped else ""
    said = f"{done.files_before} files with {done.rows} records became {done.files_after}{dropped}"
    output.say(said, **asdict(done))


@records_app.command("check")
def records_check(output: Output, store: Store = None) -> None:
    """Read every record file from beginning to end, and say whether all is well."""
    check = _records(store).check()
    repeats = f"; {check.repeats} rows repeat one of them, and readers leave these out" if check.repeats else ""
    output.say(
        "\n".join(
            [
                f"{check.files} files with {check.rows} records are sound{repeats}",
                *(
                    f"{path}: left over by a process that was killed; the next one that writes there removes it"
                    for path in check.temporaries
                ),
                *(
                    f"{path}: it could not be read and was set aside; restore it from a backup, or delete it"
                    for path in check.quarantined
                ),
            ]
        ),
        **asdict(check),
    )


def _without_known(records: Sequence[MeasureRecord], store: ParquetRecordStore) -> list[MeasureRecord]:
    """The records of a log without those that the store has under another id, of any machine where none is named."""
    known = set()
    for key, target in {(record.task_key, record.target) for record in records}:
        for record in store.records(key, target, confirmations=True):
            with suppress(LogFormatError):  # a record of steps unknown to this version was not exported
                line = write_line(from_record(record))
                known |= {(line, record.device), (line, UNKNOWN_DEVICE)}
    return [record for record in records if (write_line(from_record(record)), record.device) not in known]


def _records(store: str | None) -> ParquetRecordStore:
    return ParquetRecordStore(home_of(store))


def _fields(record: MeasureRecord) -> dict[str, object]:
    """A record as plain values, for machines."""
    return {**asdict(record), "status": record.status.name, "seconds": record.seconds}
