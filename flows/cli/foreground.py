"""A run of `tune-network` in the foreground of a terminal: shows its progress and its report."""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from signal import SIGINT, default_int_handler

import typer

from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.operators import is_operator
from retune.flows.cli import exits, launch
from retune.flows.cli.commands.output import Mode
from retune.flows.cli.json_view import report_line
from retune.flows.cli.live import show_events
from retune.flows.cli.state_folder import explain_disk_errors
from retune.flows.cli.summary import show_report
from retune.flows.cli.toplevel import run_guarded
from retune.flows.parameters import TuneJob
from retune.flows.server.embedded_server import EmbeddedServer
from retune.flows.server.run_server import watch_server
from retune.flows.tune_network import tune_job
from retune.flows.tune_operator import tune_operator_job

# Prefect needs a request or two to mark the run; supervisors such as Docker kill after ten seconds.
GRACE_SECONDS = 8.0
"""How long a run may take to tell a server at an address that it was stopped."""


def run(job: TuneJob, mode: Mode, server: EmbeddedServer | None, network: ImportedNetwork | None) -> int:
    """Tune in this process, which runs nothing else, with Prefect's `server` or that at PREFECT_API_URL. Returns the
    exit code.
    """
    logging.getLogger().handlers.clear()  # Prefect's, which writes warnings in another form
    end_on_signals(has_address=server is None)
    code = run_guarded(partial(main, job, mode, server, network), launch.RESUMABLE)
    if code in (exits.UNAVAILABLE, exits.INTERRUPTED):  # Prefect would wait for its server once more
        sys.stdout.flush()
        os._exit(code)
    return code


def main(job: TuneJob, mode: Mode, server: EmbeddedServer | None = None, network: ImportedNetwork | None = None) -> int:
    """Run the flow for `job` and print its report; `network` is that of the job, None for an operator. Returns the exit
    code.
    """
    # While Prefect's server starts. What a GPU or a fleet's device is, is found out later.
    if network is not None and job.plan is None and job.gpu is None:
        network.begin(job.target, job.threads, job.options.winograd)
    with watch_server(server), explain_disk_errors(Path(job.home)), show_events(sys.stdout, mode):
        report = tune_operator_job(job) if is_operator(job.network) else tune_job(job, network)
    if mode is Mode.JSON:
        typer.echo(report_line(report))
    elif mode is Mode.PEOPLE:
        show_report(report, sys.stdout)
    return exits.OK if report.is_right else exits.WRONG


def end_on_signals(*, has_address: bool) -> None:
    """Take both signals back from Prefect. A server at an address outlives them and is to hear of the run's end, so the
    flow is interrupted the ordinary way and has some time for it; the embedded server may be gone already.
    """
    launch.end_on_signals_within(GRACE_SECONDS if has_address else 0.0, launch.RESUMABLE)
    if has_address:
        launch.set_handler(SIGINT, default_int_handler)
