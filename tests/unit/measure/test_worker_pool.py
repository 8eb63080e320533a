"""Several workers at work on a list: order, exceptions, and guests that keep off while somebody else works."""

import threading
import time
from collections.abc import Iterator

import pytest

from retune.compiler.measure.worker_pool import Work, WorkerPool
from retune.compiler.measure.worker_process import WorkerProcess, WorkerStartError


class Local(WorkerProcess):
    """A worker that needs no process: the functions of these tests do not call it."""


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool([WorkerProcess(), WorkerProcess()])
    yield pool
    pool.close()


def test_a_pool_works_on_all_workers_and_keeps_the_order(pool: WorkerPool) -> None:
    pids = pool.map(lambda worker, _: worker.call("os:getpid"), range(6))
    assert len(set(pids)) <= 2
    assert pool.map(lambda worker, item: worker.call("math:sqrt", item), [9, 4, 1]) == [3, 2, 1]
    with pytest.raises(ValueError, match="invalid literal"):
        pool.map(lambda worker, text: worker.call("builtins:int", text), ["second"])
    assert pool.map(lambda worker, item: worker.call("math:sqrt", item), [25]) == [5]
    assert pool.map(lambda worker, item: worker.call("math:sqrt", item), []) == []


def test_results_are_taken_as_they_come() -> None:
    gate = threading.Event()

    def work(_: WorkerProcess, item: int) -> int:
        if item == 0:
            gate.wait(120)
        return item * item

    with WorkerPool([Local(), Local()]).start(work, range(6)) as running:
        first = running.take(5)
        gate.set()
        assert sorted(first) == [(item, item * item) for item in range(1, 6)]
        assert running.take(5) == [(0, 0)]


def test_leaving_early_ends_what_is_under_way(pool: WorkerPool) -> None:
    with pytest.raises(KeyError), pool.start(lambda worker, _: worker.call("time:sleep", 6000), range(4)):
        raise KeyError
    assert pool.map(lambda worker, item: worker.call("math:sqrt", item), [4]) == [2]


def test_an_exception_is_raised_where_results_are_taken_and_nothing_more_is_begun() -> None:
    begun = []

    def work(_: WorkerProcess, item: int) -> int:
        begun.append(item)
        if item == 1:
            raise WorkerStartError("no process")
        return item

    with pytest.raises(WorkerStartError), WorkerPool([Local()]).start(work, range(9)) as running:
        running.take(9)
    assert begun == [0, 1]


class Lane:
    """Counts guests at work; the others are told apart by their worker."""

    def __init__(self, seconds: float, guests: int, steady: int = 0) -> None:
        self.seconds = seconds
        self.working = 0
        self.most = 0
        self.lock = threading.Lock()
        self.guests = [Local() for _ in range(guests)]
        self.steady = [Local() for _ in range(steady)]

    def work(self, worker: WorkerProcess, item: int) -> int:
        guest = any(worker is each for each in self.guests)
        with self.lock:
            self.working += guest
            self.most = max(self.most, self.working)
        time.sleep(self.seconds)
        with self.lock:
            self.working -= guest
        return item

    def start(self, items: int) -> Work[int, int]:
        return WorkerPool([*self.steady, *self.guests], len(self.steady)).start(self.work, range(items))


def test_guests_keep_off_between_a_take_and_the_next_that_waits() -> None:
    lane = Lane(0.01, guests=1, steady=1)
    taken: list[tuple[int, int]] = []
    alone: list[bool] = []
    with lane.start(24) as running:
        while len(taken) < 24:
            taken += running.take(3)
            for _ in range(10):  # the lane is in use
                alone.append(lane.working == 0)
                time.sleep(0.002)
    assert sorted(taken) == [(item, item) for item in range(24)]
    assert all(alone)
    assert lane.most == 1  # while the lane was not in use the guest did help


def test_with_guests_only_all_is_done_before_the_first_take_returns() -> None:
    lane = Lane(0.005, guests=2)
    with lane.start(8) as running:
        assert len(running.take(8)) == 8
    assert lane.most == 2
