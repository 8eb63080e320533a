"""A run of `tune-network` in the foreground of a terminal: shows its progress and its report.

Its arguments are the output mode and the parameters of the flow as JSON, see `retune.flows.commands.tune`.
"""

import json
import logging
import os
import sys
from functools import partial
from signal import SIGINT, default_int_handler

import typer

from retune.compiler.driver.extract import begin_extraction
from retune.compiler.driver.operators import is_operator
from retune.flows import embedded_server, exits, launch
from retune.flows.commands.arguments import state_folder_of
from retune.flows.commands.output import Mode, warn_in_one_line
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


def main(mode: Mode, text: str) -> int:
    """Run the flow with the parameters in `text` and print its report. Returns the exit code."""
    parameters = json.loads(text)
    folder = state_folder_of(parameters["home"])
    job = TuneJob.of(**parameters)
    _begin_extraction(job)
    with watched_server(embedded_server.started()), blaming_the_disk(folder), shown_on(sys.stdout, mode):
        report = tune_operator_of(job) if is_operator(job.network) else tune_network(**parameters)
    if mode is Mode.JSON:
        typer.echo(report_line(report))
    elif mode is Mode.PEOPLE:
        show_report(report, sys.stdout)
    return exits.OK if report.is_right else exits.WRONG


def _begin_extraction(job: TuneJob) -> None:
    """Extract the network while Prefect's server starts. What a GPU or a fleet's device is, is found out later."""
    if job.plan is None and job.gpu is None and not is_operator(job.network):
        begin_extraction(job.network, job.target, job.threads, job.shapes, job.options.winograd)


def end_on_signals() -> None:
    """Take both signals back from Prefect. A server at an address outlives them and is to hear of the run's end, so the
    flow is interrupted the ordinary way and has some time for it; the embedded server may be gone already.
    """
    has_address = embedded_server.started() is None
    launch.end_on_signals_within(GRACE_SECONDS if has_address else 0.0, "retune.flows.foreground")
    if has_address:
        launch.set_handler(SIGINT, default_int_handler)


if __name__ == "__main__":
    logging.getLogger().handlers.clear()  # Prefect's, which writes warnings in another form
    warn_in_one_line()
    end_on_signals()
    CODE = guarded(partial(main, Mode(sys.argv[1]), sys.argv[2]), launch.SENTENCES["retune.flows.foreground"])
    if CODE == exits.UNAVAILABLE:  # Prefect would wait for its server once more
        sys.stdout.flush()
        os._exit(CODE)
    sys.exit(CODE)
