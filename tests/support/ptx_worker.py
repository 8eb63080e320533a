"""Worker process of a fake GPU: executes the PTX it receives on the CPU.

Results are those of the code, instruction by instruction, except that code that was executed with the same bytes in its
memory is not executed again; a kernel of fewer threads takes longer. Only the driver differs from the worker of a real
GPU, whose functions these are.
"""

# ruff: noqa: ARG002, F401 - it has the methods of a driver; callers of the worker find its functions here by name

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from retune.compiler.core.errors import DeviceError
from retune.compiler.ir.kernel import Kernel
from retune.compiler.measure.processes import cuda_worker
from retune.compiler.measure.processes.cuda_worker import (
    compare_stream,
    gpu_device,
    knows,
    missing,
    prepare,
    run_stream,
    set_up,
)
from retune.compiler.runtime.cuda import driver as cuda
from retune.compiler.runtime.cuda.driver_interface import Extents, GpuDevice
from retune.compiler.runtime.executor import executors
from retune.compiler.tune.compare import compare_networks
from tests.support.fake_cuda import CALL_SECONDS, DEVICE, FakeDriver
from tests.support.ptx.machine import MAX_LANES, Blocks
from tests.support.ptx.memory import Buffer, Memory
from tests.support.ptx.program import PtxModule


@dataclass
class FakePtxDriver(FakeDriver):
    """A driver that knows no machine code, and executes PTX."""

    modules: dict[str, PtxModule] = field(default_factory=dict)
    known_results: dict[tuple[object, ...], list[bytes]] = field(default_factory=dict)

    def devices(self) -> tuple[GpuDevice, ...]:
        return (replace(DEVICE, facts=replace(DEVICE.facts, cache=1 << 20)),)

    def load(self, code: bytes, kind: str, shared: Any) -> dict[str, Any]:
        if kind != "ptx":
            raise DeviceError("CUDA: NO_BINARY_FOR_GPU")
        module = PtxModule(code.decode())
        kernels = {name: f"{len(self.modules)}:{name}" for name in shared}
        self.modules |= dict.fromkeys(kernels.values(), module)
        self._shared |= {kernels[name]: nbytes for name, nbytes in shared.items()}
        return kernels

    def launch(
        self, stream: Any, kernel: Any, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        def work() -> None:
            self.clock += CALL_SECONDS / prod(grid) / prod(block)
            self.executed(kernel, grid, block, addresses, shared)

        if self._queued is None:
            work()
        else:
            self._queued.append(work)

    def executed(self, kernel: str, grid: Extents, block: Extents, addresses: Sequence[int], shared: int) -> None:
        """The kernel's work on the memory."""
        pieces = [piece for piece in self.pieces if any(self.lies_in(piece, address) for address in addresses)]
        key = (kernel, *addresses, *(piece.data.tobytes() for piece in pieces))
        if key not in self.known_results:
            module, memory = self.modules[kernel], Memory()
            for piece in pieces:
                memory.buffers.append(Buffer(piece.address, piece.data.nbytes))
                memory.buffers[-1].data = piece.data[None].copy()
            constants = {name: memory.add(np.frombuffer(data, np.uint8)) for name, data in module.constants.items()}
            described = SimpleNamespace(
                name=kernel.partition(":")[2], grid=grid, block=block, threads=prod(block), dynamic_shared=shared
            )
            together = max(1, MAX_LANES // prod(block))
            for first in range(0, prod(grid), together):
                count = min(together, prod(grid) - first)
                Blocks(module, memory, cast(Kernel, described), addresses, constants, first, count).run()
            self.known_results[key] = [each.data[0].tobytes() for each in memory.buffers[: len(pieces)]]
        for piece, data in zip(pieces, self.known_results[key], strict=True):
            piece.data[...] = np.frombuffer(data, np.uint8)

    @staticmethod
    def lies_in(piece: Any, address: int) -> bool:
        """Whether an address is one of a piece that is still allocated."""
        return not piece.freed and piece.address <= address < piece.address + piece.data.nbytes


_DOUBLE = FakePtxDriver()
for _module in (cuda, cuda_worker, executors):
    vars(_module).update(driver=lambda: _DOUBLE, why_not=lambda: "")
