"""Commands that read the runs of a store: list them, write a run's report, fetch a run's files."""

from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core.errors import CorruptRecordError, OptionError
from retune.compiler.runtime.readable import milliseconds
from retune.flows.cli.commands.arguments import Store, home_of, state_folder_of
from retune.flows.cli.commands.output import Column, Output, complain
from retune.storage.artifacts import ArtifactStore, content_key, key_of
from retune.storage.files import put
from retune.storage.runs import RunLedger, rounds_of
from retune.tasks.report.facts import facts_of, find_run, moment
from retune.tasks.report.page import page


def runs(
    output: Output,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the newest so many.", metavar="N")] = None,
    store: Store = None,
) -> None:
    """List all runs, the newest last."""
    rows = []
    home = home_of(store)
    # [-0:] is the whole list.
    for info in RunLedger(home).list()[-(limit or 0) :]:
        summary = info.summary or {}
        so_far = {} if info.is_complete else next(reversed(rounds_of(home, info.run_id)), {})
        rows.append(
            {
                "run_id": info.run_id,
                "network": info.describe.get("network"),
                "threads": info.describe.get("threads"),
                "precision": info.describe.get("precision", "float32"),
                "started": info.started,
                "completed": info.completed,
                "trials": summary.get("trials", so_far.get("trials")),
                "untuned_seconds": summary.get("untuned_seconds"),
                "tuned_seconds": summary.get("tuned_seconds"),
            }
        )
    output.table(
        rows,
        (
            Column("run", lambda row: row["run_id"], folds=False),
            Column("network", lambda row: row["network"]),
            Column("threads", lambda row: row["threads"], folds=False, from_width=110),
            Column("precision", lambda row: row["precision"], folds=False, from_width=145),
            Column("begun UTC", lambda row: moment(row["started"])[:16], folds=False),
            Column("ended UTC", lambda row: _end_time(row["completed"]), folds=False, from_width=130),
            Column("trials", lambda row: row["trials"], folds=False),
            Column("untuned ms", lambda row: milliseconds(row["untuned_seconds"]), folds=False, from_width=96),
            Column("tuned ms", lambda row: milliseconds(row["tuned_seconds"]), folds=False),
        ),
    )


def _end_time(completed: float | None) -> str:
    return moment(completed)[:16] if completed else "not yet"


WhichRun = Annotated[str, typer.Argument(help="A run's id, its beginning or its end, or `latest`.")]


def report(
    output: Output,
    run: WhichRun = "latest",
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The report to write. Default: report.html in the run's folder."),
    ] = None,
    store: Store = None,
) -> None:
    """Write the report of a run: latencies, progress, roofline, coverage. It is one HTML file."""
    home = home_of(store)
    info = find_run(home, run)
    folder = state_folder_of(store) / "runs" / info.run_id
    path = (to or folder / "report.html").absolute()
    text = page(facts_of(home, info, folder))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror}; choose another file with -o") from error
    output.say(f"{path}", run_id=info.run_id, page=path, is_complete=info.is_complete)
    if not info.is_complete:
        complain(f"run {info.run_id} has not come to its end; this is the report so far")


def fetch(
    output: Output,
    run: WhichRun = "latest",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to. Default: the run's folder in the state folder.")
    ] = None,
    store: Store = None,
) -> None:
    """Fetch the compiled network and the report of a run from a store at a URL. The run may be of another machine."""
    home = home_of(store)
    info = find_run(home, run)
    key = key_of(info.summary)
    if key is None:
        made = f"{info.describe.get('home')}/runs/{info.run_id} of the machine that it ran on"
        raise OptionError(f"run {info.run_id} has not put its files into {home}; they are in {made}")
    files = ArtifactStore(home).get(key)
    if files is None:
        raise OptionError(f"the files of run {info.run_id} are not in {home} any more")
    # The key is the hash of the files, so it proves them also where the store's own list was replaced.
    if content_key(files) != key:
        raise CorruptRecordError(f"the files of run {info.run_id} in {home} are not those that it made")
    folder = (to or state_folder_of(store) / "runs" / info.run_id).absolute()
    put({folder / name: data for name, data in files.items()})
    for name in sorted(files):
        output.say(str(folder / name), run_id=info.run_id, file=folder / name)
