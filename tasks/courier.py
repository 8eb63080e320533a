"""In: errands of a run. Out: their answers, whoever does them. Always: each answer is given once; an errand whose
worker has fallen silent is given to another one.

The storage says all about an errand (`retune.storage.errands`); a *wake* only tells workers that there is something to
do. It may be lost or come twice, so nothing depends on the way it travels.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler.errors import MeasureError
from retune.storage.errands import ErrandStore, SessionObjects, Standing
from retune.storage.files import new_id

SILENCE_SECONDS = 15.0
"""A worker that has not raised its count for so long is lost."""
WAKE_SECONDS = 10.0
"""So long after nobody took an errand, its queue is woken again, each time after twice as long."""
TELL_SECONDS = 30.0
"""So long after nobody took an errand, a person is told."""
PATIENCE_SECONDS = 1800.0
"""So long after nobody took an errand, the run fails."""
ATTEMPTS = 5
"""So many workers may be lost with one errand."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_LOG = logging.getLogger(__name__)

Wake = Callable[[str], None]
"""Tells workers of a queue that an errand waits."""


@dataclass(slots=True)
class _Watch:
    """An errand under way, by this process's own clock."""

    queue: str
    attempt: int = -1
    claimed: bool = False
    pulse: bytes = b""
    since: float = 0.0
    next_wake: float = 0.0
    told: bool = False


class StoreCourier:
    """A `retune.compiler.measure.fleet.Courier` over a storage. `priority` is that of its errands, larger ones go
    first.
    """

    def __init__(
        self,
        store: ErrandStore,
        wake: Wake,
        priority: int = 1,
        *,
        silence_s: float | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._store = store
        self._wake = wake
        self._priority = priority
        self._silence_s = SILENCE_SECONDS if silence_s is None else silence_s
        self._patience_s = PATIENCE_SECONDS if patience_s is None else patience_s
        self._watched: dict[str, _Watch] = {}
        self._begin()
        store.sweep()

    @property
    def objects(self) -> SessionObjects:
        """The bytes that errands of this session name."""
        return self._objects

    def send(self, queue: str, verb: str, message: bytes) -> str:
        """Begin an errand. Raises: StoreError; MeasureError for a queue that cannot be one."""
        ticket = self._store.offer(queue, verb, self._session, message, self._priority)
        self._watched[ticket] = _Watch(queue)
        self._wake(queue)
        return ticket

    def next(self, tickets: Sequence[str]) -> tuple[str, bytes]:
        """Wait for one of the answers. Raises: MeasureError when nobody takes an errand, or too many workers were lost
        with it.
        """
        pause = _SHORTEST_PAUSE
        while True:
            self._objects.stay()
            queues = dict.fromkeys(self._watched[ticket].queue for ticket in tickets)
            standings = {queue: self._store.standings(queue) for queue in queues}
            for ticket in tickets:
                watch = self._watched[ticket]
                standing = standings[watch.queue].get(ticket)
                if standing is None:
                    raise MeasureError(f"the errand {ticket} is gone from {self._store.place}: was it tidied up?")
                if standing.is_answered:
                    del self._watched[ticket]
                    return ticket, self._store.take(watch.queue, ticket)
                busy = any(one.claimed for one in standings[watch.queue].values())
                self._look(ticket, watch, standing, busy=busy)
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def cancel(self, tickets: Sequence[str]) -> None:
        """Remove errands."""
        for queue in {self._watched[ticket].queue for ticket in tickets if ticket in self._watched}:
            self._store.forget(queue, [one for one in tickets if one in self._watched])
        for ticket in tickets:
            self._watched.pop(ticket, None)

    def close(self) -> None:
        """Leave nothing behind. What is sent after that belongs to a new session."""
        self.cancel(list(self._watched))
        self._store.end(self._session)
        self._begin()

    def _begin(self) -> None:
        self._session = new_id()
        self._objects = self._store.objects(self._session)

    def _look(self, ticket: str, watch: _Watch, standing: Standing, *, busy: bool) -> None:
        """Note how an errand is, and do something about a silent worker or a queue that nobody serves."""
        now = time.monotonic()
        if standing.attempt > watch.attempt >= 0:  # its worker had to leave, or was given up just now
            self._wake(watch.queue)
        if (watch.attempt, watch.claimed) != (standing.attempt, standing.claimed):
            watch.attempt, watch.claimed, watch.pulse = standing.attempt, standing.claimed, b""
            watch.since, watch.next_wake = now, now + WAKE_SECONDS
        if not standing.claimed:
            self._look_at_queue(watch, now, busy=busy)
            return
        if now - watch.since < self._silence_s / 4:
            return
        pulse = self._store.pulse(watch.queue, ticket, watch.attempt)
        if pulse != watch.pulse:
            watch.pulse, watch.since = pulse, now
        elif now - watch.since > self._silence_s:
            worker = self._store.claimant(watch.queue, ticket, watch.attempt)
            if watch.attempt + 1 >= ATTEMPTS:
                raise MeasureError(f"{ATTEMPTS} workers were lost one after the other with one errand, last {worker}")
            _LOG.warning("%s has fallen silent; another worker gets what it was doing", worker)
            self._store.give_up(watch.queue, ticket, watch.attempt)

    def _look_at_queue(self, watch: _Watch, now: float, *, busy: bool) -> None:
        """An errand waits: for workers that do others, or for nobody."""
        if now > watch.next_wake:
            watch.next_wake = now + 2 * (now - watch.since)
            self._wake(watch.queue)
        waited = now - watch.since
        if busy:
            watch.since = max(watch.since, now - TELL_SECONDS / 2)
        elif waited > self._patience_s:
            raise MeasureError(f"no worker of {watch.queue} has taken an errand for {waited / 60:.0f} minutes")
        elif waited > TELL_SECONDS and not watch.told:
            watch.told = True
            _LOG.warning("nobody serves %s; see `retune worker --help`", watch.queue)
