"""Allocates aligned arrays for kernels, with guard pages on request.

The first element is at a multiple of 64 bytes. A fenced array ends as close to an inaccessible page as that alignment
allows, or starts right after it, so an access beyond that fence stops the process at once. The bytes between the array
and the fences have a known value, which `damage` checks.
"""

import ctypes
import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retune.compiler.core.dtype import DType, item_bytes, number_type
from retune.compiler.core.errors import ArtifactError, MeasureError, OptionError
from retune.compiler.runtime.artifact import ALIGNMENT, Array

_PAGE = mmap.PAGESIZE
_PROT_NONE, _PROT_READ, _PROT_READ_WRITE = 0, 1, 3
_MAP_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_MAP_FAILED = ctypes.c_void_p(-1).value
_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14

CANARY = 0x7B
"""Filler around a fenced array: as float32 a huge number (1.3e36), so a stray read shows in the result too."""

# mmap by ctypes: Python's mmap objects cannot be protected by mprotect, nor leave out pages.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_BYTE = ctypes.c_char


def address(array: Array) -> int:
    """The address of an array. Without elements it is a constant that kernels accept, since NumPy does not keep the
    addresses of empty slices.
    """
    try:  # a quarter of NumPy's time
        return ctypes.addressof(_BYTE.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # it is read-only, has gaps, no elements, or elements foreign to Python
        return int(array.__array_interface__["data"][0]) if array.size else ALIGNMENT


def aligned_array(shape: tuple[int, ...], dtype: str) -> Array:
    """An uninitialized contiguous array whose first element lies at a multiple of 64 bytes.

    Raises: ArtifactError when there is no memory for it.
    """
    return _allocate(shape, np.dtype(dtype), np.empty)


def aligned_zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """An `aligned_array` of zeros; large arrays take memory on first touch."""
    return _allocate(shape, np.dtype(dtype), np.zeros)


def _allocate(shape: tuple[int, ...], dtype: DType, make: Callable[..., Array]) -> Array:
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        raw = make(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # NumPy raises ValueError for sizes beyond the address space
        raise ArtifactError(f"no memory for an array of the shape {list(shape)}, {nbytes} bytes") from error
    # NumPy aligns to 16 bytes only: room for 64 more lets the view start at a cache line.
    start = -address(raw) % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def empty(shape: Sequence[int], dtype: str) -> Array:
    """An `aligned_array` for a caller's arguments.

    Raises: OptionError for an invalid shape or dtype; ArtifactError when there is no memory.
    """
    whole = isinstance(shape, Sequence) and all(isinstance(each, int | np.integer) and each >= 0 for each in shape)
    if not whole:
        raise OptionError(f"the shape of an array is integers from 0 on, such as (1, 3, 32), not {shape!r:.80}")
    try:
        return aligned_array(tuple(map(int, shape)), number_type(dtype))
    except ValueError as error:
        raise OptionError(str(error)) from None


def raw_memory(nbytes: int) -> tuple[Any, int]:
    """Memory at a multiple of 64 bytes, and its address. It is not an array: NumPy bases views of views on the last
    array, so an array made in this memory stays alive with its views.
    Raises: ArtifactError when there is no memory.
    """
    array = aligned_array((nbytes,), "uint8")
    return (_BYTE * nbytes).from_buffer(array), address(array)  # type: ignore[arg-type]


def aligned_copy(array: Array) -> Array:
    """A contiguous copy of `array` whose first element lies at a multiple of 64 bytes."""
    copy = _allocate(array.shape, array.dtype, np.empty)
    copy[...] = array
    return copy


def constant_array(array: Array) -> Array:
    """`array` in a form that kernels may read from now on: contiguous, aligned, and in read-only memory. Other arrays
    are copied, so the caller may still write to them.
    """
    if _is_fixed(array) and array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    return freeze(aligned_copy(array))


def freeze(array: Array) -> Array:
    """Make an array without other references read-only, together with its base array."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner.flags.writeable = False
        owner = owner.base
    return array


def _is_fixed(array: Array) -> bool:
    """Whether no array can write to this array's memory: a read-only view of a writable array is not fixed."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    if isinstance(owner, memoryview) and owner.readonly:
        owner = owner.obj
    return owner is None or isinstance(owner, bytes) or (isinstance(owner, mmap.mmap) and memoryview(owner).readonly)


class FencedArray:
    """An array between two inaccessible pages.

    | no access | canary ... | array, 64-byte aligned | canary (< 64 bytes) | no access |
    | no access | array, 64-byte aligned | canary ... | no access |                           with `at_start`

    The canary is the byte `filler`. The memory is returned with the last reference to this object and to views of
    `array`.
    """

    __slots__ = ("_filler", "_gaps", "_room", "_start", "array")

    def __init__(self, shape: tuple[int, ...], dtype: str, *, at_start: bool = False, filler: int = CANARY) -> None:
        nbytes = math.prod(shape) * item_bytes(dtype)
        # The end is rounded to the alignment, so the fence is less than 64 bytes from the last element.
        padded = max(nbytes + -nbytes % ALIGNMENT, ALIGNMENT)
        self._room = padded + -padded % _PAGE
        base = _map_fenced(self._room)
        self._start = base + _PAGE
        block = (ctypes.c_uint8 * self._room).from_address(self._start)
        # Attached to the ctypes block and not to `self`: every NumPy view keeps the block alive.
        release = weakref.finalize(block, _LIBC.munmap, base, self._room + 2 * _PAGE)
        release.atexit = False  # the system unmaps the pages at exit, and daemon threads may use them until then
        whole = np.ctypeslib.as_array(block)
        first = 0 if at_start else self._room - padded
        self.array: Array = whole[first : first + nbytes].view(dtype).reshape(shape)
        self._gaps = (whole[:first], whole[first + nbytes :])
        self._filler = filler
        self.repair()

    def damage(self) -> str:
        """A sentence about overwritten bytes around the array; empty without damage."""
        before, after = (np.flatnonzero(gap != self._filler) for gap in self._gaps)
        if after.size:
            return (
                f"{after.size} bytes written past the end, the first {int(after[0]) + 1} bytes after the last element"
            )
        if before.size:
            distance = self._gaps[0].size - int(before[-1])
            return (
                f"{before.size} bytes written before the start, the nearest {distance} bytes before the first element"
            )
        return ""

    def repair(self) -> None:
        """Fill the gaps with the canary again, after reported damage."""
        for gap in self._gaps:
            gap[:] = self._filler

    def protect(self, writable: bool) -> None:
        """Allow or forbid writing to the array; a forbidden write stops the process."""
        _check(_LIBC.mprotect(self._start, self._room, _PROT_READ_WRITE if writable else _PROT_READ), "mprotect")


def _map_fenced(room: int) -> int:
    # Everything is inaccessible first, then all but the two outer pages are opened.
    base = _LIBC.mmap(None, room + 2 * _PAGE, _PROT_NONE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if base is None or base == _MAP_FAILED:
        raise MemoryError(f"no memory for a buffer of {room} bytes (error {ctypes.get_errno()})")
    _check(_LIBC.mprotect(base + _PAGE, room, _PROT_READ_WRITE), "mprotect")
    if room >= _HUGE_PAGE:
        _LIBC.madvise(base + _PAGE, room, _MADV_HUGEPAGE)  # advice: as NumPy does for its arrays; refusal is fine
    return int(base)


def _check(result: int, call: str) -> None:
    if result != 0:
        raise MeasureError(f"{call} failed with error {ctypes.get_errno()}")
