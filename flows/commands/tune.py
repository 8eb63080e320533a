"""The command `retune tune`: checks the request quickly and without Prefect, then starts Prefect's server and calls the
flow.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from retune.compiler import config
from retune.compiler.driver.extract import check_network
from retune.compiler.driver.operators import extract_operator, is_operator
from retune.compiler.errors import OptionError
from retune.compiler.options import tune_options
from retune.compiler.target import Target
from retune.flows.commands.arguments import Network, Shapes, Store, option_of
from retune.flows.commands.output import Json, Mode, Output, Quiet
from retune.flows.embedded_server import begin_session
from retune.flows.parameters import TuneJob, add_options
from retune.flows.state_folder import check_state_folder
from retune.storage.parquet import ParquetRecordStore


def tune(
    network: Network, *, shape: Shapes = None, store: Store = None, as_json: Json = False, quiet: Quiet = False,
    **options: Any,
) -> int:  # fmt: skip
    """Tune a network, compile it with the best programs found, and report the speedup.

    The same command after an interruption goes on where the run was stopped. Defaults can be set in retune.toml and in
    the environment, see `retune config`.
    """
    output = Output(as_json, quiet)
    job = TuneJob.of(network, shapes=shape, home=store, **options)
    home = Path(job.home)
    check_state_folder(home, len(os.fsencode(f"{job.label}.retune")))
    _announce(output, f"reading {job.network}")
    _check_subject(job)
    ParquetRecordStore(job.place)  # refuses records of a newer version
    url = config.load().prefect_api
    _announce(output, f"connecting to Prefect at {url}" if url else "starting Prefect (up to a minute the first time)")
    return run_flow(job, output.mode)


add_options(tune, tune_options(), option_of)


def run_flow(job: TuneJob, mode: Mode) -> int:
    """Tune in this process. Returns the exit code."""
    server = begin_session()
    # Imports Prefect, while the server starts: both take seconds.
    code: int = import_module("retune.flows.foreground").run(job, mode, server)
    return code


def _check_subject(job: TuneJob) -> None:
    """Check that the network, or the operator, can be tuned. Raises: as `check_network`, `extract_operator`."""
    if not is_operator(job.network):
        check_network(job.network, job.shapes, job.target)
        return
    sys.path.insert(0, os.getcwd())  # where the module of an operator lies, as for `python -m`
    extract_operator(job.network, job.target or str(Target.host()), 1)
    if job.shapes:
        raise OptionError("--shape is for networks: the line of an operator has its sizes")


def _announce(output: Output, text: str) -> None:
    """Say what is done now, as the session does when a phase starts; it cannot be imported without Prefect."""
    line = " ".join(text.split())
    output.say(line, event="phase_started", text=line)
