"""Calls of Python functions by a plan: a function gets its inputs, read-only, and then the outputs that it fills."""

from collections.abc import Callable, Sequence
from typing import Any

from retune.compiler.runtime.artifact import Array

HostFunction = Callable[..., Any]


class HostCall:
    """One call of a Python function; its result is ignored, its exceptions reach the caller of the run."""

    __slots__ = ("_arrays", "_function", "_inputs")

    def __init__(self, function: HostFunction, arrays: Sequence[Array], inputs: int) -> None:
        self._function = function
        self._inputs = inputs
        self._arrays = list(arrays)
        for index, array in enumerate(arrays):
            self.rebind(index, array)

    def __call__(self) -> None:
        self._function(*self._arrays)

    def rebind(self, index: int, buffer: Array, /) -> None:
        """Replace argument `index` of coming calls."""
        view = buffer.view()
        if index < self._inputs:
            view.flags.writeable = False
        self._arrays[index] = view
