"""Calls of Python functions by a plan: a function gets its inputs, read-only, and then the outputs that it fills."""

from collections.abc import Callable, Sequence
from typing import Any

from retune.compiler.runtime.artifact import Array

HostFunction = Callable[..., Any]


class HostCall:
    """One call of a Python function; what it returns is ignored, what it raises reaches the caller of the run."""

    __slots__ = ("_arrays", "_function", "_inputs")

    def __init__(self, function: HostFunction, arrays: Sequence[Array], inputs: int) -> None:
        self._function = function
        self._inputs = inputs
        self._arrays = list(arrays)
        for place, array in enumerate(arrays):
            self.rebind(place, array)

    def __call__(self) -> None:
        """Call the function once."""
        self._function(*self._arrays)

    def rebind(self, place: int, buffer: Array, /) -> None:
        """Give coming calls another array."""
        view = buffer.view()
        if place < self._inputs:
            view.flags.writeable = False
        self._arrays[place] = view
