"""Launches the kernels of a program on a GPU and times the launches.

Launches are asynchronous. Times are the device's: short calls are captured in a CUDA graph that runs many of them, so
that launch overhead is not measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retune.compiler.errors import DeviceError
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda_array import DeviceArray
from retune.compiler.runtime.cuda_driver import Driver

# One launch for 64 calls makes the host's part of each small; to capture more takes longer.
_IN_GRAPH = 64
"""Calls that one graph runs at most."""

_IN_LOOK = 8
# Queueing a kernel takes the host a few microseconds, under 1% of a millisecond.
_CLEAR = 1e-3
"""A call this long (seconds) shows its own time; the queueing of a shorter one by the host may take as long."""

_MOST_CALLS = 20_000
# Each flushed call is timed by itself and takes a sweep of the cache, so a pass must not have thousands.
_MOST_FLUSHED = 50
"""Calls of a pass at most, and of one before each of which the cache is emptied."""


class DeviceProgram:
    """Kernels that are loaded on the device that `driver` has open; their work is queued on `stream`."""

    def __init__(self, driver: Driver, stream: Any, artifact: KernelArtifact) -> None:
        if artifact.device is None:
            raise DeviceError(f"{artifact.name} is code for {artifact.target}, not for a GPU")
        self.artifact = artifact
        self._code = artifact.device
        self._driver = driver
        self._stream = stream
        shared = {launch.name: launch.shared for launch in self._code.launches}
        try:
            self._kernels = driver.load(artifact.object_code, self._code.kind, shared)
        except DeviceError as failure:
            if failure.lasting or not self._code.ptx:
                raise
            # A driver takes no machine code of an assembler that is newer than it.
            self._kernels = driver.load(self._code.ptx.encode(), "ptx", shared)

    def bind(self, arrays: Sequence[DeviceArray], workspace: int = 0) -> Callable[[], None]:
        """A call with these arguments, in order, which keeps them; `workspace` is the address of as many bytes as the
        artifact wants.

        Raises: DeviceError for arrays that do not fit, lie on several GPUs, or share memory of which some is written.
        """
        artifact = self.artifact
        if len(arrays) != len(artifact.args):
            raise DeviceError(f"{artifact.name} takes {len(artifact.args)} arrays, not {len(arrays)}")
        for spec, array in zip(artifact.args, arrays, strict=True):
            if (array.shape, array.dtype) != (spec.shape, spec.dtype):
                wanted, given = f"{spec.dtype}{list(spec.shape)}", f"{array.dtype}{list(array.shape)}"
                raise DeviceError(f"{artifact.name}: {spec.name} is {wanted}, the array given for it is {given}")
        self._check_memory(arrays)
        if artifact.workspace_bytes and not workspace:
            raise DeviceError(f"{artifact.name} needs {artifact.workspace_bytes} bytes of workspace")
        kept = tuple(arrays)
        addresses = [*(array.address for array in kept), *(workspace + start for start in self._code.workspace)]

        def call(_: object = kept) -> None:
            for launch in self._code.launches:
                kernel = self._kernels[launch.name]
                self._driver.launch(self._stream, kernel, launch.grid, launch.block, addresses, launch.shared)

        return call

    def _check_memory(self, arrays: Sequence[DeviceArray]) -> None:
        """Kernels take it for granted that what they write is nothing else."""
        named = list(zip(self.artifact.args, arrays, strict=True))
        for place, (spec, array) in enumerate(named):
            for other, its in named[:place]:
                if array.device != its.device:
                    where = f"{spec.name} lies on {array.device}, {other.name} on {its.device}"
                    raise DeviceError(f"{self.artifact.name}: {where}")
                if array.overlaps(its) and (spec.is_output or other.is_output):
                    both = f"{other.name} and {spec.name} share memory"
                    raise DeviceError(f"{self.artifact.name}: {both}, and one of them is written")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls on a stream. A pass is of at least `least` seconds; before each call `flush` is queued, if given,
    whose own time does not count.
    """

    driver: Driver
    stream: Any
    least: float = 3e-3
    flush: Callable[[], None] | None = None

    def probe(self, call: Callable[[], None]) -> float:
        """Seconds of one call, roughly, after one that is not timed."""
        call()
        roughly = min(self._one(call) for _ in range(2))
        if roughly > _CLEAR:
            return roughly
        if self.flush is not None:  # the host queues a graph while the cache is being emptied, but not several kernels
            whole = self.driver.captured(self.stream, call)
            return min(self._one(whole) for _ in range(2))
        graph = self.driver.captured(self.stream, lambda: _repeated(call, _IN_LOOK))
        graph()
        return self._between(graph) / _IN_LOOK

    def passes(self, call: Callable[[], None], count: int, roughly: float) -> tuple[float, ...]:
        """Seconds of a call in each of `count` passes, where one takes `roughly` so many."""
        wanted = math.ceil(self.least / max(roughly, 1e-7))
        if self.flush is not None:
            number = max(1, min(wanted, _MOST_FLUSHED))
            if roughly <= _CLEAR:
                call = self.driver.captured(self.stream, call)
                self._one(call)  # the first is slower: the graph is sent to the device
            return tuple(sum(self._one(call) for _ in range(number)) / number for _ in range(count))
        number = max(1, min(wanted, _MOST_CALLS))
        together = min(number, _IN_GRAPH)
        iterations = -(-number // together)
        graph = self.driver.captured(self.stream, lambda: _repeated(call, together))
        graph()  # the first is slower: the graph is sent to the device
        return tuple(
            self._between(lambda: _repeated(graph, iterations)) / (iterations * together) for _ in range(count)
        )

    def _one(self, call: Callable[[], None]) -> float:
        if self.flush is not None:
            self.flush()
        return self._between(call)

    def _between(self, work: Callable[[], None]) -> float:
        start = self.driver.record(self.stream)
        work()
        return self.driver.elapsed(start, self.driver.record(self.stream))


def _repeated(call: Callable[[], None], count: int) -> None:
    for _ in range(count):
        call()
