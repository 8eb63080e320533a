"""Runs kernels in order, in one call, on arguments and sizes that the caller writes before each call."""

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.loader import BoundKernel, Kernel
from retune.compiler.runtime.sequence import KernelSequence

_WORD = 8
"""Bytes of an address, and of a size."""


class SizedSequence:
    """Kernels, whose arguments' addresses and sizes are in two arrays that the caller fills.

    `addresses` has the arguments of all kernels in order, after those of each kernel its workspace; `sizes` the values
    of all kernels' symbols in order. The caller ensures what `Kernel.bind` would check.
    """

    def __init__(self, kernels: Sequence[Kernel], threads: int) -> None:
        artifacts = [kernel.artifact for kernel in kernels]
        addresses = (ctypes.c_uint64 * sum(len(artifact.args) + 1 for artifact in artifacts))()
        sizes = (ctypes.c_int64 * sum(len(artifact.symbols) for artifact in artifacts))()
        self.addresses: Array = np.frombuffer(memoryview(addresses), np.uint64)
        self.sizes: Array = np.frombuffer(memoryview(sizes), np.int64)
        self._bound: list[BoundKernel] = []
        argument = symbol = 0
        for kernel, artifact in zip(kernels, artifacts, strict=True):
            count = len(artifact.args) + 1
            pointers = (ctypes.c_void_p * count).from_buffer(addresses, argument * _WORD)
            values = (ctypes.c_int64 * len(artifact.symbols)).from_buffer(sizes, symbol * _WORD)
            self._bound.append(BoundKernel(kernel, pointers, threads, (), values))
            argument, symbol = argument + count, symbol + len(artifact.symbols)
        self._run = KernelSequence(self._bound)
        self._names = [artifact.name for artifact in artifacts]

    def __call__(self, note: Callable[[str, float], None] | None = None) -> None:
        """Run all kernels; with `note` in turn, and tell it the name and the seconds of each.

        Raises: ArtifactError when a kernel fails.
        """
        if note is None:
            self._run()
            return
        for name, kernel in zip(self._names, self._bound, strict=True):
            start = time.perf_counter()
            kernel()
            note(name, time.perf_counter() - start)
