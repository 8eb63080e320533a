"""A NumPy array with the methods of the FFI's arrays.

It is a NumPy array, so a function that a kernel calls can be written for either kind.
"""

from typing import Any

import numpy as np

from retune.compiler.runtime.artifact import Array


class HostArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array that also answers to `numpy` and `copyto`, as `retune.compiler.runtime.ffi.NDArray` does."""

    def numpy(self) -> Array:
        """The same array without these methods."""
        return self.view(np.ndarray)

    def copyto(self, target: Any) -> Any:
        """Give the elements to another array of the same shape; that array."""
        target[...] = self.numpy()
        return target
