"""The command `retune tune`: checks the request, then replaces this process by the session that tunes.

`retune tune` has two halves. This one checks the options, the state folder and the network, quickly and without
Prefect. Prefect reads its settings from the environment when it is imported, so the second half,
`retune.flows.session`, is a fresh interpreter that this process turns into.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler import config
from retune.compiler.driver.extract import extract_network
from retune.flows.commands.arguments import Network, Shapes, Store, TargetText, Threads
from retune.flows.commands.output import Json, Output, Quiet
from retune.flows.launch import become
from retune.flows.parameters import DEFAULT_TRIALS, TuneJob
from retune.flows.state_folder import check_state_folder
from retune.storage.files import make_folder, new_id
from retune.storage.parquet import ParquetRecordStore
from retune.storage.place import veiled_places

HOST = "llvm"
"""The target of this machine."""


def tune(
    network: Network,
    trials: Annotated[
        int | None, typer.Option(help=f"Programs to measure. Default: {DEFAULT_TRIALS} when --minutes is not given.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Minutes of tuning rounds; confirming the best programs and comparing come on top."),
    ] = None,
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
    output = Output(as_json, quiet)
    job = TuneJob.checked(
        network, trials, minutes, threads, target, seed, batch, store, shape, early_stopping, weights, winograd,
        fleet, on,
    )  # fmt: skip
    home = Path(job.home)
    check_state_folder(home, len(os.fsencode(f"{job.label}.retune")))
    _announce(output, f"reading {job.network}")
    extract_network(job.network, job.target or HOST, job.threads or 1, job.shapes, job.winograd)
    ParquetRecordStore(job.place)  # refuses records of a newer version
    make_folder(home / "prefect")
    url = config.load().prefect_api
    _announce(output, f"connecting to Prefect at {url}" if url else "starting Prefect (up to a minute the first time)")
    settings = {**config.prefect_environment(home), config.SESSION: new_id()}
    settings[config.PLACES] = json.dumps(veiled_places())
    become("retune.flows.session", [output.mode.value, json.dumps(asdict(job))], config.child_environment(settings))


def _announce(output: Output, text: str) -> None:
    """Say what is done now, as the session does when a phase starts; it cannot be imported without Prefect."""
    line = " ".join(text.split())
    output.say(line, event="phase_started", text=line)
