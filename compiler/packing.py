"""`Packing`: the memory layout of a constant, derived from how loops traverse it.

A packing is immutable and made of integers; it permutes elements, may put zeros behind them, and changes none.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.errors import ArtifactError

Array = NDArray[Any]


_MOST_PADDED = 1.125
"""How many times as large as the array: it is read from memory with its zeros."""


def may_pad(size: int, padded: int) -> bool:
    """Whether an array, or a dimension, of `size` elements may be padded to so many."""
    return padded <= _MOST_PADDED * size


@dataclass(frozen=True, slots=True)
class Packing:
    """How a constant is laid out in memory so that a kernel reads it linearly.

    Each original dimension is split into digits (`dims`, in the order of the original dimensions, outer digit first),
    and the digits are then transposed by `order`. The packed array is flat and holds the same elements. Where digits do
    not divide a dimension, the array is first padded with zeros at the ends of its dimensions, to the shape `padded`.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    padded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Also of what is read from files: `pack` would otherwise repeat or lose weights without an error.
        if sorted(self.order) != list(range(len(self.dims))):
            raise ArtifactError(
                f"packing order {self.order} is no permutation of the {len(self.dims)} digits {self.dims}"
            )
        if self.padded and math.prod(self.padded) != self.size:
            raise ArtifactError(f"packing {self.dims} does not hold the elements of the padded shape {self.padded}")

    def __str__(self) -> str:
        padded = f", padded to {list(self.padded)}" if self.padded else ""
        return f"{list(self.dims)} by {list(self.order)}{padded}"

    @property
    def size(self) -> int:
        """Number of elements of the packed array."""
        return math.prod(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The digits as they lie in memory, slowest first: the shape of the packed array before it is made flat."""
        return tuple(self.dims[place] for place in self.order)

    def pack(self, array: Array, out: Array | None = None) -> Array:
        """The packed copy, shape (size,), contiguous, same dtype; written to `out` (of that shape) when it is given.

        Raises: ArtifactError when the number of elements differs.
        """
        self.check(array.shape)
        if self.padded:
            array = np.pad(array, [(0, wide - extent) for extent, wide in zip(array.shape, self.padded, strict=True)])
        packed = np.empty(self.size, array.dtype) if out is None else out
        self._check_packed(packed)
        digits = packed.reshape(self.shape)
        # One pass over both, without a packed copy in between; a cast would hide a wrong type.
        np.copyto(digits, array.reshape(self.dims).transpose(self.order), casting="no")
        return packed

    def unpack(self, packed: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `pack`: an array of `shape`.

        Raises: ArtifactError when the number of elements differs.
        """
        self.check(shape)
        self._check_packed(packed)
        # Sorting a permutation by its values gives its inverse.
        inverse = np.argsort(self.order)
        digits = packed.reshape(self.shape)
        whole = np.ascontiguousarray(digits.transpose(inverse))
        if not self.padded:
            return whole.reshape(shape)
        return np.ascontiguousarray(whole.reshape(self.padded)[tuple(map(slice, shape))])

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that an array of `shape` can be packed. Raises: ArtifactError."""
        if self.padded:
            fits = len(shape) == len(self.padded) and all(a <= b for a, b in zip(shape, self.padded, strict=True))
        else:
            fits = math.prod(shape) == self.size
        if not fits:
            what = f"{self.size} elements{f' of {self.padded}' if self.padded else ''}"
            raise ArtifactError(f"packing {self.dims} holds {what}, the array {shape} has {math.prod(shape)}")

    def _check_packed(self, array: Array) -> None:
        if array.size != self.size:
            raise ArtifactError(
                f"packing {self.dims} holds {self.size} elements, the array {array.shape} has {array.size}"
            )
