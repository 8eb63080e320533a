"""A function of arrays that runs kernels on a GPU.

Arguments are available when it begins, results when it returns. Arrays on the GPU are used in place; others are copied
there, and back if they are written. Concurrent calls wait for each other, since calls share one stream and one
workspace.
"""

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np

from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.artifact import ArgSpec, Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.driver_interface import Driver
from retune.compiler.runtime.cuda.program import DeviceProgram, Stopwatch
from retune.compiler.runtime.device import AnyArray, cuda


class CudaFunction:
    """Kernels called with their arrays, inputs first and then the outputs, which they fill.

    total = build([x, w, y], target=Target("cuda"))
    total(image, weights, result)                         # NumPy arrays, or those of PyTorch and others by DLPack
    there = total.on_gpu(image)                           # stays there for many calls
    """

    def __init__(self, driver: Driver, artifact: KernelArtifact, number: int = 0) -> None:
        """Load the kernels on GPU `number`. Raises: DeviceError when they do not fit it."""
        driver.open(number)
        self.artifact = artifact
        self._driver = driver
        self._number = number
        self._lock = Lock()
        self._stream = driver.stream()
        self._program = DeviceProgram(driver, self._stream, artifact)
        nbytes = artifact.workspace_bytes
        self._workspace = self._allocate((nbytes,), "uint8") if nbytes else None

    @property
    def args(self) -> tuple[ArgSpec, ...]:
        return self.artifact.args

    def __call__(self, *arrays: AnyArray, threads: int | None = None) -> None:
        """Run the kernels and wait for them; `threads` is ignored on a GPU.

        Raises: DeviceError naming the invalid argument.
        """
        del threads
        with self._lock:
            arguments = self._device_arguments(arrays)
            self._bind(arguments)()
            for spec, array, argument in zip(self.args, arrays, arguments, strict=True):
                if spec.is_output and isinstance(array, np.ndarray):
                    argument.read(array)
            self._driver.wait(self._stream)

    def seconds(self, *arrays: AnyArray, passes: int = 5) -> tuple[float, ...]:
        """Seconds of a call by the GPU's own clock, in each of `passes` passes, without copies. Raises: like a call."""
        with self._lock:
            call = self._bind(self._device_arguments(arrays))
            watch = Stopwatch(self._driver, self._stream)
            return watch.passes(call, passes, watch.probe(call))

    def prepared(self, *inputs: Array) -> list[Array]:
        """Aligned, dense copies of the inputs. Raises: DeviceError for another number, shape or type."""
        wanted = self.artifact.inputs
        if len(inputs) != len(wanted):
            raise DeviceError(f"{self.artifact.name} has {len(wanted)} inputs, not {len(inputs)}")
        for spec, array in zip(wanted, inputs, strict=True):
            self._check(spec, np.asarray(array))
        return [aligned_copy(np.asarray(array)) for array in inputs]

    def outputs(self) -> list[Array]:
        """New arrays for the outputs in the CPU's memory, filled with zeros."""
        arrays = [aligned_array(spec.shape, spec.dtype) for spec in self.artifact.outputs]
        for array in arrays:
            array.fill(0)
        return arrays

    def on_gpu(self, array: Array) -> DeviceArray:
        """A copy of an array on the GPU; its `numpy` copies it back. Raises: DeviceError when there is no memory."""
        values = np.asarray(array)
        made = self._allocate(values.shape, values.dtype.name)
        made.write(values)
        return made

    def _device_arguments(self, arrays: Sequence[AnyArray]) -> list[DeviceArray]:
        self._driver.open(self._number)
        if len(arrays) != len(self.args):
            raise DeviceError(f"{self.artifact.name} takes {len(self.args)} arrays, not {len(arrays)}")
        return [self._device_argument(spec, array) for spec, array in zip(self.args, arrays, strict=True)]

    def _device_argument(self, spec: ArgSpec, array: AnyArray) -> DeviceArray:
        if isinstance(array, np.ndarray):
            self._check(spec, array)
            if not spec.is_output:
                return self.on_gpu(array)
            if not array.flags.writeable or not array.flags.c_contiguous:
                raise DeviceError(f"{self.artifact.name}: {spec.name} is written: give a writable array without gaps")
            return self._allocate(spec.shape, spec.dtype)
        lies = array if isinstance(array, DeviceArray) else DeviceArray.borrow(self._driver, self._stream, array)
        if lies.device != cuda(self._number):
            raise DeviceError(f"{self.artifact.name}: {spec.name} lies on {lies.device}, not on {cuda(self._number)}")
        return lies

    def _bind(self, arrays: Sequence[DeviceArray]) -> Callable[[], None]:
        return self._program.bind(arrays, self._workspace.address if self._workspace is not None else 0)

    def _check(self, spec: ArgSpec, array: Array) -> None:
        if (array.shape, array.dtype.name) != (spec.shape, spec.dtype):
            wanted, actual = f"{spec.dtype}{list(spec.shape)}", f"{array.dtype.name}{list(array.shape)}"
            raise DeviceError(f"{self.artifact.name}: {spec.name} is {wanted}, the array given for it is {actual}")

    def _allocate(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        return DeviceArray.allocate(self._driver, self._stream, self._number, shape, dtype)
