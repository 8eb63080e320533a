"""Locks of objects shared by threads.

In a forked child all of them are free: the holding thread of the parent does not exist there.
"""

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Shared(Protocol):
    """An object with a lock for reads and changes."""

    lock: threading.RLock


# Weak: an executor must be freed, with its memory, when its last user drops it.
_OWNERS: WeakSet[Shared] = WeakSet()


def add_lock(owner: Shared) -> None:
    owner.lock = threading.RLock()
    _OWNERS.add(owner)


def _free_locks() -> None:
    for owner in _OWNERS:
        owner.lock = threading.RLock()


os.register_at_fork(after_in_child=_free_locks)
