"""Notices threads that disturb each other between setting inputs, running and reading outputs.

The calls of one computation may come from several threads, as long as one computation ends before the next begins: a
lock, or whatever else brings them into order, is enough. Without order an input is replaced before a run has used it,
or outputs are before anybody has read them; the thread that lost them is told when it goes on.
"""

from collections.abc import Hashable
from threading import get_ident

from retune.compiler.errors import OptionError

_REMEDY = 'make an executor for each thread, library["default"](cpu()), or hold a lock from set_input to get_output'


class Claims:
    """What threads have set and computed, and what they have lost since. Called with the lock of the executor held."""

    __slots__ = ("_lost_inputs", "_lost_runs", "_outputs", "_runner", "_set", "_unread")

    def __init__(self, outputs: int) -> None:
        # A bit for each output: runs are counted in microseconds, and a set would be built each time.
        self._outputs = (1 << outputs) - 1
        self._set: dict[Hashable, int] = {}  # which thread set what since the last run
        self._runner: int | None = None  # the thread that ran last, until its outputs are read
        self._unread = 0  # a bit for each output
        self._lost_inputs: dict[int, dict[Hashable, str]] = {}  # by thread, then by what it had set: the name
        self._lost_runs: set[int] = set()

    def note_set(self, key: Hashable, name: str) -> None:
        """This thread has set an input, or an array for an output."""
        thread = get_ident()
        before = self._set.get(key, thread)
        if before != thread:
            self._lost_inputs.setdefault(before, {})[key] = name
        self._set[key] = thread
        # The thread has set again what it had lost.
        if self._lost_inputs and thread in self._lost_inputs:
            self._lost_inputs[thread].pop(key, None)
        self._lost_runs.discard(thread)
        if self._runner == thread:  # it begins another computation, so it has no use for these outputs
            self._runner = None

    def take_inputs(self) -> None:
        """This thread begins a run. Raises: OptionError when another one replaced what this one had set for it."""
        if self._lost_inputs and (lost := self._lost_inputs.pop(get_ident(), None)):
            raise OptionError(f"{next(iter(lost.values()))} was set by another thread since this one set it: {_REMEDY}")
        if self._set:
            self._set.clear()

    def note_run(self) -> None:
        """This thread computes outputs, which replace those of the last run."""
        thread = get_ident()
        if self._runner != thread:
            if self._runner is not None:
                self._lost_runs.add(self._runner)
            self._lost_runs.discard(thread)
            self._runner = thread
        self._unread = self._outputs

    def note_read(self, output: int) -> None:
        """This thread reads an output. Raises: OptionError when another one replaced what this one had computed."""
        thread = get_ident()
        if thread in self._lost_runs:
            self._lost_runs.discard(thread)
            raise OptionError(f"another thread has run this network since this one did: {_REMEDY}")
        if self._runner is not None:
            self._unread &= ~(1 << output)
            if thread != self._runner or not self._unread:  # another thread has taken over, or all is read
                self._runner = None
