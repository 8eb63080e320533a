"""Building and timing on workers in other processes: the requests, and the builder and runner that send them.

An `Engine` (Prefect's task runners, Dask) sends a request to a worker of a queue, finds another worker when that worker
is lost, and returns the answer. Programs are built in chunks on any worker of the queue `BUILD`, and timed on a worker
of the device's queue.
"""

import logging
import math
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from retune.compiler.core.closing import Closing
from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, in_order
from retune.compiler.measure.runner import gpu_of_key
from retune.compiler.measure.task_inputs import special_inputs
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

_LOG = logging.getLogger(__name__)

BUILD = "build"
"""The queue of the workers that build."""

WARN_SECONDS = 30.0
"""Seconds without a worker for a queue before a warning."""

CONNECT_SECONDS = 10.0
"""How long a scheduler of Dask may take to answer."""
# Both ends of a connection begin with a mapping that has this key.
_GREETING = b"pickle-protocol"

CHUNK = 8
"""Programs in a request: enough to amortize it, few enough to keep several workers busy."""


def device_queue(key: str) -> str:
    """The queue of the workers that time on devices of a key. The colon of a GPU's number becomes a dash."""
    return f"device-{key if gpu_of_key(key) is None else key.replace(':', '-')}"


def queues_of(key: str) -> tuple[str, ...]:
    """The queues that the worker of a device serves: that of its key. A GPU, such as cuda:1, has its own queue, and
    shares a queue with all others, for runs that ask for `cuda`.
    """
    gpu = gpu_of_key(key)
    return (device_queue(key),) if gpu is None else (device_queue(f"cuda:{gpu}"), device_queue("cuda"))


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class BuildRequest:
    """Build programs of a task. Answer: one untimed `Measurement` each."""

    task: SearchTask
    candidates: Sequence[Sequence[Step]]
    options: MeasureOptions


@dataclass(frozen=True, slots=True, eq=False)
class TimeRequest:
    """Time kernels of a task, if `fresh` in a process started for it. Answer: one `Measurement` each, without its
    kernel; with `passes` as `LocalRunner.compare`.

    `best` is the task's best cost so far. A worker that gets several requests with the same `round` remembers the best
    cost that it has measured for it.
    """

    task: SearchTask
    kernels: Sequence[KernelArtifact]
    options: MeasureOptions
    best: float = math.inf
    inputs: Mapping[str, Array] = field(default_factory=dict)
    passes: int = 0
    fresh: bool = False
    round: str = ""

    @classmethod
    def of(cls, task: SearchTask, builds: Sequence[Measurement], options: MeasureOptions, **more: Any) -> Self:
        """A request to time the built programs, with the arrays registered for the task's inputs."""
        kernels = [build.artifact for build in builds if build.artifact is not None]
        inputs = {task.dag.inputs[index].name: array for index, array in special_inputs(task).items()}
        return cls(task, kernels, options, inputs=inputs, **more)


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """Describe the worker's device. Answer: the fields of `DeviceFacts`."""


