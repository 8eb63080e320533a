"""A run of `tune-network` in the foreground of a terminal: shows its progress and its report."""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from signal import SIGINT, default_int_handler

import typer

from retune.compiler.driver.extract import begin_extraction
from retune.compiler.driver.operators import is_operator
from retune.flows import exits, launch
from retune.flows.commands.output import Mode
from retune.flows.embedded_server import EmbeddedServer
from retune.flows.json_view import report_line
from retune.flows.live import shown_on
from retune.flows.parameters import TuneJob
from retune.flows.server import watched_server
from retune.flows.state_folder import blaming_the_disk
from retune.flows.summary import show_report
from retune.flows.toplevel import guarded
from retune.flows.tune_network import tune_network
from retune.flows.tune_operator import tune_operator_of

# Prefect needs a request or two to mark the run; supervisors such as Docker kill after ten seconds.
GRACE_SECONDS = 8.0
"""How long a run may take to tell a server at an address that it was stopped."""


def run(job: TuneJob, mode: Mode, server: EmbeddedServer | None) -> int:
    """Tune in this process, which runs nothing else, with Prefect's `server` or that at PREFECT_API_URL. Returns the
    exit code.
    """
    logging.getLogger().handlers.clear()  # Prefect's, which writes warnings in another form
    end_on_signals(has_address=server is None)
    code = guarded(partial(main, job, mode, server), launch.RESUMABLE)
    if code in (exits.UNAVAILABLE, exits.INTERRUPTED):  # Prefect would wait for its server once more
        sys.stdout.flush()
        os._exit(code)
    return code


def main(job: TuneJob, mode: Mode, server: EmbeddedServer | None = None) -> int:
    """Run the flow and print its report. Returns the exit code."""
    _begin_extraction(job)
    with watched_server(server), blaming_the_disk(Path(job.home)), shown_on(sys.stdout, mode):
        report = tune_operator_of(job) if is_operator(job.network) else tune_network(**job.parameters())
    if mode is Mode.JSON:
        typer.echo(report_line(report))
    elif mode is Mode.PEOPLE:
        show_report(report, sys.stdout)
    return exits.OK if report.is_right else exits.WRONG


def _begin_extraction(job: TuneJob) -> None:
    """Extract the network while Prefect's server starts. What a GPU or a fleet's device is, is found out later."""
    if job.plan is None and job.gpu is None and not is_operator(job.network):
        begin_extraction(job.network, job.target, job.threads, job.shapes, job.options.winograd)


def end_on_signals(*, has_address: bool) -> None:
    """Take both signals back from Prefect. A server at an address outlives them and is to hear of the run's end, so the
    flow is interrupted the ordinary way and has some time for it; the embedded server may be gone already.
    """
    launch.end_on_signals_within(GRACE_SECONDS if has_address else 0.0, launch.RESUMABLE)
    if has_address:
        launch.set_handler(SIGINT, default_int_handler)
