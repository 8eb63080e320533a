"""Attributes the results and failures of a worker that handles many candidates in one stream.

A candidate that kills or stalls its worker costs only its own result: earlier candidates keep theirs, and later
candidates run in a new worker. A failure before the first candidate is raised as an exception.
"""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.processes.worker_process import WorkerFailedError

Result = TypeVar("Result")

STARTED = "started"
"""The first item of a stream: preparations are over; later failures are the candidates' fault."""


def collect(
    count: int, stream_from: Callable[[int], Iterator[object]], failed: Callable[[WorkerFailedError, float], Result]
) -> list[Result]:
    """`count` results: those that `stream_from(first)` yields after STARTED, and `failed(error, seconds)` where it
    broke off.

    A worker that was ended from outside (for example by the kernel's OOM killer) gets the same candidate once more; the
    second time it counts as the candidate's failure.

    Raises: MeasureError when a stream fails before STARTED, and any other exception of a stream.
    """
    results: list[Result] = []
    tried_again = -1
    while len(results) < count:
        started = False
        since = time.monotonic()
        try:
            for item in stream_from(len(results)):
                if started:
                    results.append(item)  # type: ignore[arg-type]
                started = True
                since = time.monotonic()
        except WorkerFailedError as error:
            if not started:
                raise
            if error.from_outside and tried_again != len(results):
                tried_again = len(results)
                continue
            results.append(failed(error, time.monotonic() - since))
            continue
        if len(results) < count:
            raise MeasureError(f"a worker answered for {len(results)} of {count} candidates")
    return results
