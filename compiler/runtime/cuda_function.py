"""A function of arrays that runs kernels on a GPU.

Arguments are available when it begins, results when it returns. Arrays on the GPU are used in place; others are copied
there, and back if they are written. Concurrent calls wait for each other, since calls share one stream and one
workspace.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from retune.compiler.errors import DeviceError
from retune.compiler.runtime.artifact import ArgSpec, Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.cuda_array import DeviceArray
from retune.compiler.runtime.cuda_driver import Driver
from retune.compiler.runtime.cuda_program import DeviceProgram, Stopwatch
from retune.compiler.runtime.device import cuda


class CudaFunction:
    """Kernels to be called with their arrays, inputs first and then the outputs, which they fill.

    total = build([x, w, y], target=Target("cuda"))
    total(image, weights, result)                         # NumPy arrays, or those of PyTorch and others by DLPack
    there = total.on_gpu(image)                           # stays there for many calls
    """

    def __init__(self, driver: Driver, artifact: KernelArtifact, number: int = 0) -> None:
        """Load the kernels on the GPU of that number. Raises: DeviceError when they are not for it."""
        driver.open(number)
        self.artifact = artifact
        self._driver = driver
        self._number = number
        self._one = Lock()
        self._stream = driver.stream()
        self._program = DeviceProgram(driver, self._stream, artifact)
        nbytes = artifact.workspace_bytes
        self._workspace = self._made((nbytes,), "uint8") if nbytes else None

    @property
    def args(self) -> tuple[ArgSpec, ...]:
        """What the arguments are, in order."""
        return self.artifact.args

    def __call__(self, *arrays: Any, threads: int | None = None) -> None:
        """Run the kernels and wait for them; `threads` are those of a CPU, of which a GPU needs none.

        Raises: DeviceError naming the argument that does not fit.
        """
        del threads
        with self._one:
            there = self._there(arrays)
            self._bound(there)()
            for spec, array, mine in zip(self.args, arrays, there, strict=True):
                if spec.is_output and isinstance(array, np.ndarray):
                    mine.read(array)
            self._driver.wait(self._stream)

    def seconds(self, *arrays: Any, passes: int = 5) -> tuple[float, ...]:
        """How long a call takes by the GPU's own clock, in so many passes, without copies. Raises: as a call."""
        with self._one:
            call = self._bound(self._there(arrays))
            watch = Stopwatch(self._driver, self._stream)
            return watch.passes(call, passes, watch.probe(call))

    def prepared(self, *inputs: Array) -> list[Array]:
        """Copies of the inputs, aligned and dense. Raises: DeviceError for another number, shape or type of them."""
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
        made = self._made(values.shape, values.dtype.name)
        made.write(values)
        return made

    def _there(self, arrays: Sequence[Any]) -> list[DeviceArray]:
        """The arguments on the GPU."""
        self._driver.open(self._number)
        if len(arrays) != len(self.args):
            raise DeviceError(f"{self.artifact.name} takes {len(self.args)} arrays, not {len(arrays)}")
        return [self._taken(spec, array) for spec, array in zip(self.args, arrays, strict=True)]

    def _taken(self, spec: ArgSpec, array: Any) -> DeviceArray:
        if isinstance(array, np.ndarray):
            self._check(spec, array)
            if not spec.is_output:
                return self.on_gpu(array)
            if not array.flags.writeable or not array.flags.c_contiguous:
                raise DeviceError(f"{self.artifact.name}: {spec.name} is written: give a writable array without gaps")
            return self._made(spec.shape, spec.dtype)
        lies = array if isinstance(array, DeviceArray) else DeviceArray.borrowed(self._driver, self._stream, array)
        if lies.device != cuda(self._number):
            raise DeviceError(f"{self.artifact.name}: {spec.name} lies on {lies.device}, not on {cuda(self._number)}")
        return lies

    def _bound(self, arrays: Sequence[DeviceArray]) -> Any:
        return self._program.bind(arrays, self._workspace.address if self._workspace is not None else 0)

    def _check(self, spec: ArgSpec, array: Array) -> None:
        if (array.shape, array.dtype.name) != (spec.shape, spec.dtype):
            wanted, given = f"{spec.dtype}{list(spec.shape)}", f"{array.dtype.name}{list(array.shape)}"
            raise DeviceError(f"{self.artifact.name}: {spec.name} is {wanted}, the array given for it is {given}")

    def _made(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        return DeviceArray.allocate(self._driver, self._stream, self._number, shape, dtype)
