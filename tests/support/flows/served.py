"""Applications that a thread serves, for tests with a client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from fastapi import FastAPI

from retune.flows.serving.app import listen
from retune.flows.serving.connections import configure


@contextmanager
def served(app: FastAPI) -> Iterator[httpx.Client]:
    """A client of the application, which a thread serves on the loopback address."""
    config = configure(app)
    server, listening = uvicorn.Server(config), listen(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()
