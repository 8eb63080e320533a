"""Arrays in the memory of a GPU.

They are dense, row-major and start at a multiple of 16 bytes. Memory that they allocate has a fence on either side,
which shows writes out of bounds. Other libraries get them as a DLPack capsule, which keeps the owner of the memory
alive until the consumer releases it, even while the interpreter ends: NumPy makes and releases the capsule, and knows
whether the interpreter still runs.
"""

import ctypes
import importlib
from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from retune.compiler.core.dtype import BFLOAT16, item_bytes, number_type
from retune.compiler.core.errors import DeviceError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.cuda.driver_interface import Driver, Memory, Stream
from retune.compiler.runtime.device import AnyArray, Device, cuda

_NAME = b"dltensor"
_BFLOAT = 4
"""DLPack's code of bfloat, which NumPy lacks."""


# DLManagedTensor begins with its DLTensor, and the layout of these fields is DLPack's stable ABI.
class _Tensor(ctypes.Structure):
    """The first fields of a DLTensor, at the beginning of a capsule's content."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def capsule_of(address: int, shape: Sequence[int], dtype: str, where: Device, owner: object) -> object:
    """A capsule of a dense row-major array; `owner` must live as long as its memory is used."""
    block: Any = (ctypes.c_uint8 * (prod(shape) * item_bytes(dtype))).from_address(address)
    block.owner = owner
    # NumPy takes the address for the CPU's, and never reads there.
    capsule = np.ndarray(shape, "uint16" if dtype == BFLOAT16 else dtype, block).__dlpack__()
    tensor = _Tensor.from_address(_pointer(capsule, _NAME))
    tensor.device_type, tensor.device_id = where.device_type, where.device_id
    if dtype == BFLOAT16:
        tensor.code = _BFLOAT
    return capsule


# The alignment of CUDA's allocator, so that the array between the fences has it too.
FENCE = 256
"""Bytes on either side of an array."""

VECTOR_BYTES = 16
"""Kernels move so many bytes at once."""

# Zero or one in no element type, since kernels write these most.
_CANARY = 0xA5
_CUDA = 2


class _Awaited:
    """Another library's array; its DLPack export makes that library's pending work finish before later work on
    `stream`. Kernels run on streams without implicit synchronization.
    """

    def __init__(self, source: Any, stream: int) -> None:
        self._source = source
        self._stream = stream

    def __dlpack__(self, **options: Any) -> object:
        return self._source.__dlpack__(**{**options, "stream": self._stream})

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


class DeviceArray:
    """An array on GPU `number`; see `allocate` and `borrow`. Its methods select that GPU in any thread."""

    def __init__(
        self, driver: Driver, stream: Stream, number: int, shape: Sequence[int], dtype: str, address: int, owner: object
    ) -> None:
        self.shape = tuple(int(extent) for extent in shape)
        self.dtype = dtype
        self.address = address
        self.device: Device = cuda(number)
        self._driver = driver
        self._stream = stream
        self._owner = owner
        self._piece: Memory | None = None  # with fences

    @classmethod
    def allocate(cls, driver: Driver, stream: Stream, number: int, shape: Sequence[int], dtype: str) -> "DeviceArray":
        """A new uninitialized array between fences. Raises: DeviceError for a bad shape or dtype, or no memory."""
        nbytes = _nbytes(shape, dtype)
        driver.open(number)
        piece = driver.allocate(nbytes + -nbytes % FENCE + 2 * FENCE, stream)
        array = cls(driver, stream, number, shape, dtype, piece.address + FENCE, None)
        array._piece = piece
        array.mend()
        return array

    @classmethod
    def borrow(cls, driver: Driver, stream: Stream, source: AnyArray) -> "DeviceArray":
        """The memory of another library's array, by DLPack, without a copy. That library's pending work precedes later
        work on `stream`.

        Raises: DeviceError for an array elsewhere, or elsewhere than it says, not dense, or not at a multiple of 16
        bytes.
        """
        try:
            kind, number = source.__dlpack_device__()
            tensor = _tensor_of(_Awaited(source, driver.handle(stream))) if kind == _CUDA else None
        except Exception as error:  # of another library, which may raise anything
            raise DeviceError(f"a {type(source).__name__} gives no array of DLPack: {error}") from error
        if tensor is None:
            raise DeviceError(f"the array lies on {Device(kind, number)}, not on a CUDA device; copy it there first")
        if (actual := tuple(map(int, tensor.__dlpack_device__()))) != (kind, number):
            raise DeviceError(f"the array is said to lie on {Device(kind, number)}, and lies on {Device(*actual)}")
        shape, address = tuple(tensor.shape), int(tensor.data_ptr())
        if not tensor.is_contiguous():
            raise DeviceError(f"the array of the shape {list(shape)} is not dense, row by row; copy it first")
        if address % VECTOR_BYTES:
            raise DeviceError(f"the array starts at {address:#x}, no multiple of {VECTOR_BYTES} bytes; copy it first")
        return cls(driver, stream, int(number), shape, str(tensor.dtype), address, tensor)

    def view(self, start: int, shape: Sequence[int], dtype: str) -> "DeviceArray":
        """An array in the same memory from byte `start` on. Raises: DeviceError if it does not fit."""
        nbytes = _nbytes(shape, dtype)
        if start < 0 or start % VECTOR_BYTES or start + nbytes > self.nbytes:
            raise DeviceError(f"{dtype}{list(shape)} from byte {start} on is no part of {self.nbytes} bytes")
        number = self.device.device_id
        return DeviceArray(self._driver, self._stream, number, shape, dtype, self.address + start, self)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * item_bytes(self.dtype)

    def write(self, values: Array) -> None:
        """Copy the elements of an array of this shape and type. Raises: DeviceError for any other."""
        if values.shape != self.shape or values.dtype != np.dtype(self.dtype):
            own, its = f"{self.dtype}{list(self.shape)}", f"{values.dtype.name}{list(values.shape)}"
            raise DeviceError(f"an array of {its} does not fit into one of {own}")
        if values.nbytes:
            self._open()
            self._driver.write(self.address, np.ascontiguousarray(values), self._stream)

    def numpy(self) -> Array:
        copy = np.empty(self.shape, self.dtype)
        self.read(copy)
        return copy

    def read(self, out: Array) -> None:
        """Copy the elements into a dense array of as many bytes. Raises: DeviceError for any other."""
        if out.nbytes != self.nbytes or not out.flags.c_contiguous:
            raise DeviceError(f"{self.nbytes} bytes cannot be copied to an array of {out.nbytes}, or one with gaps")
        if out.nbytes:
            self._open()
            self._driver.read(self.address, out, self._stream)

    def overlaps(self, other: "DeviceArray") -> bool:
        end, its = self.address + self.nbytes, other.address + other.nbytes
        return self.device == other.device and max(self.address, other.address) < min(end, its)

    def mend(self) -> None:
        if self._piece is not None:
            self._open()
            for start, nbytes in self._fences():
                self._driver.fill(start, _CANARY, nbytes, self._stream)

    def damage(self) -> str:
        """A sentence about overwritten bytes beside the array; "" without damage."""
        if self._piece is None:
            return ""
        self._open()
        for (start, nbytes), where in zip(self._fences(), ("before its start", "after its end"), strict=True):
            fence = np.empty(nbytes, np.uint8)
            self._driver.read(start, fence, self._stream)
            if wrong := int((fence != _CANARY).sum()):
                return f"{wrong} of the {nbytes} bytes {where} are overwritten"
        return ""

    def free(self) -> None:
        piece, self._piece, self._owner = self._piece, None, None
        if piece is not None:
            piece.free()

    def _open(self) -> None:
        self._driver.open(self.device.device_id)

    def _fences(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.address - FENCE, FENCE), (self.address + self.nbytes, FENCE + -self.nbytes % FENCE)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.device_type, self.device.device_id

    def __dlpack__(self, **_: object) -> object:
        """A capsule of the same memory, after all queued work on it."""
        self._open()
        # Waiting works for every consumer, including consumers that name no stream.
        self._driver.wait(self._stream)
        return capsule_of(self.address, self.shape, self.dtype, self.device, self)


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array. Raises: DeviceError for an invalid shape or dtype."""
    try:
        item, extents = item_bytes(number_type(dtype)), tuple(map(index, shape))
    except (TypeError, ValueError) as error:
        raise DeviceError(f"there is no array of the shape {shape!r} and the type {dtype!r}: {error}") from None
    if min(extents, default=0) < 0:
        raise DeviceError(f"there is no array of the shape {list(extents)}: an extent is negative")
    return prod(extents) * item


def _tensor_of(source: object) -> Any:
    """The FFI's tensor; programs that borrow nothing do not load the FFI."""
    return importlib.import_module("retune.compiler.runtime.ffi.bindings").tensor_of(source)
