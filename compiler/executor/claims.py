"""Which thread set the inputs of an executor and ran it last, so that threads that disturb each other are noticed."""

import threading

from compiler.errors import OptionError
from compiler.executor.plan import Plan

_REMEDY = 'make an executor for each thread, library["default"](cpu()), or hold a lock from set_input to get_output'


class _Mine(threading.local):
    """What one thread did last: a mark of each buffer that it set, and of its run."""

    def __init__(self) -> None:
        self.buffers: dict[int, object] = {}
        self.run: object = None


class Claims:
    """The marks of all threads. A thread that sets or runs nothing itself may read what another one computed."""

    __slots__ = ("_buffers", "_contested", "_mine", "_plan", "_run")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._mine = _Mine()
        self._buffers: dict[int, object] = {}
        self._run: object = None
        self._contested = False

    def note_set(self, number: int) -> None:
        """This thread has set a buffer."""
        mark, mine = object(), self._mine.buffers
        if self._buffers.get(number) is not mine.get(number):
            self._contested = True
        self._buffers[number] = mine[number] = mark

    def note_run(self) -> None:
        """This thread begins a run. Raises: OptionError when another one has set a buffer since this one did."""
        mine = self._mine
        if self._contested:
            for number, mark in mine.buffers.items():
                if self._buffers[number] is not mark:
                    name = self._plan.buffers[number].name
                    raise OptionError(f"{name} was set by another thread since this one set it: {_REMEDY}")
        self._run = mine.run = object()

    def check_outputs(self) -> None:
        """Raises: OptionError when another thread has run the network since this one did."""
        run = self._mine.run
        if run is not None and run is not self._run:
            raise OptionError(f"another thread has run this network since this one did: {_REMEDY}")
