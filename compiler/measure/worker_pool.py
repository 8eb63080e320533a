"""In: a function of a worker and an item, and items. Out: its results, as they come. Always: after an exception or an
interrupt no worker goes on with what it was doing.

Some workers may be *guests*: they run on processors that somebody else needs now and then, to time programs. That user
holds those processors from the moment when `Work.take` has returned until it has to wait for more results; meanwhile
guests begin nothing, and `take` returns only after they have finished what they had begun.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from retune.compiler.measure.worker_process import WorkerProcess

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """Workers, each used by one thread at a time; all but the first `steady` are guests (None: there are none)."""

    def __init__(self, workers: Sequence[WorkerProcess], steady: int | None = None) -> None:
        self._workers = tuple(workers)
        self.steady = len(self._workers) if steady is None else steady

    def start(self, function: Callable[[WorkerProcess, Item], Result], items: Sequence[Item]) -> "Work[Item, Result]":
        """Begin with `function(worker, item)` for the items, in their order, on all workers at once."""
        return Work(self._workers, self.steady, function, items)

    def map(self, function: Callable[[WorkerProcess, Item], Result], items: Sequence[Item]) -> list[Result]:
        """`function(worker, item)` for every item; results in the order of the items.

        Raises: the first exception that `function` raised; items not begun by then are left out.
        """
        with self.start(function, items) as work:
            results = dict(work.take(len(items)))
        return [results[place] for place in range(len(items))]

    def stop(self) -> None:
        """Make the calls in progress fail, and every later one until `close`."""
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()


class Work(Generic[Item, Result]):
    """A function at work on items; leaving the `with` block before everything was taken ends what is under way."""

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        steady: int,
        function: Callable[[WorkerProcess, Item], Result],
        items: Sequence[Item],
    ) -> None:
        self._function = function
        self._waiting = deque(enumerate(items))
        self._left = len(items)
        self._ready: list[tuple[int, Result]] = []
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._held = False
        self._busy_guests = 0
        self._workers = workers[: len(items)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker, place >= steady), name=f"worker-{place}", daemon=True)
            for place, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, least: int) -> list[tuple[int, Result]]:
        """At least `least` results that were not taken yet, or all that are left: (number of the item, result).

        Raises: the first exception that the function raised.
        """

        def enough() -> bool:
            return self._error is not None or len(self._ready) >= min(least, self._left)

        with self._changed:
            if not enough():
                self._held = False
                self._changed.notify_all()
                self._changed.wait_for(enough)
            self._held = True
            self._changed.wait_for(lambda: self._error is not None or self._busy_guests == 0)
            if self._error is not None:
                raise self._error
            taken, self._ready = self._ready, []
            self._left -= len(taken)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        unfinished = kind is not None or self._left > 0
        with self._changed:
            self._waiting.clear()
            self._held = False
            self._changed.notify_all()
        if unfinished:
            for worker in self._workers:
                worker.stop()
        for thread in self._threads:
            thread.join()
        if unfinished:
            for worker in self._workers:
                worker.close()

    def _serve(self, worker: WorkerProcess, is_guest: bool) -> None:
        while (task := self._next(is_guest)) is not None:
            place, item = task
            try:
                result = self._function(worker, item)
            except BaseException as error:  # it is raised where results are taken
                with self._changed:
                    self._error = self._error or error
                    self._waiting.clear()
                    self._busy_guests -= is_guest
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready.append((place, result))
                self._busy_guests -= is_guest
                self._changed.notify_all()

    def _next(self, is_guest: bool) -> tuple[int, Item] | None:
        with self._changed:
            if is_guest:
                self._changed.wait_for(lambda: not self._held or not self._waiting)
            if not self._waiting:
                return None
            self._busy_guests += is_guest
            return self._waiting.popleft()
