"""In: a network and options. Out: this process, turned into the session that tunes it.

Always: Prefect is not started before the input is known to be good.

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
from compiler.errors import StoreError
from flows.commands.arguments import Network, Shapes, Store, TargetText, Threads
from flows.commands.output import Json, Mode, Quiet
from flows.parameters import DEFAULT_TRIALS, TuneJob
from storage.files import make_folder, new_id
from storage.parquet import ParquetRecordStore
from storage.place import Place, veiled_places

HOST = "llvm"
"""The target of this machine."""


def tune(
    network: Network,
    trials: Annotated[
        int | None, typer.Option(help=f"Programs to measure. Default: {DEFAULT_TRIALS} when --minutes is not given.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes to tune for.")] = None,
    threads: Threads = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search. Default: 0.")] = None,
    batch: Annotated[int | None, typer.Option(help="Most programs measured in one round. Default: 64.")] = None,
    target: TargetText = None,
    shape: Shapes = None,
    early_stopping: Annotated[
        int | None,
        typer.Option(help="End after so many trials that did not shorten the estimated latency. Default: 0, never."),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="Weights while a kernel is timed: cached, memory, or auto (default): as in the network."),
    ] = None,
    winograd: Annotated[
        bool | None,
        typer.Option(
            "--winograd/--no-winograd",
            help="Try Winograd's transforms for 3x3 convolutions of stride 1; the faster way serves. Default: yes.",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(help="Workers that build and time: folder, prefect, dask[://HOST:PORT], ray[://HOST:PORT]."),
    ] = None,
    on: Annotated[str | None, typer.Option("--on", help="The device of the fleet to tune for. Default: cpu.")] = None,
    store: Store = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tune a network, compile it with the best programs found, and report the speedup.

    The same command after an interruption goes on where the run was stopped. Defaults can be set in retune.toml and in
    the environment, see `retune config`.
    """
    mode = Mode.of(as_json, quiet)
    job = TuneJob.checked(
        network, trials, minutes, threads, target, seed, batch, store, shape, early_stopping, weights, winograd,
        fleet, on,
    )  # fmt: skip
    extract_network(job.network, job.target or HOST, job.threads or 1, job.shapes, job.winograd)
    _prepare_state_folder(Path(job.home), job.place)
    settings = {**config.prefect_environment(Path(job.home)), config.SESSION: new_id()}
    settings[config.PLACES] = json.dumps(veiled_places())
    environment = config.child_environment(settings)
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "flows.launch", "flows.session", mode.value, json.dumps(asdict(job))]
    os.execve(sys.executable, command, environment)


def _prepare_state_folder(home: Path, place: Place) -> None:
    """Make the folder, with room for Prefect's database, and see whether the records at `place` can be read by this
    version.

    Raises: StoreError, SchemaError.
    """
    try:
        make_folder(home / "prefect")
    except OSError as error:
        raise StoreError(f"cannot use {home} as state folder: {error.strerror}") from error
    ParquetRecordStore(place)
