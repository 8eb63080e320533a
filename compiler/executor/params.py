"""In: arrays by name. Out: the same as bytes or as a file, and back.

Always: no pickle; a checksum covers everything, and nothing is returned of bytes that are damaged or cut off.

    8 bytes   magic                     4 bytes   version         4 bytes   length of the table
    32 bytes  SHA-256 of all that follows
    table     JSON: [name, dtype, shape, offset] of every array, in order
    data      little-endian, dense; each array starts at a multiple of 64 bytes from the end of the table
"""

import hashlib
import json
import math
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from retune.compiler.dtype import item_bytes, number_type
from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.paths import path_of

_MAGIC = b"RETUNE\x1aP"
_VERSION = 1
_HEAD = struct.Struct("<8sII32s")
_KINDS = "biufV"
"""Kinds of element types that are plain numbers; V is what NumPy calls bfloat16."""


def save_param_dict(params: Mapping[str, Array]) -> bytearray:
    """The arrays as bytes. One array under two names is written twice.

    Raises: ArtifactError when a value is no array of numbers, OptionError when there are no values by name.
    """
    if not isinstance(params, Mapping):
        raise OptionError(f"parameters are arrays by name, not a {type(params).__name__}")
    table, chunks, end = [], [], 0
    for name, value in params.items():
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # nested lists of different lengths, for one
            raise ArtifactError(f"parameter {name!r} is no array: {error}") from None
        if not isinstance(name, str) or array.dtype.kind not in _KINDS or array.dtype.names or array.dtype.hasobject:
            raise ArtifactError(f"parameter {name!r}: an array of numbers is needed, not of {array.dtype}")
        table.append([name, array.dtype.name, list(array.shape), end])
        chunks.append(_little(array).tobytes())
        padding = -len(chunks[-1]) % ALIGNMENT
        chunks.append(bytes(padding))
        end += len(chunks[-2]) + padding
    text = json.dumps(table).encode()
    body = b"".join([text, *chunks])
    return bytearray(_HEAD.pack(_MAGIC, _VERSION, len(text), hashlib.sha256(body).digest()) + body)


def load_param_dict(data: bytes | bytearray | memoryview) -> dict[str, Array]:
    """The arrays that `save_param_dict` wrote; they are copies.

    Raises: ArtifactError when the bytes are not from it, of another version, damaged or cut off.
    """
    blob = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b""
    if len(blob) < _HEAD.size or not blob.startswith(_MAGIC):
        raise ArtifactError("these bytes are no saved parameters: save_param_dict did not write them")
    _, version, length, digest = _HEAD.unpack_from(blob)
    if version != _VERSION:
        raise ArtifactError(f"saved parameters of version {version}; this Retune reads version {_VERSION}")
    body = memoryview(blob)[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise ArtifactError("the saved parameters are damaged or cut off: their checksum differs")
    try:
        table = json.loads(bytes(body[:length]))
        return {name: _array(body[length:], dtype, shape, offset) for name, dtype, shape, offset in table}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"the saved parameters cannot be read: {error}") from error


def save_param_dict_to_file(params: Mapping[str, Array], path: str | Path) -> Path:
    """Write the arrays into a file and return its path.

    Raises: as `save_param_dict`; ArtifactError when the file cannot be written, OptionError when `path` is none.
    """
    path = path_of(path)
    try:
        path.write_bytes(save_param_dict(params))
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error}") from error
    return path


def load_param_dict_from_file(path: str | Path) -> dict[str, Array]:
    """The arrays in a file.

    Raises: ArtifactError as `load_param_dict`, or when the file cannot be read; OptionError when `path` is none.
    """
    path = path_of(path)
    try:
        return load_param_dict(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error


def _array(data: memoryview, dtype: str, shape: list[int], offset: int) -> Array:
    if not all(type(number) is int for number in (*shape, offset)):
        raise ValueError(f"an array of the shape {shape!r:.80} at {offset!r:.80}")
    nbytes = math.prod(shape) * item_bytes(number_type(dtype))
    if min(nbytes, offset, *shape) < 0 or offset + nbytes > len(data):
        raise ValueError(f"an array of {dtype}{shape} at {offset} does not fit into {len(data)} bytes")
    array = np.frombuffer(data[offset : offset + nbytes], np.uint8).view(dtype).reshape(shape)
    return _little(array).copy()


def _little(array: Array) -> Array:
    """The same numbers as they lie in memory of a little-endian machine, and back."""
    dense = np.ascontiguousarray(array).reshape(array.shape)
    native = dense.astype(dense.dtype.newbyteorder("=")) if not dense.dtype.isnative else dense
    return native if sys.byteorder == "little" else native.byteswap()
