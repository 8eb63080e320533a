"""Calls of regions as bytecode of version 2 writes them: into arrays that the bytecode allocates itself.

Such bytecode asks a primitive for the ranks of its results, another one for their shapes and sizes, allocates, and has
a third one fill the arrays. Here all three ask the region for its results, and keep these until they are taken.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from retune.compiler.errors import MachineError
from retune.compiler.runtime.artifact import Array
from retune.compiler.vm.steps import Callee
from retune.compiler.vm.values import described


class StoredCall:
    """The primitives of one region, or of another callee."""

    def __init__(self, callee: Callee) -> None:
        self._callee = callee
        self._last: tuple[list[Any], Sequence[Array]] | None = None

    def ranks(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        """outputs[i] = the rank of result i"""
        for result, out in zip(self._results(inputs), outputs, strict=True):
            out[...] = result.ndim

    def shapes(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        """outputs = shape and bytes of every result, one after the other"""
        for number, result in enumerate(self._results(inputs)):
            extents, nbytes = outputs[2 * number : 2 * number + 2]
            if extents.shape != (result.ndim,):
                raise MachineError(f"a result is {described(result)}, and its rank was said to be {extents.size}")
            extents[...] = result.shape
            nbytes[...] = result.nbytes

    def fill(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        """outputs = the results"""
        results = self._results(inputs)
        self._last = None
        for result, out in zip(results, outputs, strict=True):
            if result.shape != out.shape or result.dtype != out.dtype:
                raise MachineError(f"a primitive gives {described(result)} where {described(out)} was expected")
            np.copyto(out, result)

    def _results(self, inputs: Sequence[Any]) -> Sequence[Array]:
        """The results for these very values: those that were found for them last, or new ones."""
        last = self._last
        # By identity: a loop may call with equal shapes and other values.
        if last is None or len(last[0]) != len(inputs) or not all(map(operator.is_, last[0], inputs)):
            self._last = last = list(inputs), self._callee(inputs)
        return last[1]
