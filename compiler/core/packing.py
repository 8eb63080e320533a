"""`Packing`: the memory layout of a constant, derived from how loops traverse it.

A packing is immutable and made of integers; it permutes elements, may pad them with zeros, and changes none.
"""

import math
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import ArtifactError

_MOST_PADDED = 1.125
"""The largest ratio of padded to original elements, since kernels read the zeros too. Chosen, not measured."""


def most_padded(size: int) -> int:
    """The most elements that an array, or a dimension, of `size` elements may be padded to."""
    return int(_MOST_PADDED * size)


@dataclass(frozen=True, slots=True)
class Packing:
    """The memory layout of a constant that a kernel reads linearly.

    Each original dimension is split into digits (`dims`, in the order of the original dimensions, outer digit first),
    and the digits are then transposed by `order`. The packed array is flat and holds the same elements. Where digits do
    not divide a dimension, `extents` is the original shape, and each dimension is first padded with zeros at its end;
    it is empty where nothing is padded.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    extents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # Also of what is read from files: `pack` would otherwise repeat or lose weights without an error.
        if sorted(self.order) != list(range(len(self.dims))):
            raise ArtifactError(
                f"packing order {self.order} is no permutation of the {len(self.dims)} digits {self.dims}"
            )
        if self.extents and (
            min(*self.dims, *self.extents) < 1
            or math.prod(self.padded) != self.size
            or any(wide < extent for wide, extent in zip(self.padded, self.extents, strict=True))
            or self.size > most_padded(math.prod(self.extents))
        ):
            raise ArtifactError(f"packing {self.dims} does not pad an array of the shape {self.extents}")

    def __str__(self) -> str:
        padded = f", padded from {list(self.extents)}" if self.extents else ""
        return f"{list(self.dims)} by {list(self.order)}{padded}"

    @property
    def digits(self) -> tuple[tuple[int, ...], ...]:
        """The digits of each dimension of `extents`."""
        digits, remaining = [], list(self.dims)
        for extent in self.extents:
            group: list[int] = []
            # Without its innermost digit a dimension is at most half as long, so the product of digits tells dimensions
            # apart.
            while remaining and (not group or math.prod(group) < extent):
                group.append(remaining.pop(0))
            digits.append(tuple(group))
        return tuple(digits)

    @property
    def padded(self) -> tuple[int, ...]:
        """The shape after padding; empty where nothing is padded."""
        return tuple(map(math.prod, self.digits))

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The digits in memory order, slowest first: the shape of the packed array before it is flattened."""
        return tuple(self.dims[digit] for digit in self.order)

    def pack(self, array: Array, out: Array | None = None) -> Array:
        """The packed copy, shape (size,), contiguous, same dtype; written to `out` (of that shape), if any.

        Raises: ArtifactError when the number of elements differs.
        """
        self.check(array.shape)
        if self.extents:
            array = np.pad(array, [(0, wide - extent) for extent, wide in zip(self.extents, self.padded, strict=True)])
        packed = np.empty(self.size, array.dtype) if out is None else out
        self._check_packed(packed)
        split = packed.reshape(self.shape)
        # One pass over both, without a packed copy where nothing is padded; a cast would hide a wrong type.
        np.copyto(split, array.reshape(self.dims).transpose(self.order), casting="no")
        return packed

    def unpack(self, packed: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `pack`: an array of `shape`.

        Raises: ArtifactError when the number of elements differs.
        """
        self.check(shape)
        self._check_packed(packed)
        # Sorting a permutation by its values gives its inverse.
        inverse = np.argsort(self.order)
        split = packed.reshape(self.shape)
        unpacked = np.ascontiguousarray(split.transpose(inverse))
        if not self.extents:
            return unpacked.reshape(shape)
        return np.ascontiguousarray(unpacked.reshape(self.padded)[tuple(map(slice, shape))])

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that an array of `shape` can be packed. Raises: ArtifactError."""
        if math.prod(shape) != self.size if not self.extents else shape != self.extents:
            what = f"{math.prod(self.extents)} of {self.extents}" if self.extents else f"{self.size} elements"
            raise ArtifactError(f"packing {self.dims} holds {what}, the array {shape} has {math.prod(shape)}")

    def _check_packed(self, array: Array) -> None:
        if array.size != self.size:
            raise ArtifactError(
                f"packing {self.dims} holds {self.size} elements, the array {array.shape} has {array.size}"
            )
