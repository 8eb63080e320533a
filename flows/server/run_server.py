"""The Prefect server of a run: an embedded server is watched and restarted once; a server at a URL is awaited.

Prefect's own clients bridge an outage by asking again, for a minute and more, and say nothing. So a thread watches the
server meanwhile, and ends the run where the server does not come back.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from retune.compiler.core import config
from retune.compiler.core.errors import RetuneError, ServerError
from retune.flows.cli import exits
from retune.flows.cli.commands.output import complain
from retune.flows.cli.launch import KEPT, end
from retune.flows.server.embedded_server import EmbeddedServer

CHECK_SECONDS = 3.0
"""How often a server at a URL is asked. An embedded server is a child process, whose end is noticed at once."""
TIMEOUT_SECONDS = 2.5
"""How long one answer may take. A client connects up to four times, so silence is noticed within 15 s."""
STARTS = 2


@contextmanager
def watch_server(embedded: EmbeddedServer | None = None) -> Iterator[None]:
    """Wait until the Prefect server answers, the embedded server or that at PREFECT_API_URL, and watch it during the
    block. Raises: ServerError.
    """
    over = threading.Event()
    with server_errors():
        if embedded is not None:
            _await_start(embedded)
            watch = threading.Thread(target=_watch_process, args=(embedded, over), daemon=True)
        else:
            url, wait = str(PREFECT_API_URL.value()), config.load().prefect_wait
            with _impatient_client(url) as client:
                _await_answer(client, url, wait)
            watch = threading.Thread(target=_watch_url, args=(url, wait, over), daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()


@contextmanager
def server_errors() -> Iterator[None]:
    """Tell errors of the server, or on the way to it, from faults of ours. Raises: ServerError."""
    try:
        yield
    except RetuneError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, httpx.TransportError) or (
                isinstance(cause, httpx.HTTPStatusError) and cause.response.is_server_error
            ):
                where = PREFECT_API_URL.value() or "of this run"
                reason = str(cause) or type(cause).__name__
                raise ServerError(f"the Prefect server {where} failed ({reason}); {KEPT}") from error
            is_theirs = type(cause).__module__.partition(".")[0] in ("prefect", "httpx")
            # The context counts only for their exceptions, which are raised while a transport error is handled: of ours
            # it may be anything.
            cause = cause.__cause__ or (cause.__context__ if is_theirs else None)
        raise


@contextmanager
def _impatient_client(url: str) -> Iterator[SyncPrefectClient]:
    """A client that asks once and does not wait long."""
    settings = {
        PREFECT_API_URL: url,
        PREFECT_API_REQUEST_TIMEOUT: TIMEOUT_SECONDS,
        # Prefect's client repeats a request five times with growing pauses, which is what this thread has to see
        # through.
        PREFECT_CLIENT_MAX_RETRIES: 0,
    }
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client


def _await_answer(client: SyncPrefectClient, url: str, wait_s: float) -> None:
    """Return when the server at `url` answers, at most after `wait_s` seconds. Raises: ServerError."""
    failure = client.api_healthcheck()
    if failure is None:
        return
    what = f"the Prefect server at {url}"
    complain(f"{what} does not answer ({failure}); waiting for it up to {wait_s:g} s, as prefect_wait says")
    limit = time.monotonic() + wait_s
    while client.api_healthcheck() is not None:
        if time.monotonic() >= limit:
            raise ServerError(f"{what} did not answer for {wait_s:g} s: start it, or unset PREFECT_API_URL; {KEPT}")
        time.sleep(min(1.0, wait_s))
    complain(f"{what} answers again")


def _watch_url(url: str, wait_s: float, over: threading.Event) -> None:
    with _impatient_client(url) as client:
        while not over.wait(CHECK_SECONDS):
            try:
                _await_answer(client, url, wait_s)
            except ServerError as error:
                end(str(error), exits.UNAVAILABLE)


def _await_start(server: EmbeddedServer) -> None:
    """Wait until an embedded server answers, with a second try on a loaded machine. Raises: ServerError."""
    for left in reversed(range(STARTS)):
        if _answers(server):
            server.keep_tables()
            return
        if left:
            complain("warning: the embedded Prefect server did not start; trying once more")
            server.restart()
    raise ServerError(
        "the embedded Prefect server did not start: try again when the machine is less busy, "
        "or set PREFECT_API_URL to the address of a server"
    )


def _answers(server: EmbeddedServer) -> bool:
    """Whether a server that was begun answers in time; else its process is gone."""
    process = server.process
    limit = time.monotonic() + PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    with httpx.Client(timeout=limit - time.monotonic()) as client:
        while process.poll() is None and time.monotonic() < limit:
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"{server.url}/health").is_success:
                    return True
            time.sleep(0.1)
    # A server that came up after all would hold the port and the database's lock against the second try.
    process.kill()
    process.wait()
    return False


def _watch_process(server: EmbeddedServer, over: threading.Event) -> None:
    for is_first in (True, False):
        code = server.process.wait()
        if over.is_set():
            return
        if is_first:
            complain(f"warning: the embedded Prefect server ended with code {code}; starting it again")
            server.restart()
            if _answers(server):
                complain("warning: the embedded Prefect server answers again")
                continue
        end(f"the embedded Prefect server ended with code {code} and stays away; {KEPT}", exits.UNAVAILABLE)
