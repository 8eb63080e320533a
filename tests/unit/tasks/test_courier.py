"""Answers come once each, whoever gives them; silent workers are replaced, and nobody waits for ever."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.compiler.errors import MeasureError
from retune.storage.errands import Errand, ErrandStore
from retune.tasks import courier as module
from retune.tasks.courier import StoreCourier

QUEUE = "build"


@pytest.fixture
def store(tmp_path: Path) -> ErrandStore:
    return ErrandStore(tmp_path)


class Worker(threading.Thread):
    """Answers errands with what they ask; `beats` of them with a pulse, the others in silence."""

    def __init__(self, store: ErrandStore, *, dies_after: int = 10**9, takes: float = 0.0, beats: bool = True) -> None:
        super().__init__(daemon=True)
        self.done: list[Errand] = []
        self.over = threading.Event()
        self._store = store
        self._dies_after = dies_after
        self._takes = takes
        self._beats = beats

    def run(self) -> None:
        while not self.over.wait(0.01):
            errand = self._store.claim(QUEUE, self.name)
            if errand is None:
                continue
            if len(self.done) == self._dies_after:
                return  # with the errand
            until = time.monotonic() + self._takes
            count = 0
            while time.monotonic() < until:
                count += 1
                if self._beats:
                    self._store.beat(errand, count)
                time.sleep(0.02)
            self.done.append(errand)
            self._store.answer(errand, errand.message)


@pytest.fixture
def started() -> Iterator[list[Worker]]:
    workers: list[Worker] = []
    yield workers
    for worker in workers:
        worker.over.set()
        worker.join()


def start(workers: list[Worker], *new: Worker) -> None:
    for worker in new:
        workers.append(worker)
        worker.start()


def answers(courier: StoreCourier, tickets: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while left := [ticket for ticket in tickets if ticket not in found]:
        ticket, answer = courier.next(left)
        assert ticket not in found
        found[ticket] = answer
    return found


def test_every_errand_is_answered_once(store: ErrandStore, started: list[Worker]) -> None:
    woken: list[str] = []
    courier = StoreCourier(store, woken.append)
    start(started, *(Worker(store, takes=0.02) for _ in range(3)))
    messages = [str(number).encode() for number in range(12)]
    tickets = [courier.send(QUEUE, "build", message) for message in messages]
    assert woken[:12] == [QUEUE] * 12
    found = answers(courier, tickets)
    assert [found[ticket] for ticket in tickets] == messages
    assert sum(len(worker.done) for worker in started) == 12
    assert all(worker.done for worker in started)
    courier.close()
    assert not store.standings(QUEUE)


def test_what_a_lost_worker_was_doing_is_done_by_another(
    store: ErrandStore, started: list[Worker], caplog: pytest.LogCaptureFixture
) -> None:
    courier = StoreCourier(store, lambda _: None, silence_s=0.3)
    tickets = [courier.send(QUEUE, "build", str(number).encode()) for number in range(4)]
    doomed = Worker(store, dies_after=1, takes=0.05)
    start(started, doomed)
    doomed.join()
    start(started, Worker(store, takes=0.05))
    assert sorted(answers(courier, tickets).values()) == [b"0", b"1", b"2", b"3"]
    assert "has fallen silent" in caplog.text
    assert max(errand.attempt for errand in started[1].done) == 1


def test_a_slow_worker_with_a_pulse_is_left_alone(store: ErrandStore, started: list[Worker]) -> None:
    courier = StoreCourier(store, lambda _: None, silence_s=0.3)
    start(started, Worker(store, takes=1.5))
    ticket = courier.send(QUEUE, "build", b"long")
    assert answers(courier, [ticket]) == {ticket: b"long"}
    assert [errand.attempt for errand in started[0].done] == [0]


def test_an_errand_that_ends_every_worker_fails(store: ErrandStore, started: list[Worker]) -> None:
    courier = StoreCourier(store, lambda _: None, silence_s=0.05)
    ticket = courier.send(QUEUE, "build", b"")
    start(started, *(Worker(store, dies_after=0) for _ in range(module.ATTEMPTS)))
    with pytest.raises(MeasureError, match=f"{module.ATTEMPTS} workers were lost"):
        courier.next([ticket])


def test_nobody_waits_for_ever(
    store: ErrandStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "TELL_SECONDS", 0.1)
    monkeypatch.setattr(module, "WAKE_SECONDS", 0.05)
    woken: list[str] = []
    courier = StoreCourier(store, woken.append, patience_s=0.5)
    ticket = courier.send(QUEUE, "build", b"")
    with caplog.at_level(logging.WARNING), pytest.raises(MeasureError, match="no worker of build has taken"):
        courier.next([ticket])
    assert caplog.text.count("nobody serves build") == 1
    assert 3 <= len(woken) < 10


def test_cancelled_errands_are_gone(store: ErrandStore) -> None:
    courier = StoreCourier(store, lambda _: None)
    tickets = [courier.send(QUEUE, "build", b"") for _ in range(3)]
    courier.cancel(tickets[:2])
    assert list(store.standings(QUEUE)) == [tickets[2]]
    store.forget(QUEUE, [tickets[2]])
    with pytest.raises(MeasureError, match="is gone"):
        courier.next([tickets[2]])
