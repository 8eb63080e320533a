"""A claim has one owner: also when owners die, sleep, or cannot be seen."""

import itertools
import json
import threading
from typing import Any

import pytest

from retune.compiler.core.errors import StoreError
from retune.compiler.runtime import temporaries
from retune.storage import claims
from retune.storage.claims import Claim, acquire
from retune.storage.store_url import open_blob_store


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Any:
    return open_blob_store(f"memory://claims/{request.node.name}")


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process looks like one of another machine to the next."""
    numbers = itertools.count()
    monkeypatch.setattr(claims, "process_space", lambda: f"machine {next(numbers)}")


def claim_of(objects: Any) -> dict[str, Any]:
    (name,) = objects.files("lock")
    found: dict[str, Any] = json.loads(objects.read(name))
    return found


def test_a_freed_folder_is_acquired_again(objects: Any) -> None:
    for number in range(1, 4):
        acquire(objects, "lock").close()
        assert objects.files("lock") == [f"lock/{number:08d}"]
        assert claim_of(objects)["is_free"]


@pytest.mark.usefixtures("unseen")
def test_an_owner_on_another_machine_keeps_its_claim_until_it_is_deleted(objects: Any) -> None:
    owner = acquire(objects, "lock")
    with pytest.raises(StoreError, match=r"is working on this run already.*delete memory://.*/lock/00000001"):
        acquire(objects, "lock")
    objects.remove(["lock/00000001"])
    successor = acquire(objects, "lock")
    owner.close()  # comes back: the claim is another's
    with pytest.raises(StoreError, match="is working on this run already"):
        acquire(objects, "lock")
    successor.close()
    acquire(objects, "lock").close()


def test_an_owner_on_this_machine_is_not_to_be_deleted(objects: Any) -> None:
    owner = acquire(objects, "lock")
    with pytest.raises(StoreError, match=r"use another --store$"):
        acquire(objects, "lock")
    owner.close()


@pytest.mark.usefixtures("unseen")
def test_one_of_many_successors_wins(objects: Any) -> None:
    acquire(objects, "lock").close()
    won: list[Claim] = []
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


def test_the_claim_of_a_process_that_is_gone_is_void(objects: Any) -> None:
    owner = acquire(objects, "lock")
    claim = claim_of(objects)
    owner.close()
    objects.put({"lock/00000001": json.dumps({**claim, "is_free": False, "born": claim["born"] - 1}).encode()})
    acquire(objects, "lock").close()


class Late:
    """Objects that others have owned since they were listed first."""

    def __init__(self, objects: Any) -> None:
        self._objects, self._is_listed = objects, False

    def files(self, folder: str) -> list[str]:
        """What was there before the others came, the first time."""
        listed: list[str] = self._objects.files(folder)
        if not self._is_listed:
            self._is_listed = True
            acquire(self._objects, folder).close()
            self.owner = acquire(self._objects, folder)
        return listed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


@pytest.mark.usefixtures("unseen")
def test_a_number_that_was_removed_since_it_was_listed_makes_no_second_owner(objects: Any) -> None:
    acquire(objects, "lock").close()
    late: Any = Late(objects)
    with pytest.raises(StoreError, match="is working on this run already"):
        acquire(late, "lock")
    late.owner.close()
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


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("method", ["create", "remove"])
@pytest.mark.parametrize("error", [StoreError("the network is down"), KeyboardInterrupt()])
def test_failed_claim_does_not_block_others(objects: Any, method: str, error: BaseException) -> None:
    failing: Any = Failing(objects, method, error)
    with pytest.raises(type(error)):
        acquire(failing, "lock")
    acquire(objects, "lock").close()


@pytest.mark.usefixtures("unseen")
def test_a_put_that_was_repeated_for_want_of_an_answer_is_known_again(objects: Any) -> None:
    failing: Any = Failing(objects, "create", None)
    acquire(failing, "lock").close()
    assert objects.files("lock") == ["lock/00000001"]


@pytest.mark.parametrize("claim", [b"[]", b"null", b'{"is_free": 1}', b"[" * 200_000, b'{"pid": 1e400}', b""])
def test_stray_files_and_damaged_claims_hold_nothing(claim: bytes, objects: Any) -> None:
    objects.put({"lock/00000007": claim, "lock/notes.txt": b"mine", "lock/00000009/deep": b"", "lock/x9": b""})
    acquire(objects, "lock").close()
    assert "lock/00000008" in objects.files("lock")
    assert {"lock/notes.txt", "lock/00000009/deep", "lock/x9"} <= set(objects.files("lock"))


def test_an_owner_that_is_hidden_from_this_user_is_not_gone(objects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    acquire(objects, "lock")

    def hidden(pid: int) -> int:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr(temporaries, "_start_of", hidden)
    with pytest.raises(StoreError, match="is working on this run already"):
        acquire(objects, "lock")
