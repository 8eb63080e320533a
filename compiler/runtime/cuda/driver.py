"""The CUDA driver interface (`retune.compiler.runtime.cuda.driver_interface`) on NVIDIA's Python packages.

This is the only module that imports `cuda.core` and `cuda.bindings` (the extra `cuda`), on first use of a device.
Without the packages, the driver or a device, every call says in one sentence what is missing.
"""

import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from threading import local
from typing import Any, TypeVar

import numpy as np

from retune.compiler.core.errors import DeviceError, install_hint
from retune.compiler.core.gpu_facts import GpuFacts, arch_of, facts_of, lanes_of
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.cuda.driver_interface import Driver, Event, Extents, GpuDevice, Stream

T = TypeVar("T")

_PACKAGES = f"the packages for CUDA are missing: {install_hint('cuda')}"
_NO_DEVICE = "CUDA's driver is there, but it names no GPU: check CUDA_VISIBLE_DEVICES and the container's devices"
_LASTING = (
    *("ILLEGAL", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT", "MISALIGNED", "HARDWARE", "ECC", "INVALID_PC"),
    *("INVALID_ADDRESS_SPACE", "ERROR_UNKNOWN", "CONTEXT_IS_DESTROYED", "INCONSISTENT STATE"),
)
"""Failures of a kernel after which CUDA is unusable in the process."""


@lru_cache(maxsize=1)
def driver() -> Driver:
    """CUDA on this machine.

    Raises: DeviceError, in words: no packages, no driver, or no device.
    """
    try:
        core, bindings = importlib.import_module("cuda.core"), importlib.import_module("cuda.bindings.driver")
    except ImportError as missing:
        raise DeviceError(f"{_PACKAGES} ({missing})") from missing
    core_driver = _CoreDriver(core, bindings)
    if not core_driver.devices():
        raise DeviceError(_NO_DEVICE)
    return core_driver


def gpus() -> tuple[GpuDevice, ...]:
    """The GPUs of this machine. Raises: DeviceError like `driver`."""
    return driver().devices()


def why_not() -> str:
    """What is missing to use a GPU here, in one sentence; "" if nothing is."""
    try:
        driver()
    except DeviceError as missing:
        return str(missing)
    return ""


class _Piece:
    """Memory of `cuda.core`."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self.address = int(buffer.handle)

    def free(self) -> None:
        self._buffer.close()


class _CoreDriver:
    """The driver by `cuda.core`, and by the bindings for calls outside of it."""

    def __init__(self, core: Any, bindings: Any) -> None:
        self._core = core
        self._bindings = bindings
        self._here = local()  # CUDA has a current context in every thread
        try:
            # Flags must be 0 (CUDA reserves them).
            code, *_ = bindings.cuInit(0)
            if getattr(code, "name", "").endswith("NO_DEVICE"):
                raise DeviceError(_NO_DEVICE)
            self._check((code,))
        except RuntimeError as missing:  # of the loader: there is no library of a driver
            raise DeviceError("there is no NVIDIA driver on this machine, so no GPU can be used") from missing

    def devices(self) -> tuple[GpuDevice, ...]:
        """All devices of CUDA, in its order; the package's own list may be the machine's."""
        count = self._check(self._bindings.cuDeviceGetCount())
        return tuple(self._try(partial(self._describe, number)) for number in range(count))

    def _describe(self, number: int) -> GpuDevice:
        return _facts_of_device(self._core.Device(number))

    def open(self, number: int) -> None:
        """Select device `number` in this thread, even after other libraries have selected another."""
        if getattr(self._here, "number", None) == number:
            # Another library may have changed the thread's context since.
            if self._context() != self._here.context:
                self._try(self._here.device.set_current)
            return
        known = self.devices()
        if not 0 <= number < len(known):
            raise DeviceError(f"there is no GPU number {number}; this machine has {len(known)}")
        device = self._core.Device(number)
        self._try(device.set_current)
        self._here.device, self._here.number, self._here.context = device, number, self._context()

    def _context(self) -> int:
        """The handle of this thread's current context, 0 for none."""
        return int(self._check(self._bindings.cuCtxGetCurrent()))

    @property
    def _device(self) -> Any:
        device = getattr(self._here, "device", None)
        if device is None:
            raise DeviceError("no GPU is open in this thread; open one first")
        return device

    def handle(self, stream: Stream) -> int:
        return int(stream.handle)

    def stream(self) -> Stream:
        return self._try(self._device.create_stream)

    def wait(self, stream: Stream) -> None:
        self._try(stream.sync)

    def allocate(self, nbytes: int, stream: Stream) -> _Piece:
        return _Piece(self._try(lambda: self._device.allocate(nbytes, stream=stream)))

    def write(self, address: int, array: Array, stream: Stream) -> None:
        self._check(self._bindings.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, stream.handle))
        # The host array may be freed as soon as this returns.
        self.wait(stream)

    def read(self, address: int, array: Array, stream: Stream) -> None:
        self._check(self._bindings.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, stream.handle))
        self.wait(stream)

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self._check(self._bindings.cuMemcpyAsync(target, source, nbytes, stream.handle))

    def fill(self, address: int, value: int, nbytes: int, stream: Stream) -> None:
        self._check(self._bindings.cuMemsetD8Async(address, value, nbytes, stream.handle))

    def load(self, code: bytes, kind: str, shared: Mapping[str, int]) -> dict[str, object]:
        """The kernels of these names, with their bytes of shared memory per launch."""
        make = self._core.ObjectCode.from_cubin if kind == "cubin" else self._core.ObjectCode.from_ptx
        loaded = self._try(lambda: make(code))
        kernels = {name: self._try(partial(loaded.get_kernel, name)) for name in shared}
        most = self._bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        asking = {name: nbytes for name, nbytes in shared.items() if nbytes}
        here = _facts_of_device(self._device)
        for name, nbytes in asking.items():
            if nbytes > here.max_shared_memory_per_block:
                raise DeviceError(
                    f"{name} needs {nbytes} bytes of shared memory in a block, {here.name} has "
                    f"{here.max_shared_memory_per_block}: tune for -arch={here.arch}"
                )
            # Above 48 KiB CUDA requires the amount to be set kernel by kernel.
            self._check(self._bindings.cuKernelSetAttribute(most, nbytes, kernels[name].handle, here.number))
        return kernels

    def launch(
        self, stream: Stream, kernel: object, grid: Extents, block: Extents, addresses: Sequence[int], shared: int = 0
    ) -> None:
        config = self._core.LaunchConfig(grid=grid, block=block, shmem_size=shared)
        pointers = [np.uint64(address) for address in addresses]
        self._try(lambda: self._core.launch(stream, config, kernel, *pointers))

    def record(self, stream: Stream) -> Event:
        options = self._core.EventOptions(timing_enabled=True)
        return self._try(lambda: stream.record(options=options))

    def elapsed(self, start: Event, end: Event) -> float:
        self._try(end.sync)
        return float(self._try(lambda: end - start)) / 1e3

    def capture(self, stream: Stream, work: Callable[[], None]) -> Callable[[], None]:
        """A function that queues, as one graph, all that `work` queues on the stream."""
        driver = self._bindings
        # Relaxed: other threads of the process, such as PyTorch's, may use CUDA meanwhile.
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._check(driver.cuStreamBeginCapture(stream.handle, mode))
        try:
            work()
        except BaseException:  # the cause counts, not the end of an aborted capture
            code, *graphs = driver.cuStreamEndCapture(stream.handle)
            if int(code) == 0:
                driver.cuGraphDestroy(*graphs)
            raise
        graph = self._check(driver.cuStreamEndCapture(stream.handle))
        try:
            runnable = self._check(driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)

        def run(_: object = work) -> None:  # keeps the kernels and arrays of the graph alive
            self._check(driver.cuGraphLaunch(runnable, stream.handle))

        # A search captures thousands of graphs, and CUDA keeps each on the device until it is destroyed.
        weakref.finalize(run, driver.cuGraphExecDestroy, runnable).atexit = False
        return run

    def _try(self, call: Callable[[], T]) -> T:
        """Call `call`. Raises: DeviceError for any exception."""
        try:
            return call()
        except DeviceError:
            raise
        except Exception as failure:
            raise _failure(str(failure)) from failure

    def _check(self, answer: tuple[Any, ...]) -> Any:
        """The value after CUDA's code. Raises: DeviceError for a code other than success."""
        code, *values = answer
        if int(code) != 0:
            raise _failure(str(getattr(code, "name", code)))
        return values[0] if values else None


