"""Parameters: arrays by name, as bytes or as a file (an archive, see `retune.compiler.runtime.archive`).

params.json       the names, in order
N.npy             the array of name number N
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retune.compiler.core.dtype import item_bytes, number_type
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.archive import Archive, archive_bytes, little_endian, reject_damage
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.artifact import Array

KIND, VERSION = "parameters", 2
_ZIP = b"PK\3\4"
_TVM_MAGIC, _TVM_ARRAY_MAGIC = 0xF7E58D4F05049CB7, 0xDD5E40F096B4A13F
_TVM_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
"""DLPack's codes of element types."""
_KINDS = "biufV"
"""Kinds of numeric element types; V is NumPy's kind of bfloat16."""


def save_param_dict(params: Mapping[str, Array]) -> bytearray:
    """The arrays as bytes. An array with two names is written twice.

    Raises: ArtifactError when a value is no array of numbers, OptionError when `params` is no mapping.
    """
    if not isinstance(params, Mapping):
        raise OptionError(f"parameters are arrays by name, not a {type(params).__name__}")
    arrays = []
    for name, value in params.items():
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:  # such as nested lists of different lengths
            raise ArtifactError(f"parameter {name!r} is no array: {error}") from None
        if not isinstance(name, str) or array.dtype.kind not in _KINDS or array.dtype.names or array.dtype.hasobject:
            raise ArtifactError(f"parameter {name!r}: an array of numbers is needed, not of {array.dtype}")
        arrays.append(array)
    parts = {f"{number}.npy": array for number, array in enumerate(arrays)}
    return bytearray(archive_bytes(KIND, VERSION, {"params.json": list(params), **parts}))


def load_param_dict(data: bytes | bytearray | memoryview) -> dict[str, Array]:
    """Copies of the arrays that `save_param_dict` wrote, ours or TVM's.

    Raises: ArtifactError when the bytes are something else, of another version, damaged or cut off.
    """
    blob = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b""
    return {name: array.copy() for name, array in _arrays(blob).items()}


def _arrays(source: Path | bytes) -> dict[str, Array]:
    """Read-only arrays by name, mapped for a file. Raises: ArtifactError."""
    start = source if isinstance(source, bytes) else _first_bytes(source)
    what = "the data" if isinstance(source, bytes) else str(source)
    if start.startswith(struct.pack("<Q", _TVM_MAGIC)):
        with reject_damage("dictionary of parameters of TVM", what):
            return _tvm_arrays(source if isinstance(source, bytes) else source.read_bytes())
    if not start.startswith(_ZIP):
        raise ArtifactError(f"{what}: no saved parameters, save_param_dict did not write them")
    with reject_damage("dictionary of parameters", what):
        archive = Archive(source, KIND, VERSION)
        names = archive.json("params.json")
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a name is no string")
        return {name: archive.array(f"{number}.npy") for number, name in enumerate(names)}


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(8)
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error}") from error


def save_param_dict_to_file(params: Mapping[str, Array], path: str | Path) -> Path:
    """Write the arrays into a file and return its path.

    Raises: like `save_param_dict`; ArtifactError when the file cannot be written, OptionError for an invalid `path`.
    """
    path = path_of(path)
    try:
        path.write_bytes(save_param_dict(params))
    except OSError as error:
        raise ArtifactError(f"cannot write {path}: {error}") from error
    return path


def load_param_dict_from_file(path: str | Path, *, copy: bool = True) -> dict[str, Array]:
    """The arrays in a file; without `copy` they are read-only and mapped from the file.

    Raises: ArtifactError like `load_param_dict`, or when the file cannot be read; OptionError for an invalid `path`.
    """
    arrays = _arrays(path_of(path))
    return {name: array.copy() for name, array in arrays.items()} if copy else arrays


def _tvm_arrays(blob: bytes) -> dict[str, Array]:
    """The arrays of TVM's format: two words, the names, and then each array after its header, all little-endian."""
    position = 16

    def take(form: str) -> tuple[Any, ...]:
        nonlocal position
        values = struct.unpack_from(f"<{form}", blob, position)
        position += struct.calcsize(f"<{form}")
        return values

    names = [take(f"{take('Q')[0]}s")[0].decode() for _ in range(take("Q")[0])]
    if take("Q")[0] != len(names):
        raise ValueError("there are not as many arrays as names")
    arrays = {}
    for name in names:
        magic, _, _, _, rank, code, bits, lanes = take("QQiiiBBH")
        if magic != _TVM_ARRAY_MAGIC or lanes != 1:
            raise ValueError(f"the header of the array {name!r:.80} is none")
        *shape, nbytes = take(f"{rank}qq")
        dtype = "bool" if (code, bits) == (1, 1) else number_type(f"{_TVM_KINDS[code]}{bits}")
        if min(shape, default=0) < 0 or nbytes != math.prod(shape) * item_bytes(dtype):
            raise ValueError(f"the array {name!r:.80} of {dtype}{shape} does not have {nbytes} bytes")
        arrays[name] = little_endian(np.frombuffer(take(f"{nbytes}s")[0], dtype).reshape(shape))
    return arrays
