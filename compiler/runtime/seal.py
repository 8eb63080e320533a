"""In: a shared library that was linked here. Out: the same with a seal at its end, which says what it was.

Always: a library whose seal is broken or cut off is refused before any of it is loaded; one that was never sealed,
since another program made it, has only to be a whole file.

    library, as the linker made it, with `BUILD_ID` as its build id
    16 bytes  mark              8 bytes   length of the library              32 bytes  its SHA-256
"""

import hashlib
import struct
from pathlib import Path

from retune.compiler.errors import ArtifactError

BUILD_ID = b"retune sealed module"
"""What the linker writes into a note of the library: one that has it was sealed."""

_MARK = b"RETUNE\x1aL-sealed\n"
_SEAL = struct.Struct("<16sQ32s")
_ELF = b"\x7fELF"
_HEADER = struct.Struct("<4x2B34xQ10x2H")
"""Of a 64-bit ELF file: its class and byte order, where the table of sections lies, their size and number."""


def seal(path: Path) -> None:
    """Put a seal at the end of a library. Raises: OSError."""
    code = path.read_bytes()
    with path.open("ab") as file:
        file.write(_SEAL.pack(_MARK, len(code), hashlib.sha256(code).digest()))


def check_seal(path: Path) -> None:
    """See that a library is as it was linked.

    Raises: ArtifactError when it was changed or cut off, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    mark, length, digest = _SEAL.unpack(data[-_SEAL.size :]) if len(data) >= _SEAL.size else (b"", 0, b"")
    code = data[: -_SEAL.size]
    if mark == _MARK and length == len(code) and digest == hashlib.sha256(code).digest():
        return
    if BUILD_ID in data or _MARK in data:
        raise ArtifactError(f"{path} is damaged or cut off: its seal does not fit")
    if not _is_whole(data):
        raise ArtifactError(f"{path} cannot be loaded: it is no shared library, or is cut off")


def _is_whole(data: bytes) -> bool:
    """Whether a file of another program begins as a shared library does and has all its sections."""
    if not data.startswith(_ELF) or len(data) < _HEADER.size:
        return False
    kind, order, sections, size, count = _HEADER.unpack_from(data)
    if (kind, order) != (2, 1):  # not of 64 bits, little-endian: the system's loader knows
        return True
    return int(sections) + int(size) * int(count) <= len(data)
