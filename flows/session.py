"""In: who watches, and a checked `TuneJob` as JSON, in an environment made for Prefect. Out: a tuned network, shown
while it comes about.

Always: the second half of `retune tune`, see `flows.commands.tune`.
"""

import json
import logging
import signal
import sys
from pathlib import Path

import typer
from prefect import get_client
from prefect.settings import PREFECT_API_URL

from compiler import config
from compiler.errors import OptionError, RetuneError
from flows import exits
from flows.commands.output import Mode, complain, warn_in_one_line
from flows.guardian import start_guardian
from flows.live import shown_on
from flows.machine import report_line
from flows.outcome import show_report
from flows.parameters import TuneJob
from flows.state_folder import blaming_the_disk
from flows.tune_network import tune_network
from storage.place import veiled


def main(mode: Mode, text: str) -> int:
    """Run the flow for the job in `text` and print its report. Returns the exit code."""
    job = TuneJob(**json.loads(text))
    for url in config.places():
        veiled(url)
    try:
        require_server()
        with blaming_the_disk(Path(job.home)), shown_on(sys.stdout, mode):
            report = tune_network(**job.asked())
    except RetuneError as error:
        complain(str(error))
        return exits.USER_ERROR
    except KeyboardInterrupt:
        complain("stopped; what was measured is kept, and the same command goes on from there")
        return exits.INTERRUPTED
    if mode is Mode.JSON:
        typer.echo(report_line(report))
    elif mode is Mode.PEOPLE:
        show_report(report, sys.stdout)
    return exits.OK if report.is_right else exits.WRONG


def require_server() -> None:
    """See whether the user's own Prefect server answers, where PREFECT_API_URL names one. Raises: OptionError."""
    url = PREFECT_API_URL.value()
    if url:
        with get_client(sync_client=True) as client:
            failure = client.api_healthcheck()
        # That server outlives a Ctrl-C and is to hear of it, so the flow is interrupted the ordinary way.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if failure is not None:
            raise OptionError(
                f"the Prefect server at {url} does not answer ({failure}): start it, or unset PREFECT_API_URL"
            )


if __name__ == "__main__":
    logging.getLogger().handlers.clear()  # Prefect's, which writes warnings in another form
    warn_in_one_line()
    GUARDIAN = start_guardian(config.session())
    sys.exit(main(Mode(sys.argv[1]), sys.argv[2]))
