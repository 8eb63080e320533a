"""In: the address, shape and type of an array in some device's memory. Out: a DLPack capsule of it.

Always: the capsule keeps the owner of the memory alive until whoever takes it lets go.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from compiler.dtype import BFLOAT16, is_float, is_unsigned, item_bytes
from compiler.runtime.device import Device

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

_lent: dict[int, tuple[Any, ...]] = {}
"""What was given away and not let go of yet, by the address of its description."""


def _let_go(address: int) -> None:
    _lent.pop(address, None)


def _not_taken(capsule: int) -> None:
    """A capsule goes that nobody has taken: then its name is still that of a fresh one."""
    if _valid(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


_on_release, _on_loss = _Deleter(_let_go), _Deleter(_not_taken)


def capsule_of(address: int, shape: Sequence[int], dtype: str, where: Device, owner: object) -> Any:
    """A capsule of a dense array, row by row; `owner` is whatever must live as long as its memory is used."""
    rank = len(shape)
    steps = [1] * rank
    for axis in range(rank - 2, -1, -1):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    extents, strides = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*steps)
    managed = _Managed()
    managed.tensor = _Tensor(
        address,
        where.device_type,
        where.device_id,
        rank,
        _code(dtype),
        8 * item_bytes(dtype),
        1,
        extents,
        strides,
        0,
    )
    managed.deleter = ctypes.cast(_on_release, ctypes.c_void_p)
    place = ctypes.addressof(managed)
    _lent[place] = (managed, extents, strides, owner)
    return _new(place, _NAME, ctypes.cast(_on_loss, ctypes.c_void_p))


def lent() -> int:
    """How many arrays are given away."""
    return len(_lent)


def _code(dtype: str) -> int:
    if dtype == "bool":
        return _BOOL
    if dtype == BFLOAT16:
        return _BFLOAT
    return _FLOAT if is_float(dtype) else _UINT if is_unsigned(dtype) else _INT
