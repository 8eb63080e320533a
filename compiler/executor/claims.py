"""Which thread set the inputs of an executor and ran it last, so that threads that disturb each other are noticed."""

import threading

from compiler.errors import OptionError
from compiler.executor.plan import Plan

_REMEDY = 'make an executor for each thread, library["default"](cpu()), or hold a lock from set_input to get_output'


class _Thread(threading.local):
    """What one thread did: `here` is the same object whenever it is asked for in the same thread."""

    def __init__(self) -> None:
        self.here = _History()


class _History:
    __slots__ = ("buffers", "has_run")

    def __init__(self) -> None:
        self.buffers: set[int] = set()
        self.has_run = False


class Claims:
    """Who did what last. A thread that sets or runs nothing itself may read what another one computed."""

    __slots__ = ("_contested", "_plan", "_runner", "_setters", "_thread")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._thread = _Thread()
        self._setters: dict[int, _History] = {}
        self._runner: _History | None = None
        self._contested = False

    def note_set(self, number: int) -> None:
        """This thread has set a buffer."""
        mine = self._thread.here
        if (setter := self._setters.get(number)) is not mine:
            self._contested |= setter is not None
            self._setters[number] = mine
            mine.buffers.add(number)

    def note_run(self) -> None:
        """This thread begins a run. Raises: OptionError when another one has set a buffer since this one did."""
        mine = self._thread.here
        if self._contested:
            for number in mine.buffers:
                if self._setters[number] is not mine:
                    name = self._plan.buffers[number].name
                    raise OptionError(f"{name} was set by another thread since this one set it: {_REMEDY}")
        if self._runner is not mine:
            self._runner = mine
            mine.has_run = True

    def check_outputs(self) -> None:
        """Raises: OptionError when another thread has run the network since this one did."""
        mine = self._thread.here
        if mine is not self._runner and mine.has_run:
            raise OptionError(f"another thread has run this network since this one did: {_REMEDY}")