def _failure(text: str) -> DeviceError:
    return DeviceError(f"CUDA: {text}", lasting=any(word in text.upper() for word in _LASTING))


def _facts_of_device(device: Any) -> GpuDevice:
    properties, capability = device.properties, tuple(device.compute_capability)
    arch = arch_of((capability[0], capability[1]))
    # Memory transfers at both edges of its clock (kHz), on a bus of that width; newer drivers do not report them.
    bandwidth = (
        2.0 * properties.memory_clock_rate * 1e3 * properties.global_memory_bus_width / 8 or facts_of(arch).bandwidth
    )
    facts = GpuFacts(
        multiprocessors=properties.multiprocessor_count,
        clock=properties.clock_rate * 1e3 or facts_of(arch).clock,
        bandwidth=bandwidth,
        cache=properties.l2_cache_size,
        lanes=lanes_of((capability[0], capability[1])),
        tensor=facts_of(arch).tensor,
        group_tensor=facts_of(arch).group_tensor,
        registers=properties.max_registers_per_multiprocessor,
        shared=properties.max_shared_memory_per_multiprocessor,
        reserved=properties.reserved_shared_memory_per_block,
        threads=properties.max_threads_per_multiprocessor,
        blocks=properties.max_blocks_per_multiprocessor,
    )
    return GpuDevice(
        device.device_id,
        device.name,
        arch,
        properties.max_shared_memory_per_block_optin or properties.max_shared_memory_per_block,
        properties.max_threads_per_block,
        properties.warp_size,
        facts,
    )
