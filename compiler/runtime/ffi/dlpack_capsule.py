"""Makes a DLPack capsule of an array in a device's memory.

The capsule keeps the owner of the memory alive until the consumer releases it, even while the interpreter ends: NumPy
makes and releases the capsule, and knows whether the interpreter still runs.
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from retune.compiler.core.dtype import BFLOAT16, item_bytes
from retune.compiler.runtime.device import Device

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
