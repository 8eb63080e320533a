"""Several workers at work on a list: order, exceptions, and guests that keep off while somebody else works."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from itertools import islice

import pytest

from retune.compiler.measure.processes.worker_pool import WorkerPool
from retune.compiler.measure.processes.worker_process import WorkerProcess, WorkerStartError


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

    with WorkerPool([Local(), Local()]).start(work, range(6)) as futures:
        done = as_completed(futures)
        first = [next(done).result() for _ in range(5)]
        gate.set()
        assert sorted(first) == [item * item for item in range(1, 6)]
        assert next(done).result() == 0


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

    with pytest.raises(WorkerStartError):
        WorkerPool([Local()]).map(work, range(9))
    assert begun[:2] == [0, 1]


def test_two_callers_share_the_workers_and_one_that_fails_leaves_the_other_alone(pool: WorkerPool) -> None:
    met = threading.Barrier(2)

    def fail(worker: WorkerProcess, _: int) -> int:
        met.wait(120)
        return int(worker.call("builtins:int", "no number"))

    def succeed(worker: WorkerProcess, item: int) -> float:
        if item == 4:
            met.wait(120)
        return float(worker.call("math:sqrt", item))

    with pool.start(succeed, [4, 9, 16, 25]) as futures:
        with pytest.raises(ValueError, match="invalid literal"):
            pool.map(fail, [0])
        assert [future.result() for future in futures] == [2, 3, 4, 5]


class Lane:
    """Counts guests at work; the others are told apart by their worker."""

    def __init__(self, seconds: float, guests: int, steady: int = 0) -> None:
        self.seconds = seconds
        self.working = 0
        self.most = 0
        self.lock = threading.Lock()
        self.guests = [Local() for _ in range(guests)]
        steady_ones = [Local() for _ in range(steady)]
        self.pool = WorkerPool([*steady_ones, *self.guests], steady)

    def work(self, worker: WorkerProcess, item: int) -> int:
        guest = any(worker is each for each in self.guests)
        with self.lock:
            self.working += guest
            self.most = max(self.most, self.working)
        time.sleep(self.seconds)
        with self.lock:
            self.working -= guest
        return item


def test_guests_keep_off_while_it_is_quiet() -> None:
    lane = Lane(0.01, guests=1, steady=1)
    taken: list[int] = []
    alone: list[bool] = []
    with lane.pool.start(lane.work, range(24)) as futures:
        done = as_completed(futures)
        while group := [future.result() for future in islice(done, 3)]:
            taken += group
            with lane.pool.quiet():
                for _ in range(10):  # the lane is in use
                    alone.append(lane.working == 0)
                    time.sleep(0.002)
    assert sorted(taken) == list(range(24))
    assert all(alone)
    assert lane.most <= 1


def test_guests_work_where_nothing_asks_for_quiet() -> None:
    lane, met = Lane(0.0, guests=2), threading.Barrier(2)
    assert len(lane.pool.map(lambda worker, item: met.wait(120) * 0 + lane.work(worker, item), range(8))) == 8
