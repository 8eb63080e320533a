"""The command `retune tune`: checks the request quickly and without Prefect, then starts Prefect's server and calls the
flow.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import tune_options
from retune.compiler.core.target import Target
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.extract_dynamic import AnyImport
from retune.compiler.tune.operators import extract_operator, is_operator
from retune.compiler.tune.precision.samples import read_samples
from retune.flows.cli.commands.arguments import Network, Shapes, Store, option_of
from retune.flows.cli.commands.output import Mode, Output
from retune.flows.cli.state_folder import check_state_folder
from retune.flows.dynamic_network import import_network
from retune.flows.parameters import TuneJob, add_options
from retune.flows.server.embedded_server import begin_session
from retune.storage.parquet import ParquetRecordStore


def tune(
    output: Output,
    network: Network,
    *,
    shape: Shapes = None,
    store: Store = None,
    **options: object,
) -> int:
    """Tune a network, compile it with the best programs found, and report the speedup.

    The same command after an interruption goes on where the run was stopped. Defaults can be set in retune.toml and in
    the environment, see `retune config`.
    """
    job = TuneJob.of(network, shapes=shape, home=store, **options)
    check_state_folder(Path(job.home), len(os.fsencode(f"{job.label}.retune")))
    _announce(output, f"reading {job.network}")
    imported = _import(job)
    ParquetRecordStore(job.location)  # refuses records of a newer version
    url = config.load().prefect_api
    _announce(output, f"connecting to Prefect at {url}" if url else "starting Prefect (up to a minute the first time)")
    return run_flow(job, output.mode, imported)


# Each option of a tuning run becomes a parameter of `tune`, which typer shows as a flag.
add_options(tune, tune_options(), option_of)


def run_flow(job: TuneJob, mode: Mode, network: AnyImport | None) -> int:
    """Tune in this process and return the exit code; `network` is what `_import` returned for the job."""
    server = begin_session()
    # Imports Prefect, while the server starts: both take seconds.
    code: int = import_module("retune.flows.cli.foreground").run(job, mode, server, network)
    return code


def _import(job: TuneJob) -> AnyImport | None:
    """Check what a job tunes. Returns the network, None if the job tunes a single operator.

    Raises: OptionError; the errors of `ImportedNetwork.check` and `extract_operator`.
    """
    if not is_operator(job.network):
        imported = import_network(job)
        imported.check(job.target)
        if job.options.calibrate and isinstance(imported, ImportedNetwork):  # before Prefect is started
            read_samples(job.options.calibrate, imported.prepared().inputs, job.options.seed)
        return imported
    sys.path.insert(0, os.getcwd())  # where the module of an operator lies, as for `python -m`
    extract_operator(job.network, job.target or str(Target.host()), threads=1)
    if job.shapes or job.options.sample:
        raise OptionError("--shape and --shapes are for networks: the line of an operator has its sizes")
    if not job.precision.is_float32:
        raise OptionError("--precision is for networks: the line of an operator has its types")
    return None


def _announce(output: Output, text: str) -> None:
    """Say what is done now, as the flow does when a phase starts; it cannot be imported without Prefect."""
    line = " ".join(text.split())
    output.say(line, event="phase_started", text=line)
