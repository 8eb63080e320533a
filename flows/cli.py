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

from compiler import config
from compiler.driver.extract import extract_network
from compiler.errors import RetuneError, StoreError
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from compiler.frontend import zoo
from flows.parameters import DEFAULT_TRIALS, TuneJob
from flows.records_cli import Store, records_app
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
app.add_typer(records_app, name="records")


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
    early_stopping: Annotated[
        int, typer.Option(help="End after so many trials that did not shorten the estimated latency. 0: never.")
    ] = 0,
    weights: Annotated[
        str, typer.Option(help="Weights while a kernel is timed: cached, memory, or auto: as in the network.")
    ] = "auto",
    store: Store = None,
) -> None:
    """Tune a network, compile it with the best programs found, and report what it brought.

    The same command after an interruption goes on where the run was stopped.
    """
    job = TuneJob.checked(network, trials, minutes, threads, target, seed, batch, store, shape, early_stopping, weights)
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
    executor = GraphExecutor(CompiledNetwork.load(artifact), config.usable_cores() if threads is None else threads)
    shapes, dtypes = executor.get_input_info()
    for name, shape in shapes.items():
        typer.echo(f"input {name}: {dtypes[name]}{list(shape)}")
    typer.echo(f"{executor.benchmark(repeat=10, number=1, min_repeat_ms=50.0)}")


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


def main() -> None:
    """Entry point of the console script `retune`."""
    try:
        app()
    except RetuneError as error:
        typer.echo(f"retune: {' '.join(str(error).split())}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
