"""Interleaved timing of contenders on a GPU: time and error of each, or why there is none.

A contender that fails, or takes too long to get ready, is excluded and named; the others continue.
"""

import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from types import FrameType
from typing import Protocol, TypeVar

import numpy as np

from benchmarks.gpu_cases import Array
from benchmarks.harness import Figure

PASSES = 7
_TEXT = 400
"""Letters of a failure that a line keeps."""

T = TypeVar("T")


class Contender(Protocol):
    """One way to compute an operator on the GPU."""

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        ...

    def result(self) -> Array:
        """What it computes."""
        ...


Makers = Mapping[str, Callable[[], Contender]]
"""What makes contenders ready, by backend."""


class OvertimeError(Exception):
    """A piece of work exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The median `seconds` of a contender, and its largest `error` against the reference, relative to the
    largest result; None without a reference.
    """

    backend: str
    seconds: float
    error: float | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a contender has no time."""

    backend: str
    why: str


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """What is done inside is interrupted after so many seconds; in the main thread.

    Raises: OvertimeError.
    """

    def late(_: int, __: FrameType | None) -> None:
        raise OvertimeError(f"it takes longer than {seconds:.3g} s")

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, late)
    other, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(other - (time.monotonic() - began), 1e-3) if other else 0.0)
        signal.signal(signal.SIGALRM, before)


def failed_by(backend: str, failure: Exception) -> Failed:
    """A failure in one line."""
    return Failed(backend, f"{type(failure).__name__}: {' '.join(str(failure).split())[:_TEXT]}")


def attempted(backend: str, work: Callable[[], T], seconds: float) -> T | Failed:
    """What `work` gives within so many seconds, or why it gives nothing."""
    try:
        with time_limit(seconds):
            return work()
    except Exception as failure:  # a contender's may be anything: it becomes a line
        return failed_by(backend, failure)


def ready(makers: Makers, seconds: float) -> tuple[dict[str, Contender], list[Failed]]:
    """The contenders that get ready within so many seconds each, and those that do not."""
    found: dict[str, Contender] = {}
    failures = []
    for backend, make in makers.items():
        made = attempted(backend, make, seconds)
        if isinstance(made, Failed):
            failures.append(made)
        else:
            found[backend] = made
    return found, failures


def timed_interleaved(contenders: Mapping[str, Contender], reference: str, seconds: float) -> Iterator[Timed | Failed]:
    """Of every contender its time, interleaved, as many as fit the seconds, at least one; or why it has none. Errors
    are those beside the result of `reference`.
    """
    times: dict[str, list[float]] = {backend: [] for backend in contenders}
    failures: dict[str, Failed] = {}
    began = time.monotonic()
    for number in range(PASSES):  # a noisy moment hits all alike
        if number and time.monotonic() - began > seconds:
            break
        for backend, contender in contenders.items():
            if backend not in failures:
                taken = attempted(backend, contender.seconds, max(seconds, 1.0))
                if isinstance(taken, Failed):
                    failures[backend] = taken
                else:
                    times[backend].append(taken)
    results: dict[str, Array] = {}
    for backend, contender in contenders.items():
        if backend in failures:
            continue
        result = attempted(backend, contender.result, max(seconds, 60.0))
        if isinstance(result, Failed):
            failures[backend] = result
        else:
            results[backend] = result
    for backend, taken_times in times.items():
        if backend in failures:
            yield failures[backend]
            continue
        error = relative_error(results[backend], results[reference]) if reference in results else None
        yield Timed(backend, statistics.median(taken_times), error)


def relative_error(result: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest result; infinite for numbers that are none."""
    largest = float(np.abs(wanted.astype(np.float64)).max())
    apart = float(np.abs(result.astype(np.float64) - wanted.astype(np.float64)).max())
    return apart / max(largest, 1e-30) if np.isfinite(apart) else float("inf")


def failure_line(case: str, failed: Failed, details: Mapping[str, object]) -> Figure:
    """The line that says why a contender has no figure."""
    return Figure(case, failed.backend, 1, "failure", nan, "", details={**details, "failure": failed.why})
