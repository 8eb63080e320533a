"""Zip archives that this program wrote: what reading a damaged one raises, and a bound on what one inflates to."""

import struct
import tokenize
import zipfile
import zlib

from retune.compiler.runtime.machine import require_memory

DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    AttributeError,
    IndexError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What the readers of zip, JSON and npy raise when a file is not what it claims to be."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def check_archive(archive: zipfile.ZipFile) -> None:
    """Bound what an archive inflates to: a member never has more bytes than its entry declares.

    Raises: MemoryError when the members do not fit into the free memory, ValueError for packing methods of others.
    """
    require_memory(sum(member.file_size for member in archive.infolist()), "its parts")
    if any(member.compress_type not in _METHODS for member in archive.infolist()):
        raise ValueError("a member is packed by a method that Retune does not write")


def too_large(what: object, error: MemoryError) -> str:
    """What is said of a file that may be sound, and does not fit."""
    return f"{what} does not fit into the free memory{f': {error}' if str(error) else ''}"
