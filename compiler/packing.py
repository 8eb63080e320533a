"""`Packing`: the memory layout of a constant, derived from how loops traverse it.

A packing is immutable and made of integers; it permutes elements and changes none.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.errors import ArtifactError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a constant is laid out in memory so that a kernel reads it linearly.

    Each original dimension is split into digits (`dims`, in the order of the original dimensions, outer digit first),
    and the digits are then transposed by `order`. The packed array is flat and holds the same elements.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        # Also of what is read from files: `pack` would otherwise repeat or lose weights without an error.
        if sorted(self.order) != list(range(len(self.dims))):
            raise ArtifactError(
                f"packing order {self.order} is no permutation of the {len(self.dims)} digits {self.dims}"
            )

    @property
    def size(self) -> int:
        """Number of elements, packed or not."""
        return math.prod(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The digits as they lie in memory, slowest first: the shape of the packed array before it is made flat."""
        return tuple(self.dims[place] for place in self.order)

    def pack(self, array: Array, out: Array | None = None) -> Array:
        """The packed copy, shape (size,), contiguous, same dtype; written to `out` (of that shape) when it is given.

        Raises: ArtifactError when the number of elements differs.
        """
        self._check(array)
        packed = np.empty(self.size, array.dtype) if out is None else out
        self._check(packed)
        digits = packed.reshape(self.shape)
        # One pass over both, without a packed copy in between; a cast would hide a wrong type.
        np.copyto(digits, array.reshape(self.dims).transpose(self.order), casting="no")
        return packed

    def unpack(self, packed: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `pack`: an array of `shape`.

        Raises: ArtifactError when the number of elements differs.
        """
        self._check(packed)
        # Sorting a permutation by its values gives its inverse.
        inverse = np.argsort(self.order)
        digits = packed.reshape(self.shape)
        return np.ascontiguousarray(digits.transpose(inverse)).reshape(shape)

    def _check(self, array: Array) -> None:
        if array.size != self.size:
            raise ArtifactError(
                f"packing {self.dims} holds {self.size} elements, the array {array.shape} has {array.size}"
            )
