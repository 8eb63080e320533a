"""In: compiled functions. Out: a file of them: an archive that needs no linker, or a shared library for any FFI host.

Always: written completely or not at all, and deterministic; an archive is a tar of JSON and object code, no pickle, and
every object is checked against its SHA-256 before it is loaded.

    module.json       format; for every function its name, what is known of its kernel, the sums of the two objects
    N.kernel.o        the kernel of function number N
    N.entry.o         its entry, see `retune.compiler.codegen.ffi_entry`
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.artifact_rows import kernel_of, kernel_row
from retune.compiler.runtime.linking import LINKERS, link_objects
from retune.compiler.runtime.published import published
from retune.compiler.runtime.seal import BUILD_ID, seal

FORMAT_VERSION = 1
_LIBRARIES = ("libgomp.so.1", "libm.so.6")
_ABOUT = "module.json"
_DAMAGE = (KeyError, TypeError, ValueError, EOFError, OSError, RecursionError, tarfile.TarError, OverflowError)


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A kernel that the FFI knows as `name`: its entry is an object of its own, linked with the kernel."""

    name: str
    kernel: KernelArtifact
    entry: bytes


def write_library(functions: Sequence[CompiledFunction], path: Path, linkers: Sequence[str] = LINKERS) -> None:
    """Link functions into one shared library, which whoever has the FFI can load, and seal it.

    Raises: ArtifactError when there is no linker, it fails, or the file cannot be written.
    """
    with published(path) as temporary:
        objects = [code for function in functions for code in (function.kernel.object_code, function.entry)]
        link_objects(objects, temporary, linkers, _LIBRARIES, BUILD_ID)
        seal(temporary)


def write_archive(functions: Sequence[CompiledFunction], path: Path) -> None:
    """Put functions into one archive. Raises: ArtifactError when the file cannot be written."""
    rows: list[dict[str, Any]] = []
    members: list[tuple[str, bytes]] = []
    for number, function in enumerate(functions):
        objects = {"kernel": function.kernel.object_code, "entry": function.entry}
        sums = {part: hashlib.sha256(code).hexdigest() for part, code in objects.items()}
        rows.append({"name": function.name, "kernel": kernel_row(function.kernel), "sha256": sums})
        members += [(f"{number}.{part}.o", code) for part, code in objects.items()]
    about = json.dumps({"format": FORMAT_VERSION, "functions": rows}, indent=1).encode()
    with published(path) as temporary, tarfile.open(temporary, "w") as archive:
        for name, data in ((_ABOUT, about), *members):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def read_archive(path: Path) -> tuple[CompiledFunction, ...]:
    """The functions in an archive.

    Raises: ArtifactError when the file is missing, damaged, or none that `write_archive` made.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            about = json.loads(_member(archive, _ABOUT))
            if about["format"] != FORMAT_VERSION:
                raise ArtifactError(f"{path}: format {about['format']!r}; this Retune reads format {FORMAT_VERSION}")
            return tuple(_function(archive, number, row) for number, row in enumerate(about["functions"]))
    except _DAMAGE as error:
        raise ArtifactError(f"{path} is no module, or is damaged: {type(error).__name__}: {error}") from error


def _function(archive: tarfile.TarFile, number: int, row: dict[str, Any]) -> CompiledFunction:
    objects = {}
    for part in ("kernel", "entry"):
        objects[part] = _member(archive, f"{number}.{part}.o")
        if hashlib.sha256(objects[part]).hexdigest() != row["sha256"][part]:
            raise ValueError(f"the checksum of the {part} of {row['name']!r} differs")
    kernel = kernel_of(row["kernel"], objects["kernel"])
    return CompiledFunction(str(row["name"]), kernel, objects["entry"])


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file.read()
