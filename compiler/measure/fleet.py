"""In: programs. Out: their times, from workers on other machines. Always: one result per program, in order; what a
worker has lost is done by another one, and a bad candidate is a value.

A fleet is reached through a `Courier`: it takes *errands* (a verb and a message, see `retune.compiler.measure.wire`) to
queues that workers serve, and brings one answer for each. Programs are built in chunks on any worker of the queue
`BUILD`; the object code goes from there to the storage that all share, and from that to a worker of the device's queue,
which times it.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from retune.compiler.errors import MeasureError
from retune.compiler.measure.cuda_runner import gpu_of_key
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.results import BuildResult, Measurement, MeasureResult, join
from retune.compiler.measure.task_inputs import special_inputs
from retune.compiler.measure.wire import from_bytes, to_bytes
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask

BUILD = "build"
"""The queue of the workers that build."""

BUILD_VERB, TIME_VERB, COMPARE_VERB = "build", "time", "compare-networks"
DESCRIBE_VERB, LIMITS_VERB = "describe", "measure-limits"
"""What workers can be asked to do, see `retune.compiler.driver.bench`."""

BUILT_AT_ONCE = 8
TIMED_AT_ONCE = 16
"""Programs in a chunk: enough to make its way worthwhile, few enough that several workers have something to do."""


def device_queue(key: str) -> str:
    """The queue of the workers that time on devices of a key. Of a GPU's number the colon becomes a dash, since queues
    are folders.
    """
    return f"device-{key if gpu_of_key(key) is None else key.replace(':', '-')}"


def queues_of(key: str) -> tuple[str, ...]:
    """The queues that the worker of a device serves: that of its key. A GPU, such as cuda:1, has one of its own, and
    shares one with all others, for runs that ask for `cuda`.
    """
    gpu = gpu_of_key(key)
    return (device_queue(key),) if gpu is None else (device_queue(f"cuda:{gpu}"), device_queue("cuda"))


class Objects(Protocol):
    """Bytes by what they are: object code, networks, tasks."""

    def put(self, data: bytes) -> str:
        """Keep bytes; their name. Raises: StoreError."""
        ...

    def get(self, name: str) -> bytes:
        """Bytes that were kept. Raises: StoreError, MeasureError when they are gone."""
        ...


class Courier(Protocol):
    """The way to the workers."""

    @property
    def objects(self) -> Objects:
        """The storage that all share."""
        ...

    def send(self, queue: str, verb: str, message: bytes) -> str:
        """Begin an errand; the ticket for its answer. Raises: MeasureError."""
        ...

    def next(self, tickets: Sequence[str]) -> tuple[str, bytes]:
        """Wait for the answer to one of these errands, given once. Raises: MeasureError when nobody can do it."""
        ...

    def cancel(self, tickets: Sequence[str]) -> None:
        """Nobody needs these answers any more."""
        ...

    def close(self) -> None:
        """Leave nothing behind; what is sent after that begins anew."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """One built program: the name of its kernel among the objects, or why there is none."""

    name: str | None
    status: MeasureStatus
    error: str
    seconds: float


def answered(answer: bytes) -> Any:
    """What a worker found. Raises: MeasureError when it could not do what it was asked."""
    found = from_bytes(answer)
    if found["error"]:
        raise MeasureError(found["error"])
    return found["value"]


def asked(courier: Courier, queue: str, verb: str, request: Mapping[str, Any]) -> Any:
    """Do one errand and wait for it. Raises: MeasureError."""
    ticket = courier.send(queue, verb, to_bytes(request))
    try:
        return answered(courier.next([ticket])[1])
    except BaseException:
        courier.cancel([ticket])
        raise


class _Tasks:
    """Tasks among the objects, each made a message once."""

    def __init__(self, courier: Courier) -> None:
        self._courier = courier
        self._messages: dict[str, bytes] = {}

    def name_of(self, task: SearchTask) -> str:
        """The object that is the task."""
        if task.identity not in self._messages:
            self._messages[task.identity] = to_bytes(task)
        return self._courier.objects.put(self._messages[task.identity])


class FleetBuilder:
    """Builds on any worker of the queue `BUILD`. `timeout` is in seconds for one candidate."""

    def __init__(self, courier: Courier, timeout: float = 15.0, at_once: int = BUILT_AT_ONCE) -> None:
        self.courier = courier
        self.timeout_s = timeout
        self.at_once = at_once
        self._tasks = _Tasks(courier)

    def send(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> str:
        """Begin to build a chunk; the ticket for `received`."""
        steps = [dump_steps(candidate) for candidate in candidates]
        request = {"task": self._tasks.name_of(task), "steps": steps, "timeout": self.timeout_s}
        return self.courier.send(BUILD, BUILD_VERB, to_bytes(request))

    def received(self, answer: bytes) -> list[BuiltKernel]:
        """The kernels of a chunk. Raises: MeasureError."""
        return [BuiltKernel(*each) for each in answered(answer)]

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[BuildResult]:
        """As `LocalBuilder.build`, with the object code brought here. Raises: MeasureError."""
        built: dict[int, BuiltKernel] = {}
        waiting = {self.send(task, part): places for places, part in chunks(candidates, self.at_once)}
        try:
            while waiting:
                ticket, answer = self.courier.next(list(waiting))
                built.update(zip(waiting.pop(ticket), self.received(answer), strict=True))
        except BaseException:
            self.courier.cancel(list(waiting))
            raise
        return [self._fetched(built[place]) for place in range(len(candidates))]

    def _fetched(self, kernel: BuiltKernel) -> BuildResult:
        artifact = None if kernel.name is None else from_bytes(self.courier.objects.get(kernel.name))
        return BuildResult(artifact, kernel.status, kernel.error, kernel.seconds)

    def close(self) -> None:
        """Nothing to end: the workers belong to no run."""


class FleetRunner:
    """Times on a worker of the device `key`, which has the device to itself meanwhile."""

    processors: tuple[int, ...] = ()

    def __init__(
        self, courier: Courier, key: str, options: MeasureOptions, at_once: int = TIMED_AT_ONCE, in_flight: int = 0
    ) -> None:
        """`in_flight` chunks are on their way at once, 0: as many as there are."""
        self.courier = courier
        self.key = key
        self.options = options
        self.at_once = at_once
        self.in_flight = in_flight
        self._tasks = _Tasks(courier)
        self._fresh = False

    def send(self, task: SearchTask, kernels: Sequence[str], best: float = math.inf, turns: int = 0) -> str:
        """Begin to time kernels, named among the objects; the ticket for `received`. With `turns` they are compared,
        see `LocalRunner.compare`.
        """
        inputs = {task.dag.inputs[place].name: array for place, array in special_inputs(task).items()}
        request = {
            "task": self._tasks.name_of(task),
            "kernels": list(kernels),
            "best": best,
            "options": self.options,
            "inputs": inputs,
            "turns": turns,
            "fresh": self._fresh,
        }
        self._fresh = False
        return self.courier.send(device_queue(self.key), TIME_VERB, to_bytes(request))

    def received(self, answer: bytes) -> list[MeasureResult] | None:
        """The times of a chunk; None when comparing ended the process that compared. Raises: MeasureError."""
        times: list[MeasureResult] | None = answered(answer)
        return times

    def run(
        self, task: SearchTask, builds: Sequence[BuildResult], best_seconds: float | None = None
    ) -> list[MeasureResult]:
        """As `LocalRunner.run`. Raises: MeasureError."""
        places = [place for place, build in enumerate(builds) if build.artifact is not None]
        names = self._names(builds)
        best = math.inf if best_seconds is None else best_seconds
        found = {
            place: MeasureResult((), build.status, build.error, 0.0)
            for place, build in enumerate(builds)
            if build.artifact is None
        }
        left = deque(chunks(names, self.at_once))
        waiting: dict[str, Sequence[int]] = {}
        try:
            while left or waiting:
                while left and not (self.in_flight and len(waiting) >= self.in_flight):
                    part_places, part = left.popleft()
                    waiting[self.send(task, part, best)] = [places[place] for place in part_places]
                ticket, answer = self.courier.next(list(waiting))
                times = self.received(answer) or []
                found.update(zip(waiting.pop(ticket), times, strict=True))
                best = min([best, *(cost for time in times for cost in time.costs)])
        except BaseException:
            self.courier.cancel(list(waiting))
            raise
        return [found[place] for place in range(len(builds))]

    def compare(self, task: SearchTask, builds: Sequence[BuildResult], turns: int = 7) -> list[MeasureResult] | None:
        """As `LocalRunner.compare`. Raises: MeasureError."""
        names = self._names(builds)
        if not names:
            return []
        ticket = self.send(task, names, turns=turns)
        try:
            return self.received(self.courier.next([ticket])[1])
        except BaseException:
            self.courier.cancel([ticket])
            raise

    def restart(self) -> None:
        """Time what comes next in a fresh process."""
        self._fresh = True

    def close(self) -> None:
        """Leave nothing in the storage. The workers belong to no run and go on."""
        self.courier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _names(self, builds: Sequence[BuildResult]) -> list[str]:
        return [self.courier.objects.put(to_bytes(build.artifact)) for build in builds if build.artifact is not None]


class FleetMeasurer:
    """Builds on many workers and times on those of one device, both at once."""

    def __init__(self, builder: FleetBuilder, runner: FleetRunner) -> None:
        self.builder = builder
        self.runner = runner

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """One measurement per candidate, in order. Raises: MeasureError, see
        `retune.compiler.measure.measurer.Measurer`.
        """
        round_ = _Round(self.builder, self.runner, task, math.inf if best_seconds is None else best_seconds)
        try:
            found = round_.run(candidates)
        except BaseException:
            self.runner.courier.cancel(round_.waiting)
            raise
        return [found[place] for place in range(len(candidates))]

    def close(self) -> None:
        """Nothing to end: the workers belong to no run."""


class _Round:
    """Candidates of one task on their way."""

    def __init__(self, builder: FleetBuilder, runner: FleetRunner, task: SearchTask, best: float) -> None:
        self.builder = builder
        self.runner = runner
        self.task = task
        self.best = best
        self._building: dict[str, Sequence[int]] = {}
        self._built: dict[int, BuiltKernel] = {}
        self._ready: list[int] = []
        self._timing: dict[str, list[int]] = {}
        self._found: dict[int, Measurement] = {}

    @property
    def waiting(self) -> list[str]:
        """The tickets without an answer."""
        return [*self._building, *self._timing]

    def run(self, candidates: Sequence[Sequence[Step]]) -> dict[int, Measurement]:
        """The measurements by the candidates' places."""
        for places, part in chunks(candidates, self.builder.at_once):
            self._building[self.builder.send(self.task, part)] = places
        while self.waiting:
            ticket, answer = self.builder.courier.next(self.waiting)
            if ticket in self._building:
                self._take_kernels(self._building.pop(ticket), self.builder.received(answer))
            else:
                self._take_times(self._timing.pop(ticket), self.runner.received(answer) or [])
            self._send_on()
        return self._found

    def _take_kernels(self, places: Sequence[int], kernels: Sequence[BuiltKernel]) -> None:
        for place, kernel in zip(places, kernels, strict=True):
            self._built[place] = kernel
            if kernel.name is None:
                self._found[place] = Measurement((), kernel.status, kernel.error, kernel.seconds, 0.0)
            else:
                self._ready.append(place)

    def _take_times(self, places: Sequence[int], times: Sequence[MeasureResult]) -> None:
        for place, time in zip(places, times, strict=True):
            kernel = self._built[place]
            self._found[place] = join(BuildResult(None, kernel.status, kernel.error, kernel.seconds), time)
            self.best = min([self.best, *time.costs])

    def _send_on(self) -> None:
        """Have timed what is built, in whole chunks while more is being built."""
        while self._ready and (len(self._ready) >= self.runner.at_once or not self._building):
            places, self._ready = self._ready[: self.runner.at_once], self._ready[self.runner.at_once :]
            names = [name for place in places if (name := self._built[place].name) is not None]
            self._timing[self.runner.send(self.task, names, self.best)] = places


def chunks(items: Sequence[Any], size: int) -> Iterator[tuple[Sequence[int], Sequence[Any]]]:
    """The items in parts of at most `size`, each with the places of its items."""
    for start in range(0, len(items), size):
        part = items[start : start + size]
        yield range(start, start + len(part)), part
