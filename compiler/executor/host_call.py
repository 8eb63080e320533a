"""In: what one node of a graph calls, and the arrays that it gives. Out: a call that takes no arguments.

Always: a Python function gets its inputs, which it cannot write to, and then the outputs that it fills.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from retune.compiler.runtime.artifact import Array

HostFunction = Callable[..., Any]


class BoundCall(Protocol):
    """One call of a plan with its buffers."""

    def __call__(self) -> None: ...

    def rebind(self, place: int, buffer: Array, /) -> None:
        """Give coming calls another array for argument number `place`."""


class DeviceCall:
    """A call that is made on another device, in memory of that device: what the processor has comes there by copies."""

    __slots__ = ("_run", "wait")

    def __init__(self, run: Callable[[], object], wait: Callable[[], object]) -> None:
        self._run = run
        self.wait = wait

    def __call__(self) -> None:
        """Have it made, now or soon; `wait` returns when it is done."""
        self._run()

    def rebind(self, place: int, buffer: Array, /) -> None:
        """Nothing to do: it reads and writes no array of the processor."""


class HostCall:
    """A call of a Python function; what it returns is ignored, what it raises reaches whoever runs the graph."""

    __slots__ = ("_arrays", "_function", "_inputs")

    def __init__(self, function: HostFunction, arrays: Sequence[Array], inputs: int) -> None:
        self._function = function
        self._inputs = inputs
        self._arrays = [array.view() for array in arrays]
        for array in self._arrays[:inputs]:
            array.flags.writeable = False

    def __call__(self) -> None:
        """Call the function once."""
        self._function(*self._arrays)

    def rebind(self, place: int, buffer: Array, /) -> None:
        """Give coming calls another array."""
        view = buffer.view()
        if place < self._inputs:
            view.flags.writeable = False
        self._arrays[place] = view