@dataclass(frozen=True, slots=True)
class LimitsRequest:
    """Measure the limits of the device. Answer: the fields of `MachineLimits`."""

    threads: int


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Time compiled networks, by name, with the model in ONNX Runtime. Answer: the fields of a `Comparison`."""

    networks: Mapping[str, bytes]
    model: bytes
    threads: int
    seed: int


Request = BuildRequest | TimeRequest | DescribeRequest | LimitsRequest | CompareRequest


class Pending(Protocol):
    def result(self) -> Any:
        """Wait for the answer. Raises: MeasureError when no worker can answer."""
        ...

    def cancel(self) -> object: ...


def require_scheduler(address: str) -> None:
    """Check that a scheduler of Dask answers at `address`, such as tcp://10.0.0.5:8786.

    Dask's own client waits for ever for the greeting of a server that sends none, and takes the text of another kind of
    server for the length of a message.

    Raises: ConnectionError.
    """
    limit = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            greeting = _greeting(address, limit)
            if _GREETING in greeting:
                return
            reason = "another server answers there" if greeting else "what listens there says nothing"
        except OSError as error:
            if isinstance(error, ConnectionRefusedError) and time.monotonic() < limit - 1:  # it may be about to start
                time.sleep(0.5)
                continue
            reason = error.strerror or str(error)
        raise ConnectionError(f"no scheduler of Dask answers at {address}: {reason}")


def _greeting(address: str, limit: float) -> bytes:
    """What the server at `address` says until it says what a scheduler does, at most until `limit`.

    Raises: OSError.
    """
    url, greeting = urlsplit(address), b""
    with socket.create_connection((url.hostname, url.port), CONNECT_SECONDS) as connection, suppress(TimeoutError):
        while _GREETING not in greeting and len(greeting) < 1 << 10:
            connection.settimeout(max(0.01, limit - time.monotonic()))
            data = connection.recv(1 << 10)
            if not data:
                break
            greeting += data
    return greeting


class Patience:
    """The time a request has been waiting for any worker."""

    def __init__(self, queue: str, seconds: float) -> None:
        self._queue, self._seconds = queue, seconds
        self._since, self._has_warned = time.monotonic(), False

    def check(self, *, is_served: bool) -> None:
        """Note whether there is a worker; log a warning when there was none for a while.

        Raises: MeasureError when there was none for too long.
        """
        now = time.monotonic()
        if is_served:
            self._since = now
        elif now - self._since > self._seconds:
            raise MeasureError(f"no worker of {self._queue} was there for {self._seconds / 60:.0f} minutes")
        elif now - self._since > WARN_SECONDS and not self._has_warned:
            self._has_warned = True
            _LOG.warning("no worker serves %s; see `retune worker --help`", self._queue)


class Engine(Protocol):
    """Sends requests to workers."""

    def submit(self, queue: str, request: Request, name: str = "") -> Pending:
        """Begin a request, which users see as `name`. Raises: MeasureError."""
        ...


def ask(engine: Engine, queue: str, request: Request) -> Any:
    """The answer to one request. Raises: MeasureError."""
    pending = engine.submit(queue, request)
    try:
        return pending.result()
    except BaseException:
        pending.cancel()
        raise


class FleetBuilder:
    """Builds on any worker of the queue `BUILD`."""

    def __init__(self, engine: Engine, options: MeasureOptions, at_once: int = CHUNK) -> None:
        self.engine = engine
        self.options = options
        self.at_once = at_once

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[Measurement]:
        """As `LocalBuilder.build`. Raises: MeasureError."""
        requests = [BuildRequest(task, part, self.options) for part in chunks(candidates, self.at_once)]
        pending = [self.engine.submit(BUILD, request, task.name) for request in requests]
        try:
            return [build for each in pending for build in each.result()]
        except BaseException:
            for request in pending:
                request.cancel()
            raise


class FleetRunner(Closing):
    """Times on a worker of the device `key`, which has the device to itself meanwhile."""

    cpus: tuple[int, ...] = ()

    def __init__(
        self, engine: Engine, key: str, options: MeasureOptions, at_once: int = CHUNK, in_flight: int = 0
    ) -> None:
        """`in_flight` is the most chunks sent concurrently, 0: all."""
        self.engine = engine
        self.key = key
        self.options = options
        self.at_once = at_once
        self.in_flight = in_flight
        self._fresh = False

    def run(
        self, task: SearchTask, builds: Sequence[Measurement], best_seconds: float | None = None
    ) -> list[Measurement]:
        """As `LocalRunner.run`. Raises: MeasureError."""
        built = [build for build in builds if build.artifact is not None]
        best = math.inf if best_seconds is None else best_seconds
        waiting, pending = deque(chunks(built, self.at_once)), deque[Pending]()
        measured: list[Measurement] = []
        try:
            while waiting or pending:
                while waiting and not (self.in_flight and len(pending) >= self.in_flight):
                    pending.append(self._submit(task, waiting.popleft(), best=best))
                measured += pending[0].result()
                pending.popleft()
                # Chunks submitted from now on give up on slow programs as early as a local runner would.
                best = min([best, *(cost for measurement in measured for cost in measurement.costs)])
        except BaseException:
            for each in pending:
                each.cancel()
            raise
        return in_order(builds, measured)

    def compare(self, task: SearchTask, builds: Sequence[Measurement], passes: int = 7) -> list[Measurement] | None:
        """As `LocalRunner.compare`. Raises: MeasureError."""
        if not any(build.artifact is not None for build in builds):
            return []
        pending = self._submit(task, builds, passes=passes)
        try:
            times: list[Measurement] | None = pending.result()
            return times
        except BaseException:
            pending.cancel()
            raise

    def restart(self) -> None:
        """Time the next programs in a fresh process."""
        self._fresh = True

    def close(self) -> None:
        """Nothing to end: the workers belong to no run."""

    def _submit(self, task: SearchTask, builds: Sequence[Measurement], **more: Any) -> Pending:
        request = TimeRequest.of(task, builds, self.options, fresh=self._fresh, **more)
        self._fresh = False
        return self.engine.submit(device_queue(self.key), request, task.name)


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
