"""An errand is done by one worker at a time and answered once, whatever happens in between."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ulid import ULID

from retune.compiler.errors import MeasureError, StoreError
from retune.storage.errands import KEPT_SECONDS, ErrandStore
from retune.storage.files import new_id
from retune.storage.place import open_medium

QUEUE, SESSION = "build", new_id()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ErrandStore:
    """In a folder, and in an object store that answers as S3 does."""
    return ErrandStore(tmp_path if request.param == "folder" else request.getfixturevalue("s3_place"))


def test_an_errand_is_claimed_answered_and_taken(store: ErrandStore) -> None:
    ticket = store.offer(QUEUE, "build", SESSION, b"what\nto do")
    assert not store.standings(QUEUE)[ticket].claimed
    errand = store.claim(QUEUE, "one")
    assert errand is not None
    assert (errand.ticket, errand.verb, errand.session, errand.message) == (ticket, "build", SESSION, b"what\nto do")
    assert store.standings(QUEUE)[ticket].claimed
    assert store.claimant(QUEUE, ticket, 0) == "one"
    assert store.claim(QUEUE, "two") is None
    assert store.answer(errand, b"done")
    assert store.standings(QUEUE)[ticket].is_answered
    assert store.take(QUEUE, ticket) == b"done"
    assert not store.standings(QUEUE)
    assert store.claim(QUEUE, "two") is None


def test_many_workers_share_errands_without_doing_one_twice(store: ErrandStore) -> None:
    tickets = [store.offer(QUEUE, "build", SESSION, b"") for _ in range(24)]
    start = threading.Barrier(6)

    def work(number: int) -> list[str]:
        own = ErrandStore(store.place)
        start.wait()
        done: list[str] = []
        while (errand := own.claim(QUEUE, f"worker {number}")) is not None:
            assert own.answer(errand, b"")
            done.append(errand.ticket)
        return done

    with ThreadPoolExecutor(6) as pool:
        done = [ticket for part in pool.map(work, range(6)) for ticket in part]
    assert sorted(done) == sorted(tickets)


def test_larger_priorities_go_first_then_older_ones(store: ErrandStore) -> None:
    old, new = (store.offer(QUEUE, "build", SESSION, b"") for _ in range(2))
    urgent = store.offer(QUEUE, "build", SESSION, b"", priority=5)
    order = [errand.ticket for _ in range(3) if (errand := store.claim(QUEUE, "one")) is not None]
    assert order[0] == urgent
    assert sorted(order[1:]) == sorted([old, new])


def test_an_errand_that_was_given_up_is_claimed_again_and_answered_once(store: ErrandStore) -> None:
    ticket = store.offer(QUEUE, "build", SESSION, b"")
    first = store.claim(QUEUE, "slow")
    assert first is not None
    store.beat(first, 3)
    assert store.pulse(QUEUE, ticket, 0) == b"3"
    store.give_up(QUEUE, ticket, 0)
    second = store.claim(QUEUE, "quick")
    assert second is not None
    assert (second.ticket, second.attempt) == (ticket, 1)
    assert store.pulse(QUEUE, ticket, 1) == b""
    assert store.answer(second, b"quick")
    assert not store.answer(first, b"slow")
    assert store.take(QUEUE, ticket) == b"quick"


def test_an_errand_nobody_wants_any_more_leaves_nothing(store: ErrandStore) -> None:
    ticket, other = (store.offer(QUEUE, "build", SESSION, b"") for _ in range(2))
    errand = store.claim(QUEUE, "one")
    assert errand is not None
    store.beat(errand, 1)
    store.forget(QUEUE, [errand.ticket])
    store.beat(errand, 2)
    assert not store.answer(errand, b"too late")
    (left,) = store.standings(QUEUE)
    assert left == ({ticket, other} - {errand.ticket}).pop()
    assert [name for name in open_medium(store.place).files("queues") if errand.ticket in name] == []


def test_objects_are_what_their_names_say(store: ErrandStore) -> None:
    objects = store.objects(SESSION)
    name = objects.put(b"object code")
    assert objects.put(b"object code") == name
    assert ErrandStore(store.place).objects(SESSION).get(name) == b"object code"
    open_medium(store.place).publish({f"objects/{SESSION}/{name}": b"other code"})
    with pytest.raises(StoreError, match="damaged"):
        objects.get(name)
    store.end(SESSION)
    with pytest.raises(StoreError, match="not there any more"):
        objects.get(name)


@pytest.mark.parametrize("name", ["", "../secret", "a" * 63, "A" * 64])
def test_objects_have_no_other_names(store: ErrandStore, name: str) -> None:
    with pytest.raises(StoreError, match="no name of an object"):
        store.objects(SESSION).get(name)


def test_names_do_not_lead_out_of_the_store(store: ErrandStore) -> None:
    with pytest.raises(StoreError, match="no session"):
        store.objects("../../etc")
    for queue in ("", "../build", "a/b", ".hidden"):
        with pytest.raises(MeasureError, match="cannot be the name"):
            store.offer(queue, "build", SESSION, b"")


def test_what_ended_long_ago_is_swept(tmp_path: Path) -> None:
    store = ErrandStore(tmp_path)
    store.objects(SESSION).put(b"old")
    store.offer(QUEUE, "build", SESSION, b"")
    (tmp_path / "queues" / QUEUE / "notes.txt").write_text("mine")
    (tmp_path / "queues" / QUEUE / f".{new_id()}.tmp").write_text("half a")
    # The session got its id when this module was imported, the files are of this moment.
    now = time.time()
    assert store.sweep(ULID.from_str(SESSION).timestamp + 60.0) == 0
    assert store.sweep(now + KEPT_SECONDS + 60.0) == 3
    assert (tmp_path / "queues" / QUEUE / "notes.txt").exists()


def test_a_session_that_goes_on_for_weeks_keeps_what_it_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, day = ErrandStore(tmp_path), 86400.0
    begun = time.time() - 30 * day
    session = str(ULID.from_timestamp(begun))
    monkeypatch.setattr(time, "time", lambda: begun)
    objects = store.objects(session)
    name = objects.put(b"kernel")
    ticket = f"998-{ULID.from_timestamp(begun)}"
    head = json.dumps({"verb": "build", "session": session}).encode()
    (tmp_path / "queues" / QUEUE).mkdir(parents=True)
    (tmp_path / "queues" / QUEUE / f"{ticket}.request").write_bytes(head + b"\nmessage")
    monkeypatch.undo()
    objects.stay()
    assert store.sweep() == 0
    assert objects.get(name) == b"kernel"
    assert store.sweep(time.time() + KEPT_SECONDS + day) == 3
    assert list(store.standings(QUEUE)) == []
    later = time.time() + KEPT_SECONDS + 2 * day
    monkeypatch.setattr(time, "time", lambda: later)
    assert objects.put(b"kernel") == name
    assert objects.get(name) == b"kernel"


def test_a_session_does_not_show_at_every_turn_that_it_goes_on(tmp_path: Path) -> None:
    objects = ErrandStore(tmp_path).objects(SESSION)
    for _ in range(3):
        objects.stay()
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize("request_", [b"", b"{", b"[1]", b'{"verb": "build"}', b"\xff\nmessage"])
def test_an_errand_that_says_nothing_stops_no_worker(request_: bytes, tmp_path: Path) -> None:
    store = ErrandStore(tmp_path)
    broken = store.offer(QUEUE, "build", SESSION, b"", priority=2)
    (tmp_path / "queues" / QUEUE / f"{broken}.request").write_bytes(request_)
    sound = store.offer(QUEUE, "build", SESSION, b"")
    with pytest.raises(StoreError, match=f"{broken}.request is no errand"):
        store.claim(QUEUE, "one")
    errand = store.claim(QUEUE, "one")
    assert errand is not None
    assert errand.ticket == sound


@pytest.mark.parametrize("name", ["Z" * 26, "8" + "0" * 25, "notes"])
def test_folders_that_are_no_sessions_stay(name: str, tmp_path: Path) -> None:
    stray = tmp_path / "objects" / name / "file"
    stray.parent.mkdir(parents=True)
    stray.write_text("mine")
    assert ErrandStore(tmp_path).sweep(time.time() + 2 * KEPT_SECONDS) == 0
    assert stray.exists()
