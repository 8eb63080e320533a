"""In: a command line. Out: what was asked for, or one sentence on stderr.

Always: exit code 2 for a user's mistake, 130 after Ctrl-C; Prefect is not started before the input is known to be
good.

`retune tune` has two halves. This one reads the options and the network, quickly and without Prefect. Prefect reads
its settings from the environment when it is imported, so the second half, `flows.session`, is a fresh interpreter
that this process turns into.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from compiler import config
from compiler.driver.extract import extract_network
from compiler.errors import OptionError, RetuneError, StoreError
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from compiler.frontend import zoo
from flows.outcome import PIPE_WIDTH
from flows.parameters import DEFAULT_TRIALS, TuneJob
from storage.files import make_folder, new_id
from storage.parquet import ParquetRecordStore

app = typer.Typer(
    name="retune",
    help="Tune neural networks for the machine they run on.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)
records_app = typer.Typer(help="Look at what was measured.", rich_markup_mode=None, no_args_is_help=True)
app.add_typer(records_app, name="records")

Store = Annotated[
    str | None,
    typer.Option("--store", help="State folder: records, runs, results. Default: $RETUNE_HOME or ./.retune."),
]


@app.command()
def tune(
    network: Annotated[str, typer.Argument(help="A name listed by `retune networks`, or the path of an ONNX file.")],
    trials: Annotated[
        int | None, typer.Option(help=f"Programs to measure. Default: {DEFAULT_TRIALS} when --minutes is not given.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes to tune for.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads the network will run on. Default: all cores.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    batch: Annotated[int, typer.Option(help="Most programs measured in one round.")] = 64,
    target: Annotated[
        str | None, typer.Option(help="Target text, e.g. 'llvm -mcpu=znver4'. Default: this machine.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Fix a dynamic input: NAME=1,3,224,224. May be given more than once.")
    ] = None,
    store: Store = None,
) -> None:
    """Tune a network, compile it with the best programs found, and report what it brought.

    The same command after an interruption goes on where the run was stopped.
    """
    job = TuneJob.checked(network, trials, minutes, threads, target, seed, batch, store, shape)
    extract_network(job.network, job.target, job.threads, job.shapes)
    _prepare_state_folder(Path(job.home))
    settings = {**config.prefect_environment(Path(job.home)), config.SESSION: new_id()}
    environment = config.child_environment(settings)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", "flows.launch", json.dumps(asdict(job))], environment)


@app.command()
def networks() -> None:
    """List the networks of the zoo."""
    for name in zoo.NAMES:
        typer.echo(name)


@app.command()
def run(
    artifact: Annotated[Path, typer.Argument(help="A compiled network, runs/RUN/NAME.retune. Run only your own.")],
    threads: Annotated[int | None, typer.Option(help="Threads to run on. Default: all cores.")] = None,
) -> None:
    """Time a compiled network on inputs of zeros."""
    executor = GraphExecutor(CompiledNetwork.load(artifact), threads or config.usable_cores())
    shapes, dtypes = executor.get_input_info()
    for name, shape in shapes.items():
        typer.echo(f"input {name}: {dtypes[name]}{list(shape)}")
    typer.echo(f"{executor.benchmark(repeat=10, number=1, min_repeat_ms=50.0)}")


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
        raise OptionError(f"no record {record_id} in {_home(store)}; `retune records best` lists some")
    typer.echo(json.dumps({**asdict(found[0]), "status": found[0].status.name}, indent=2))


def _table(*headings: str) -> Table:
    """A table whose cells are never cut: ids are copied from it."""
    table = Table(box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "record")
    return table


def _show(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def _prepare_state_folder(home: Path) -> None:
    """Make the folder, with room for Prefect's database, and see whether the records in it can be read by this
    version.

    Raises: StoreError, SchemaError.
    """
    try:
        make_folder(home / "prefect")
    except OSError as error:
        raise StoreError(f"cannot use {home} as state folder: {error.strerror}") from error
    ParquetRecordStore(home)


def _home(store: str | None) -> Path:
    return Path(store).absolute() if store else config.load().home


def _records(store: str | None) -> ParquetRecordStore:
    return ParquetRecordStore(_home(store))


def main() -> None:
    """Entry point of the console script `retune`."""
    try:
        app()
    except RetuneError as error:
        typer.echo(f"retune: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
