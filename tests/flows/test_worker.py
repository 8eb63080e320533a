"""A worker of a fleet ends when it is told to, with the exit code that shells give to the signal."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from retune.flows.cli import exits
from retune.flows.cli.worker import WorkerJob, serve_until_signal


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_that_of_the_signal(signum: int, code: int) -> None:
    async def serve(is_stopping: Callable[[], bool]) -> None:
        threading.Thread(target=os.kill, args=(os.getpid(), signum)).start()
        while not is_stopping():
            await asyncio.sleep(0.01)

    assert serve_until_signal(serve) == code
    assert exits.signal_exit_code(signum) == code


def test_a_worker_of_a_gpu_serves_its_own_queue_and_that_of_all() -> None:
    assert WorkerJob("prefect", "", build=True, device="cuda:1").queues == ("device-cuda-1", "device-cuda", "build")
    assert WorkerJob("prefect", "", build=False, device="epyc").queues == ("device-epyc",)
