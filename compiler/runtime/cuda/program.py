"""Launches the kernels of a program on a GPU and times the launches.

Launches are asynchronous. Times are the device's: short calls are captured in a CUDA graph that runs many of them, so
that launch overhead is not measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver_interface import Driver, Stream

# One launch for 64 calls makes the host's share of each small; capturing more takes longer.
_IN_GRAPH = 64
"""Most calls in one graph."""

_IN_LOOK = 8
# Queueing a kernel takes the host a few microseconds, under 1% of a millisecond.
_CLEAR = 1e-3
"""Seconds from which on a call is timed directly; the host's queueing of a shorter call may take as long."""

_MOST_CALLS = 20_000
# Each flushed call is timed separately and takes a sweep of the cache, so a pass must not have thousands.
_MOST_FLUSHED = 50
"""Most calls of a pass that flushes the cache before each."""


class DeviceProgram:
    """Kernels loaded on the selected device of `driver`; their work is queued on `stream`."""

    def __init__(self, driver: Driver, stream: Stream, artifact: KernelArtifact) -> None:
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
            # A driver rejects machine code of a newer assembler.
            self._kernels = driver.load(self._code.ptx.encode(), "ptx", shared)

    def bind(self, arrays: Sequence[DeviceArray], workspace: int = 0) -> Callable[[], None]:
        """A call with these arguments, in order, which it keeps alive; `workspace` is the address of the artifact's
        workspace.

        Raises: DeviceError for invalid arrays, arrays on several GPUs, or written arrays that share memory.
        """
        artifact = self.artifact
        if len(arrays) != len(artifact.args):
            raise DeviceError(f"{artifact.name} takes {len(artifact.args)} arrays, not {len(arrays)}")
        for spec, array in zip(artifact.args, arrays, strict=True):
            if (array.shape, array.dtype) != (spec.shape, spec.dtype):
                wanted, actual = f"{spec.dtype}{list(spec.shape)}", f"{array.dtype}{list(array.shape)}"
                raise DeviceError(f"{artifact.name}: {spec.name} is {wanted}, the array given for it is {actual}")
        self._check_memory(arrays)
        if artifact.workspace_bytes and not workspace:
            raise DeviceError(f"{artifact.name} needs {artifact.workspace_bytes} bytes of workspace")
        alive = tuple(arrays)
        addresses = [*(array.address for array in alive), *(workspace + start for start in self._code.workspace)]

        def call(_: object = alive) -> None:
            for launch in self._code.launches:
                kernel = self._kernels[launch.name]
                self._driver.launch(self._stream, kernel, launch.grid, launch.block, addresses, launch.shared)

        return call

    def _check_memory(self, arrays: Sequence[DeviceArray]) -> None:
        """Check that all arrays are on one GPU, and that written arrays share no memory, as kernels assume."""
        named = list(zip(self.artifact.args, arrays, strict=True))
        for index, (spec, array) in enumerate(named):
            for other, other_array in named[:index]:
                if array.device != other_array.device:
                    where = f"{spec.name} lies on {array.device}, {other.name} on {other_array.device}"
                    raise DeviceError(f"{self.artifact.name}: {where}")
                if array.overlaps(other_array) and (spec.is_output or other.is_output):
                    both = f"{other.name} and {spec.name} share memory"
                    raise DeviceError(f"{self.artifact.name}: {both}, and one of them is written")


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times calls on a stream. A pass takes at least `least` seconds; `flush`, if given, is queued before each call,
    outside the measured time.
    """

    driver: Driver
    stream: Stream
    least: float = 3e-3
    flush: Callable[[], None] | None = None

    def probe(self, call: Callable[[], None]) -> float:
        """Rough seconds of one call, after an untimed call."""
        call()
        roughly = min(self._time(call) for _ in range(2))
        if roughly > _CLEAR:
            return roughly
        if self.flush is not None:  # the host queues a graph during the flush, but not several kernels
            whole = self.driver.capture(self.stream, call)
            return min(self._time(whole) for _ in range(2))
        graph = self.driver.capture(self.stream, lambda: _repeat(call, _IN_LOOK))
        graph()
        return self._between(graph) / _IN_LOOK

    def passes(self, call: Callable[[], None], count: int, roughly: float) -> tuple[float, ...]:
        """Seconds of a call in each of `count` passes, for a call of `roughly` so many seconds."""
        wanted = math.ceil(self.least / max(roughly, 1e-7))
        if self.flush is not None:
            number = max(1, min(wanted, _MOST_FLUSHED))
            if roughly <= _CLEAR:
                call = self.driver.capture(self.stream, call)
                self._time(call)  # the first is slower: the graph is sent to the device
            return tuple(sum(self._time(call) for _ in range(number)) / number for _ in range(count))
        number = max(1, min(wanted, _MOST_CALLS))
        together = min(number, _IN_GRAPH)
        iterations = -(-number // together)
        graph = self.driver.capture(self.stream, lambda: _repeat(call, together))
        graph()  # the first is slower: the graph is sent to the device
        return tuple(self._between(lambda: _repeat(graph, iterations)) / (iterations * together) for _ in range(count))

    def _time(self, call: Callable[[], None]) -> float:
        if self.flush is not None:
            self.flush()
        return self._between(call)

    def _between(self, work: Callable[[], None]) -> float:
        start = self.driver.record(self.stream)
        work()
        return self.driver.elapsed(start, self.driver.record(self.stream))


def _repeat(call: Callable[[], None], count: int) -> None:
    for _ in range(count):
        call()
