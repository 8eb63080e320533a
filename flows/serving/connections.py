"""Limits of `retune serve` on its clients: connections, seconds until a request has arrived, lines in the log."""

import asyncio
import logging
import resource
import time

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 60.0
"""So long a request may take to arrive, from the connection or the last answer on."""
MOST_CONNECTIONS = 1024
REPEAT_SECONDS = 10.0
"""So often the log has one line at most."""

_BACKLOG = 128  # asyncio accepts as many at once, before the first of them is counted
_OTHER_FILES = 64


def most_connections() -> int:
    """How many connections are kept: fewer where the process may open few files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if limit < 0 else max(16, min(MOST_CONNECTIONS, limit - _BACKLOG - _OTHER_FILES))


class BoundedConnection(H11Protocol):
    """A connection that ends when its request does not arrive in time, or when there are too many and it has waited
    longest for its client.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn
        """Begin, and make room."""
        self.began = self.loop.time()
        self.timer = self.loop.call_later(REQUEST_SECONDS, self._expire)
        super().connection_made(transport)
        alive = [each for each in self.connections if not each.transport.is_closing()]
        if len(alive) > most_connections():
            bounded = [each for each in alive if isinstance(each, BoundedConnection)]
            # Never empty, since it has this connection. A connection whose run or answer is under way stays.
            idle = [each for each in bounded if each.is_receiving or each.transport.get_write_buffer_size()]
            min(idle, key=lambda each: each.began).transport.abort()

    @property
    def is_receiving(self) -> bool:
        """Whether there is no request yet, or a part of it."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.began = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    def _expire(self) -> None:
        left = self.began + REQUEST_SECONDS - self.loop.time()
        if left <= 0 and self.is_receiving:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(max(left, 1.0), self._expire)


class _Sparse(logging.Filter):
    """Drops what was said less than `REPEAT_SECONDS` ago: clients must not be able to fill the log."""

    said: dict[tuple[object, ...], float] = {}  # noqa: RUF012 - all loggers share it

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.getMessage()[:100], record.exc_info and record.exc_info[0]), time.monotonic()
        if now - self.said.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        if len(self.said) > 100:
            self.said.clear()
        self.said[key] = now
        return True


_SPARSE = _Sparse()


def configure(app: FastAPI, host: str = "127.0.0.1", port: int = 0, stop_seconds: int | None = None) -> uvicorn.Config:
    """The configuration of a server of `app` with these bounds."""
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_SPARSE)
    return uvicorn.Config(
        app,
        host,
        port,
        http=BoundedConnection,
        ws="none",
        backlog=_BACKLOG,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=stop_seconds,
    )
