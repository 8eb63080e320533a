"""In: a loaded kernel. Out: a function of NumPy arrays.

Always: an array is used as it is or refused in words, never copied silently.
"""

import numpy as np

from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.arguments import check_count, check_shape
from retune.compiler.runtime.artifact import ArgSpec, Array
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.loader import Kernel


class KernelFunction:
    """A kernel to be called with its arrays, inputs first and then the outputs, which it fills.

    Arrays have the argument's shape and type, are C-contiguous and start at a multiple of 64 bytes, as those of
    `prepared` and `outputs` do; outputs are writable and share no memory with another argument. Every call checks that;
    `Kernel.bind` checks once for many calls.

    total = build([x, w, y])
    inputs = total.prepared(image, weights)
    (result,) = total.outputs()
    total(*inputs, result, threads=2)
    """

    __slots__ = ("kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    @property
    def args(self) -> tuple[ArgSpec, ...]:
        """What the arguments are, in order."""
        return self.kernel.artifact.args

    def __call__(self, *arrays: Array, threads: int = 1) -> None:
        """Run the kernel.

        Raises: ArtifactError naming the argument that does not fit.
        """
        name = self.kernel.artifact.name
        check_count(name, self.args, len(arrays))
        for spec, array in zip(self.args, arrays, strict=True):
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise ArtifactError(f"kernel {name}, argument {spec.name}: expected a NumPy array, got {kind}")
        bound = self.kernel.bind(arrays, threads)
        for spec, array in zip(self.args, arrays, strict=True):
            check_shape(name, spec, array)
        bound()

    def prepared(self, *inputs: Array) -> list[Array]:
        """Copies of the inputs that the kernel takes: aligned, dense, and packed where it reads them packed.

        Raises: ArtifactError when there are more or fewer than the kernel has inputs, or one has another shape or type.
        """
        artifact = self.kernel.artifact
        check_count(artifact.name, artifact.inputs, len(inputs))
        return [_prepared(artifact.name, spec, array) for spec, array in zip(artifact.inputs, inputs, strict=True)]

    def outputs(self) -> list[Array]:
        """New arrays for the outputs, filled with zeros.

        Raises: ArtifactError when there is no memory for them.
        """
        arrays = [aligned_array(spec.shape, spec.dtype) for spec in self.kernel.artifact.outputs]
        for array in arrays:
            array.fill(0)
        return arrays


def _prepared(kernel: str, spec: ArgSpec, value: Array) -> Array:
    array = np.asarray(value)
    if array.dtype != np.dtype(spec.dtype) or array.shape != spec.shape:
        raise ArtifactError(
            f"kernel {kernel}, argument {spec.name}: expected {spec.dtype}{list(spec.shape)}, "
            f"got {array.dtype}{list(array.shape)}"
        )
    return aligned_copy(array if spec.packing is None else spec.packing.pack(array))
