"""Fake CUDA driver: records its calls, and executes kernels by `tests.support.simt`.

Results are those of the lowered kernels, and times those of a clock that every piece of work advances by its length.
Memory is bytes at simulated addresses; an access to memory that is not allocated raises a DeviceError.
"""

# ruff: noqa: ARG002 - it has the methods of a driver, whatever of their arguments it needs

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from retune.compiler.core.errors import DeviceError
from retune.compiler.core.gpu_facts import GROUP_ARCH, STATIC_SHARED, facts_of, most_shared_of
from retune.compiler.ir.expr import Buffer
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.cuda.driver_interface import Extents, GpuDevice
from tests.support.simt.execute import execute

CALL_SECONDS = 1e-4
FLUSH_SECONDS = 1e-2
_PAGE = 1 << 16

DEVICE = GpuDevice(0, "Double", GROUP_ARCH, most_shared_of(GROUP_ARCH), 1024, 32, facts_of(GROUP_ARCH))


@dataclass(eq=False)
class Piece:
    """Allocated bytes."""

    address: int
    data: Array
    freed: bool = False

    def free(self) -> None:
        """Nobody may touch them any more."""
        self.freed = True


@dataclass
class FakeDriver:
    """The driver. `functions` are the device functions whose kernels it can load, `seconds` how long a kernel of a name
    takes, `spoil` is called with the outputs of every execution, `failing` with the name of every kernel launched,
    `queueing` is how long the GPU waits for the host to queue a kernel or a graph (seconds). `given` is the shared
    memory that launches gave.
    """

    functions: Sequence[DeviceFunction] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    spoil: Callable[[list[Array]], object] = lambda *_: None
    failing: Callable[[str], object] = lambda *_: None
    queueing: float = 0.0
    count: int = 1
    clock: float = 0.0
    asked: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    _queued: list[Callable[[], None]] | None = None
    _shared: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[object, ...], list[Array]] = field(default_factory=dict)

    def devices(self) -> tuple[GpuDevice, ...]:
        return tuple(replace(DEVICE, number=number, name=f"Double {number}") for number in range(self.count))

    def open(self, number: int) -> None:
        self.asked.append(f"open {number}")

    def stream(self) -> Any:
        return "stream"

    def wait(self, stream: Any) -> None:
        self.asked.append("wait")

    def handle(self, stream: Any) -> int:
        return 7

    def allocate(self, nbytes: int, stream: Any) -> Piece:
        last = self.pieces[-1] if self.pieces else None
        start = _PAGE if last is None else last.address + -(-last.data.nbytes // _PAGE) * _PAGE + _PAGE
        self.pieces.append(Piece(start, np.zeros(nbytes, np.uint8)))
        return self.pieces[-1]

    def write(self, address: int, array: Array, stream: Any) -> None:
        self._bytes(address, array.nbytes)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def read(self, address: int, array: Array, stream: Any) -> None:
        array.reshape(-1).view(np.uint8)[...] = self._bytes(address, array.nbytes)

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._bytes(target, nbytes)[...] = self._bytes(source, nbytes)

    def fill(self, address: int, value: int, nbytes: int, stream: Any) -> None:
        self._bytes(address, nbytes)[...] = value
        self.clock += FLUSH_SECONDS if nbytes > 1 << 20 else 0.0

    def load(self, code: bytes, kind: str, shared: Mapping[str, int]) -> dict[str, Any]:
        self.asked.append(f"load {kind} {', '.join(shared)}")
        known = {kernel.name for function in self.functions for kernel in function.kernels}
        if missing := set(shared) - known:
            raise DeviceError(f"CUDA: NOT_FOUND {', '.join(sorted(missing))}")
        if max(shared.values()) > DEVICE.max_shared_memory_per_block:
            raise DeviceError("CUDA: INVALID_VALUE")
        self._shared.update(shared)
        return {name: name for name in shared}

    def launch(
        self, stream: Any, kernel: Any, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        if shared > max(self._shared[kernel], STATIC_SHARED):
            raise DeviceError("CUDA: INVALID_VALUE")
        self.given[kernel] = shared

        def work() -> None:
            self.asked.append(f"launch {kernel} {grid} {block}")
            self.failing(kernel)
            self.clock += self.seconds.get(kernel, CALL_SECONDS)
            (function,) = (one for one in self.functions if kernel in [each.name for each in one.kernels])
            if kernel == function.kernels[-1].name:
                self._execute(function, addresses)

        if self._queued is None:
            self.clock += self.queueing
            work()
        else:
            self._queued.append(work)

    def record(self, stream: Any) -> Any:
        return self.clock

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end - start)

    def capture(self, stream: Any, work: Callable[[], None]) -> Callable[[], None]:
        self._queued = []
        work()
        queued, self._queued = self._queued, None
        self.asked.append(f"graph of {len(queued)}")

        def run() -> None:
            self.clock += self.queueing
            for each in queued:
                each()

        return run

    def launches(self) -> list[str]:
        """The names of the kernels that were launched, in order."""
        return [line.split()[1] for line in self.asked if line.startswith("launch ")]

    def _execute(self, function: DeviceFunction, addresses: Sequence[int]) -> None:
        count = len(function.params) - function.outputs
        views = [self._array(buffer, at) for buffer, at in zip(function.params, addresses, strict=False)]
        given = [view.copy() for view in views[:count]]
        key = id(function), *(array.tobytes() for array in given)
        if key not in self._known:  # a kernel computes the same of the same, so it is executed once
            self._known[key] = execute(function, given, self.given)
        found = [array.copy() for array in self._known[key]]
        self.spoil(found)
        for view, values in zip(views[count:], found, strict=True):
            view[...] = values

    def _array(self, buffer: Buffer, address: int) -> Array:
        return self._bytes(address, buffer.nbytes).view(buffer.dtype).reshape(buffer.shape)

    def _bytes(self, address: int, nbytes: int) -> Array:
        for piece in self.pieces:
            if piece.address <= address and address + nbytes <= piece.address + piece.data.nbytes and not piece.freed:
                return piece.data[address - piece.address :][:nbytes]
        raise DeviceError(f"CUDA: ILLEGAL_ADDRESS {address:#x}", lasting=True)
