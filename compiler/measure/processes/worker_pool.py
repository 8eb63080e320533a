"""A pool of worker processes that several callers share.

Calls begin in the order in which they were submitted. A caller that fails or is interrupted ends only its own calls.

Some workers may be *guests*: they run on CPUs that are needed now and then to time programs. During `quiet` guests
begin nothing; it is entered when they have finished their current calls.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from retune.compiler.measure.processes.worker_process import WorkerProcess

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A function that waits for a worker."""

    function: Callable[[WorkerProcess], Any]
    future: Future[Any]


class WorkerPool:
    """Workers, each used by one thread at a time; all but the first `steady` are guests (None: there are none)."""

    def __init__(self, workers: Sequence[WorkerProcess], steady: int | None = None) -> None:
        self._workers = tuple(workers)
        self.steady = len(self._workers) if steady is None else steady
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._serving: set[int] = set()  # workers that have a thread; it ends when nothing waits
        self._running: dict[Future[Any], WorkerProcess] = {}
        self._ended: set[WorkerProcess] = set()
        self._busy_guests = 0
        self._held = 0

    def submit(self, function: Callable[[WorkerProcess], Result]) -> Future[Result]:
        """Call `function(worker)` on the next free worker."""
        future: Future[Result] = Future()
        with self._changed:
            self._waiting.append(_Call(function, future))
            idle = next((index for index in range(len(self._workers)) if index not in self._serving), None)
            # Threads are started on demand and end when nothing waits: an idle pool has none.
            if idle is not None:
                self._serving.add(idle)
                threading.Thread(target=self._serve, args=(idle,), name=f"worker-{idle}", daemon=True).start()
            self._changed.notify_all()
        return future

    @contextmanager
    def start(
        self, function: Callable[[WorkerProcess, Item], Result], items: Sequence[Item]
    ) -> Iterator[list[Future[Result]]]:
        """Begin `function(worker, item)` for the items. Unfinished calls are ended with the block."""
        futures = [self.submit(_bound(function, item)) for item in items]
        try:
            yield futures
        finally:
            self._end(futures)

    def map(self, function: Callable[[WorkerProcess, Item], Result], items: Sequence[Item]) -> list[Result]:
        """`function(worker, item)` for every item; results in the order of the items.

        Raises: the first exception of `function`; items not begun by then are left out.
        """
        with self.start(function, items) as futures:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for failed in (future for future in done if future.exception() is not None):
                failed.result()
            return [future.result() for future in futures]

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keep guests idle during the block."""
        with self._changed:
            self._held += 1
            self._changed.wait_for(lambda: self._busy_guests == 0)
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Make the current calls fail, and every later call until `close`."""
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _end(self, futures: Sequence[Future[Any]]) -> None:
        """Cancel waiting calls, stop current calls, and return when they are over."""
        for future in futures:
            future.cancel()
        with self._changed:
            self._changed.notify_all()
            # Only workers of these calls are stopped: the pool is shared with other callers.
            for worker in (self._running[future] for future in futures if future in self._running):
                self._ended.add(worker)
                worker.stop()
        wait(futures)

    def _serve(self, index: int) -> None:
        """Make calls on one worker until none waits."""
        worker, is_guest = self._workers[index], index >= self.steady
        while (call := self._next(index)) is not None:
            result, error = None, None
            try:
                result = call.function(worker)
            except BaseException as failure:  # it is raised where the result is read
                error = failure
            with self._changed:
                del self._running[call.future]
                was_ended = worker in self._ended
                self._ended.discard(worker)
                self._busy_guests -= is_guest
                self._changed.notify_all()
            # After the lock is released: closing waits for the process to end.
            if was_ended:
                worker.close()  # a stopped worker serves again after this
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)

    def _next(self, index: int) -> _Call | None:
        is_guest = index >= self.steady
        with self._changed:
            if is_guest:
                # Returns on an empty queue too, or an idle guest's thread would stay as long as the pool is quiet.
                self._changed.wait_for(lambda: not self._held or not self._waiting)
            while self._waiting:
                call = self._waiting.popleft()
                # False for a call that was cancelled while it waited.
                if call.future.set_running_or_notify_cancel():
                    self._running[call.future] = self._workers[index]
                    self._busy_guests += is_guest
                    return call
            # Under the same lock as `submit`: no call can be queued between the last check and the thread's end.
            self._serving.discard(index)
            return None


def _bound(function: Callable[[WorkerProcess, Item], Result], item: Item) -> Callable[[WorkerProcess], Result]:
    return lambda worker: function(worker, item)
