"""Locks of objects shared by threads; detects threads that disturb each other between set, run and read.

The calls of one computation may come from several threads if one computation ends before the next begins: a lock, or
any other order, is enough. Without order an input is replaced before a run has used it, or outputs before they are
read; the next call of the thread that lost them raises. In a forked child all locks are free: the thread of the parent
that holds one does not exist there.
"""

import os
import threading
from collections.abc import Hashable
from threading import get_ident
from typing import Protocol
from weakref import WeakSet

from retune.compiler.core.errors import OptionError

_REMEDY = 'make an executor for each thread, library["default"](cpu()), or hold a lock from set_input to get_output'


class Claims:
    """The inputs and outputs of each thread, and its losses since. Callers hold the executor's lock."""

    __slots__ = ("_lost_inputs", "_lost_runs", "_outputs", "_runner", "_set", "_unread")

    def __init__(self, outputs: int) -> None:
        # A bit for each output: runs take microseconds, and a set would be built each time.
        self._outputs = (1 << outputs) - 1
        self._set: dict[Hashable, int] = {}  # the thread of each input set since the last run
        self._runner: int | None = None  # the thread of the last run, until its outputs are read
        self._unread = 0  # a bit for each output
        self._lost_inputs: dict[int, dict[Hashable, str]] = {}  # by thread, then by input: the name
        self._lost_runs: set[int] = set()

    def note_set(self, key: Hashable, name: str) -> None:
        """This thread has set an input, or an array for an output."""
        thread = get_ident()
        before = self._set.get(key, thread)
        if before != thread:
            self._lost_inputs.setdefault(before, {})[key] = name
        self._set[key] = thread
        # The thread has set its lost input again.
        if self._lost_inputs and thread in self._lost_inputs:
            self._lost_inputs[thread].pop(key, None)
        self._lost_runs.discard(thread)
        if self._runner == thread:  # it begins another computation, and drops these outputs
            self._runner = None

    def take_inputs(self) -> None:
        """Begin a run of this thread. Raises: OptionError when another thread replaced one of its inputs."""
        if self._lost_inputs and (lost := self._lost_inputs.pop(get_ident(), None)):
            raise OptionError(f"{next(iter(lost.values()))} was set by another thread since this one set it: {_REMEDY}")
        if self._set:
            self._set.clear()

    def note_run(self) -> None:
        """This thread computes outputs, replacing the last run's."""
        thread = get_ident()
        if self._runner != thread:
            if self._runner is not None:
                self._lost_runs.add(self._runner)
            self._lost_runs.discard(thread)
            self._runner = thread
        self._unread = self._outputs

    def note_read(self, output: int) -> None:
        """Read an output in this thread. Raises: OptionError when another thread replaced this thread's output."""
        thread = get_ident()
        if thread in self._lost_runs:
            self._lost_runs.discard(thread)
            raise OptionError(f"another thread has run this network since this one did: {_REMEDY}")
        if self._runner is not None:
            self._unread &= ~(1 << output)
            if thread != self._runner or not self._unread:  # another thread has taken over, or all is read
                self._runner = None


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
