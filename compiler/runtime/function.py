"""A loaded kernel as a function of arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.arguments import check_count, check_shape
from retune.compiler.runtime.artifact import ALIGNMENT, ArgSpec, Array
from retune.compiler.runtime.buffers import address, aligned_array, aligned_copy
from retune.compiler.runtime.device import AnyArray
from retune.compiler.runtime.loader import Kernel
from retune.compiler.runtime.sequence import KernelSequence
from retune.compiler.runtime.timing import TimedFunctions


class KernelFunction(TimedFunctions):
    """A kernel called with its arrays, inputs first and then the outputs, which it fills.

    Arrays are NumPy's or, by DLPack, another library's, and have the argument's shape and type. A dense array at a
    multiple of 64 bytes is used in place, such as arrays of `prepared` and `outputs`; others are copied, and inputs
    that the kernel reads packed are packed. Outputs are writable and share no memory with another argument. Every call
    checks that; `Kernel.bind` checks once for many calls.

    total = build([x, w, y])
    inputs = total.prepared(image, weights)
    (result,) = total.outputs()
    total(*inputs, result, threads=2)
    """

    __slots__ = ("_threads", "kernel")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._threads: int | None = None

    @property
    def args(self) -> tuple[ArgSpec, ...]:
        return self.kernel.artifact.args

    @property
    def entry_name(self) -> str:
        return self.kernel.artifact.name

    def __getitem__(self, name: str) -> "KernelFunction":
        """This function, by its name. Raises: AttributeError for another name."""
        if name not in (self.entry_name, "main"):
            raise AttributeError(f"this is the function {self.entry_name!r}; there is no {name!r}")
        return self

    def __call__(self, *arrays: AnyArray, threads: int | None = None, sizes: Mapping[str, int] | None = None) -> None:
        """Run the kernel on `threads` threads, by default all cores or as RETUNE_NUM_THREADS or OMP_NUM_THREADS say.
        `sizes` are values of its symbols; those that are extents of an argument need not be given.

        Raises: ArtifactError naming the invalid argument.
        """
        artifact = self.kernel.artifact
        name = artifact.name
        check_count(name, self.args, len(arrays))
        passed = [_as_numpy(name, spec, array) for spec, array in zip(self.args, arrays, strict=True)]
        if artifact.symbols:
            sizes = artifact.sizes_of([array.shape for array in passed]) | dict(sizes or {})
            artifact = artifact.at(sizes)
        count = len(artifact.inputs)
        usable = [_usable(name, spec, array) for spec, array in zip(artifact.inputs, passed, strict=False)]
        usable += [  # `Kernel.bind` rejects read-only arrays
            _usable(name, spec, array) if array.flags.writeable else array
            for spec, array in zip(artifact.outputs, passed[count:], strict=True)
        ]
        if threads is None:
            # Read once: querying the environment and the affinity mask costs more than a small kernel.
            threads = self._threads = self._threads or config.thread_count(config.usable_cores())
        bound = self.kernel.bind(usable, threads, sizes)
        for spec, array in zip(artifact.args, usable, strict=True):
            check_shape(name, spec, array)
        run = KernelSequence([bound]) if threads > 1 and bound.is_parallel else bound
        run()
        for array, copy in zip(passed[count:], usable[count:], strict=True):
            if copy is not array:
                np.copyto(array, copy)

    def prepared(self, *inputs: Array) -> list[Array]:
        """Copies of the inputs for the kernel: aligned, dense, and packed where it reads them packed.

        Raises: ArtifactError for another number of inputs, or another shape or type.
        """
        artifact = self.kernel.artifact
        check_count(artifact.name, artifact.inputs, len(inputs))
        if artifact.symbols:
            sizes = artifact.sizes_of([np.shape(array) for array in inputs])
            artifact = artifact.at({name: sizes.get(name, 0) for name in artifact.symbols})
        return [_prepare(artifact.name, spec, array) for spec, array in zip(artifact.inputs, inputs, strict=True)]

    def outputs(self, sizes: Mapping[str, int] | None = None) -> list[Array]:
        """New arrays for the outputs, filled with zeros; `sizes` are the values of the kernel's symbols.

        Raises: ArtifactError when there is no memory for them, or a size is missing.
        """
        arrays = [aligned_array(spec.shape, spec.dtype) for spec in self.kernel.artifact.at(sizes or {}).outputs]
        for array in arrays:
            array.fill(0)
        return arrays


def _as_numpy(kernel: str, spec: ArgSpec, array: Any) -> Array:
    """An array of any library as a NumPy array on the same memory. Raises: ArtifactError."""
    if isinstance(array, np.ndarray):
        return array
    where, kind = f"kernel {kernel}, argument {spec.name}", type(array).__name__
    if not hasattr(array, "numpy") and not hasattr(array, "__dlpack__"):
        raise ArtifactError(f"{where}: expected a NumPy array, or one with DLPack, got {kind}")
    try:
        shared: Array = array.numpy() if hasattr(array, "numpy") else np.from_dlpack(array)
    except Exception as error:  # of another library, which may raise anything
        raise ArtifactError(f"{where}: this {kind} cannot be used without a copy: {error}") from error
    return shared


def _usable(kernel: str, spec: ArgSpec, array: Array) -> Array:
    """The array itself, or its replacement for the kernel: packed, or a dense and aligned copy."""
    if spec.packing is not None and (array.ndim > 1 or array.size != spec.size):
        return _prepare(kernel, spec, array)
    is_as_needed = array.flags.c_contiguous and address(array) % ALIGNMENT == 0
    if is_as_needed or array.dtype != np.dtype(spec.dtype):
        return array
    return aligned_copy(array)


def _prepare(kernel: str, spec: ArgSpec, value: Array) -> Array:
    array = np.asarray(value)
    if array.dtype != np.dtype(spec.dtype) or array.shape != spec.shape:
        raise ArtifactError(
            f"kernel {kernel}, argument {spec.name}: expected {spec.dtype}{list(spec.shape)}, "
            f"got {array.dtype}{list(array.shape)}"
        )
    return aligned_copy(array if spec.packing is None else spec.packing.pack(array))
