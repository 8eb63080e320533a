"""Locks of objects that threads share.

In a forked child all of them are free: the thread that held one in the parent does not exist there.
"""

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Shared(Protocol):
    """An object with a lock, held by the thread that reads or changes it."""

    lock: threading.RLock


# Weak: an executor must go, with its memory, when its last user drops it.
_OWNERS: WeakSet[Shared] = WeakSet()


def add_lock(owner: Shared) -> None:
    """Give an object its lock."""
    owner.lock = threading.RLock()
    _OWNERS.add(owner)


def _free_locks() -> None:
    for owner in _OWNERS:
        owner.lock = threading.RLock()


os.register_at_fork(after_in_child=_free_locks)
