"""A lease has one owner: also when owners die, sleep, or cannot be seen."""

import itertools
import json
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from retune.compiler.errors import StoreError
from retune.compiler.runtime import temporaries
from retune.storage import leases
from retune.storage.leases import Lease, acquire
from retune.storage.store_url import open_blob_store

BEAT, PATIENCE = 0.02, 0.3
LONG_PATIENCE = 120.0
"""For owners that are alive: a busy machine may keep them from renewing for seconds."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(leases, "PATIENCE_SECONDS", PATIENCE)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acquiring a lease must not wait for its owner."""

    def sleep(seconds: float) -> None:
        pytest.fail(f"waits {seconds:g} s for the owner")

    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Any:
    return open_blob_store(f"memory://leases/{request.node.name}")


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process looks like one of another machine to the next."""
    numbers = itertools.count()
    monkeypatch.setattr(leases, "process_space", lambda: f"machine {next(numbers)}")


def claim_of(objects: Any) -> dict[str, Any]:
    (name,) = objects.files("lock")
    found: dict[str, Any] = json.loads(objects.read(name))
    return found


@pytest.mark.usefixtures("no_waiting")
def test_a_released_lease_is_acquired_without_waiting(objects: Any) -> None:
    for number in range(1, 4):
        acquire(objects, "lock").close()
        assert objects.files("lock") == [f"lock/{number:08d}"]
        assert claim_of(objects)["is_free"]


@pytest.mark.usefixtures("unseen")
def test_live_remote_owner_keeps_its_lease(objects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE_SECONDS", LONG_PATIENCE)
    owner = acquire(objects, "lock")
    with pytest.raises(StoreError, match="is working on this run already"):
        acquire(objects, "lock")
    owner.close()
    acquire(objects, "lock").close()


@pytest.mark.usefixtures("unseen")
def test_dead_remote_owner_loses_its_lease(objects: Any) -> None:
    dead = {"owner": "x", "beat": 7, "is_free": False, "host": "there", "space": "there", "pid": 1, "born": 5}
    objects.put({"lock/00000004": json.dumps(dead).encode()})
    began = time.monotonic()
    acquire(objects, "lock").close()
    assert time.monotonic() - began >= PATIENCE
    assert objects.files("lock") == ["lock/00000005"]


@pytest.mark.usefixtures("unseen")
def test_one_of_many_successors_wins(objects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE_SECONDS", LONG_PATIENCE)  # with less, the winner may pass for dead
    acquire(objects, "lock").close()
    won: list[Lease] = []
    lost: list[StoreError] = []

    def compete() -> None:
        try:
            won.append(acquire(objects, "lock"))
        except StoreError as error:
            lost.append(error)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 7)
    won[0].close()


@pytest.mark.usefixtures("unseen")
def test_an_owner_that_was_succeeded_ends_itself(objects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr("retune.storage.leases.os.kill", lambda pid, number: ended.append((pid, number)))
    sleeper = acquire(objects, "lock")
    successor = {"owner": "y", "beat": 0, "is_free": False, "host": "there", "space": "there", "pid": 1, "born": 5}
    objects.put({"lock/00000002": json.dumps(successor).encode()})
    while not ended:  # the suite's time limit ends this if the owner does not end itself
        time.sleep(BEAT)
    assert len(ended) == 1
    sleeper.close()
    assert not json.loads(objects.read("lock/00000002"))["is_free"]


@pytest.mark.usefixtures("no_waiting")
def test_the_lease_of_a_process_that_is_gone_is_acquired_without_waiting(objects: Any) -> None:
    lease = acquire(objects, "lock")
    claim = claim_of(objects)
    lease.close()
    objects.put({"lock/00000001": json.dumps({**claim, "is_free": False, "born": claim["born"] - 1}).encode()})
    acquire(objects, "lock").close()


class Failing:
    """Objects of which one method fails once, after it has done its work or before."""

    def __init__(self, objects: Any, method: str, error: BaseException | None) -> None:
        self._objects, self._method, self._error = objects, method, error
        self._is_over = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if name != self._method or self._is_over:
            return found

        def failing(*arguments: Any) -> bool:
            self._is_over = True
            found(*arguments)
            if self._error is not None:
                raise self._error
            return False

        return failing


@pytest.mark.usefixtures("unseen", "no_waiting")
@pytest.mark.parametrize("method", ["create", "remove"])
@pytest.mark.parametrize("error", [StoreError("the network is down"), KeyboardInterrupt()])
def test_failed_claim_does_not_block_others(objects: Any, method: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        acquire(Failing(objects, method, error), "lock")
    acquire(objects, "lock").close()


@pytest.mark.usefixtures("unseen", "no_waiting")
def test_a_put_that_was_repeated_for_want_of_an_answer_is_known_again(objects: Any) -> None:
    acquire(Failing(objects, "create", None), "lock").close()
    assert objects.files("lock") == ["lock/00000001"]


@pytest.mark.parametrize("claim", [b"[]", b"null", b'{"is_free": 1}', b"[" * 200_000, b'{"pid": 1e400}', b""])
def test_stray_files_and_damaged_claims_hold_no_lease(claim: bytes, objects: Any) -> None:
    objects.put({"lock/00000007": claim, "lock/notes.txt": b"mine", "lock/00000009/deep": b"", "lock/x9": b""})
    acquire(objects, "lock").close()
    assert "lock/00000008" in objects.files("lock")
    assert {"lock/notes.txt", "lock/00000009/deep", "lock/x9"} <= set(objects.files("lock"))


def test_an_owner_that_is_hidden_from_this_user_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = leases._process()

    def hidden(pid: int) -> int:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(temporaries, "_start_of", hidden)
    assert not leases._is_gone(claim)
    assert not leases._is_here(claim)
