"""The commands `retune worker` and `retune pools`.

They make the settings that Prefect reads when it is imported, then call the module that imports it.
"""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core import config
from retune.flows.cli import launch
from retune.flows.cli.commands.arguments import Store, state_folder_of
from retune.flows.cli.commands.output import Output
from retune.flows.cli.state_folder import check_state_folder
from retune.storage.store_url import redact

DEVICE = "cpu"


def worker(
    output: Output,
    build: Annotated[bool, typer.Option("--build", help="Build programs, on all cores of this machine.")] = False,
    device: Annotated[
        str, typer.Option(help="Time programs, as a device of this key: cuda:1 on that GPU, else on the CPU.")
    ] = "",
    processes: Annotated[int | None, typer.Option(min=1, help="Programs built at once. Default: one per core.")] = None,
    fleet: Annotated[
        str | None, typer.Option(help="dask://HOST:8786: join that scheduler; prefect: serve that of PREFECT_API_URL.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Folder that a Prefect fleet shares. Default: fleet/ in the state folder.")
    ] = None,
    store: Store = None,
) -> None:
    """Build or time programs for runs on other machines, until stopped.

    Without --build and --device it builds. Ctrl-C or SIGTERM ends it; another worker goes on with what it was doing.
    """
    mode, settings = output.mode, config.load()
    home = state_folder_of(store)
    job = {
        "fleet": fleet or settings.fleet or "prefect",
        "storage": redact(storage or settings.fleet_storage or str(home / "fleet")),
        "build": build or not device,
        "device": device,
        "parallel": processes,
    }
    _prepare(home, "stopped before it began")
    import_module("retune.flows.cli.worker").main(mode, job)


def pools(
    output: Output,
    device: Annotated[
        list[str] | None, typer.Option(help="A device of this machine that gets a limit. Default: cpu.")
    ] = None,
    store: Store = None,
) -> int:
    """Create the work pools, queues and limits that deployments need on the Prefect server. What exists stays."""
    mode = output.mode
    _prepare(state_folder_of(store), "stopped; the same command makes what is still missing")
    code: int = import_module("retune.flows.cli.pools").main(mode, device or [DEVICE])
    return code


def _prepare(home: Path, sentence: str) -> None:
    check_state_folder(home)
    launch.use_prefect(config.prefect_environment(), sentence)
