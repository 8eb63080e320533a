"""A NumPy array with the methods of the FFI's arrays, so that functions called by kernels work for either."""

from typing import Any, TypeVar

import numpy as np

from retune.compiler.core.dtype import Array, DType

T = TypeVar("T", bound=Array)


class HostArray(np.ndarray[Any, DType]):
    """A NumPy array with `numpy` and `copyto`, like `retune.compiler.runtime.ffi.bindings.NDArray`."""

    def numpy(self) -> Array:
        """The same array without these methods."""
        return self.view(np.ndarray)

    def copyto(self, target: T) -> T:
        """Copy the elements to another array of the same shape; returns `target`."""
        target[...] = self.numpy()
        return target
