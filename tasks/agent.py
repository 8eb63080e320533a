"""In: a storage and the queues that this process serves. Out: answers to errands. Always: whoever looks at an errand
that is being done sees that it is; a device is held by one process at a time.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Self

from retune.compiler import config
from retune.compiler.driver.bench import Bench, refusal
from retune.compiler.errors import StoreError
from retune.compiler.measure.cuda_runner import gpu_of_key
from retune.compiler.measure.fleet import BUILD, device_queue
from retune.storage.errands import Errand, ErrandStore
from retune.tasks.lanes import device_lane, lane_of

BEAT_SECONDS = 2.0
"""How often a worker shows that it is alive."""

LEAVE_SECONDS = 10.0
"""How long an agent that leaves waits for what it was doing to be given up."""

_LOG = logging.getLogger(__name__)

Lane = Callable[[], AbstractContextManager[object]]
"""What an agent holds while it does an errand."""


_AGENTS: dict[tuple[str, str], "Agent"] = {}


class Pulse:
    """Raises an errand's count for as long as the block lasts."""

    def __init__(self, store: ErrandStore, errand: Errand) -> None:
        self._store = store
        self._errand = errand
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"pulse-{errand.ticket}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        count = 0
        while not self._over.is_set():
            count += 1
            try:
                self._store.beat(self._errand, count)
            except StoreError as error:  # the run will take it for lost if that goes on
                _LOG.warning("cannot show that %s is being done: %s", self._errand.ticket, error)
            self._over.wait(BEAT_SECONDS)


class Agent:
    """Does the errands of `queues`, one at a time, on a bench of its own, and holds `lane` meanwhile. The bench builds
    `parallel` programs at once; `bench` is one to use instead, closed with the agent.
    """

    def __init__(
        self,
        store: ErrandStore,
        queues: Sequence[str],
        parallel: int | None = None,
        lane: Lane = nullcontext,
        bench: Bench | None = None,
    ) -> None:
        self.name = f"{config.host_name()}, process {os.getpid()}"
        self._store = store
        self._queues = tuple(queues)
        self._lane = lane
        gpus = (gpu_of_key(queue.removeprefix(device_queue(""))) for queue in queues)
        self._bench = bench or Bench(parallel, next((gpu for gpu in gpus if gpu is not None), None))
        self._busy = threading.Lock()
        self._leaving = False
        self._doing: Errand | None = None

    def drain(self) -> int:
        """Do errands until none is left that nobody else does; how many that were.

        Raises: StoreError when the storage cannot be reached.
        """
        done = 0
        with self._busy:
            while not self._leaving and (errand := self._claimed()) is not None:
                self._doing = errand
                try:
                    self._do(errand)
                finally:
                    self._doing = None
                done += 1
        return done

    def leave(self) -> None:
        """Begin nothing more, and hand what is being done to the next worker. From a signal handler or any thread."""
        self._leaving = True
        errand = self._doing
        if errand is not None:
            with contextlib.suppress(StoreError):  # the run will see by itself that nobody is at work
                self._store.give_up(errand.queue, errand.ticket, errand.attempt)
        self._bench.stop()

    def close(self) -> None:
        """End the processes of the bench, after the errand in progress."""
        self._busy.acquire(timeout=LEAVE_SECONDS)
        self._bench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claimed(self) -> Errand | None:
        for queue in self._queues:
            errand = self._store.claim(queue, self.name)
            if errand is not None:
                return errand
        return None

    def _do(self, errand: Errand) -> None:
        _LOG.info("%s: %s, attempt %d", errand.ticket, errand.verb, errand.attempt + 1)
        with Pulse(self._store, errand):
            try:
                with self._lane():
                    answer = self._bench.answer(errand.verb, errand.message, self._store.objects(errand.session))
            except Exception as error:  # whatever holding the device may raise: the run is told, and tries again
                _LOG.exception("%s could not be done", errand.ticket)
                answer = refusal(f"{self.name}: {type(error).__name__}: {error}")
            if not self._leaving:
                self._store.answer(errand, answer)


def agent_for(place: str, queue: str) -> Agent:
    """The agent with which this process serves a queue of a storage, the same one every time."""
    if (place, queue) not in _AGENTS:
        lane = nullcontext if queue == BUILD else partial(device_lane, lane_of(queue.removeprefix(device_queue(""))))
        _AGENTS[place, queue] = Agent(ErrandStore(place), (queue,), lane=lane)
    return _AGENTS[place, queue]
