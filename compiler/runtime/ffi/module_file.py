"""Files of compiled functions: an archive, which needs no linker, or a shared library for any host of the FFI.

Files are deterministic and replaced atomically. The archive (`retune.compiler.runtime.archive`) holds

    module.json       for every function its name and what is known of its kernel
    N.kernel.o        the kernel of function number N
    N.entry.o         its entry, see `retune.compiler.codegen.abi.ffi_entry`

A shared library ends with an archive that holds its length and checksum only. One that was changed or cut off is
refused before the system loads any of it; one that another program made has only to be a whole file.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.runtime.archive import DAMAGE, Archive, append_archive, reject_damage, write_archive
from retune.compiler.runtime.artifact import KernelArtifact, kernel_of, kernel_row
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.ffi.linking import LINKERS, link_objects
from retune.compiler.runtime.loader import ELF

_KIND, _VERSION = "module", 2
_LIBRARY_KIND, _LIBRARY_VERSION = "module library", 2
_LIBRARIES = ("libgomp.so.1", "libm.so.6")
_ABOUT = "module.json"
_BUILD_ID = b"retune sealed module"
"""The linker writes it into a note of the library: a library that has it must end with an archive."""

# Offsets 4, 5, 40, 58 and 60 of Elf64_Ehdr: e_ident[EI_CLASS], [EI_DATA], e_shoff, e_shentsize, e_shnum.
_HEADER = struct.Struct("<4x2B34xQ10x2H")
"""Fields of a 64-bit ELF header: class and byte order, offset, size and number of sections."""


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A kernel that the FFI knows as `name`: its entry is a separate object, linked with the kernel."""

    name: str
    kernel: KernelArtifact
    entry: bytes


def write_library(functions: Sequence[CompiledFunction], path: Path, linkers: Sequence[str] = LINKERS) -> None:
    """Link functions into one shared library, which any host of the FFI loads.

    Raises: ArtifactError when there is no linker, it fails, or the file cannot be written.
    """
    with atomic_write(path) as temporary:
        objects = [code for function in functions for code in (function.kernel.object_code, function.entry)]
        link_objects(objects, temporary, linkers, _LIBRARIES, _BUILD_ID)
        append_archive(temporary, _LIBRARY_KIND, _LIBRARY_VERSION, {})


def check_library(path: Path) -> None:
    """Check that a shared library is unchanged since it was linked.

    Raises: ArtifactError when it was changed or cut off, or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {path}: {error.strerror}") from error
    if _BUILD_ID in data:
        try:
            Archive(data, _LIBRARY_KIND, _LIBRARY_VERSION)
        except (*DAMAGE, ArtifactError) as error:
            raise ArtifactError(f"{path} is damaged or cut off: {error}") from error
    elif not _is_whole(data):
        raise ArtifactError(f"{path} cannot be loaded: it is no shared library, or is cut off")


def _is_whole(data: bytes) -> bool:
    """Whether a file of another program begins like a shared library and has all its sections."""
    if not data.startswith(ELF) or len(data) < _HEADER.size:
        return False
    kind, order, sections, size, count = _HEADER.unpack_from(data)
    if (kind, order) != (2, 1):  # not 64 bits, little-endian: left to the system's loader
        return True
    return int(sections) + int(size) * int(count) <= len(data)


def save_functions(functions: Sequence[CompiledFunction], path: Path) -> None:
    """Write functions into an archive. Raises: ArtifactError when the file cannot be written."""
    rows = [{"name": function.name, "kernel": kernel_row(function.kernel)} for function in functions]
    parts: dict[str, object] = {_ABOUT: rows}
    for number, function in enumerate(functions):
        parts |= {f"{number}.kernel.o": function.kernel.object_code, f"{number}.entry.o": function.entry}
    write_archive(path, _KIND, _VERSION, parts)


def load_functions(path: Path) -> tuple[CompiledFunction, ...]:
    """The functions in an archive.

    Raises: ArtifactError when the file is missing, damaged, or not from `save_functions`.
    """
    with reject_damage("module", path):
        archive = Archive(path.read_bytes(), _KIND, _VERSION)
        return tuple(_function(archive, number, row) for number, row in enumerate(archive.json(_ABOUT)))


def _function(archive: Archive, number: int, row: JsonObject) -> CompiledFunction:
    kernel = kernel_of(row["kernel"], archive.blob(f"{number}.kernel.o"))
    return CompiledFunction(str(row["name"]), kernel, archive.blob(f"{number}.entry.o"))
