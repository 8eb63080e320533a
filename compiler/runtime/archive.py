"""The archive: the file format of networks, executables, modules, parameters and models.

An archive is a zip, which `unzip -l`, `unzip -t` and `numpy.load` read:

    archive.json    {"archive": 1, "kind", "version", "members": {name: {"sha256", and of arrays "dtype", "shape"}}},
                    and {"before": {"bytes", "sha256"}} of code before the zip in the same file: a shared library
    NAME.json       JSON, at most `JSON_BYTES`
    NAME.npy        an array in NumPy's format, little-endian and dense; it begins at a multiple of 64 bytes
    other names     bytes, such as object code

Arrays of a file are memory-mapped, read-only: processes that load one file share one copy of its weights. Opening
checks everything that decides what runs: the directory, JSON, bytes, code before the zip, and arrays below
`EAGER_BYTES` against their checksums; larger arrays are checked only for size and offset, so that loading does not read
them. `Archive(path.read_bytes(), ...)` copies and checks everything. Nothing is unpickled.

Writers replace a file atomically, so an old mapping keeps the old content. If another program truncates a mapped file,
the next access ends the process with SIGBUS.
"""

import hashlib
import io
import json
import math
import mmap
import re
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retune.compiler.core.dtype import item_bytes, number_type
from retune.compiler.core.errors import ArtifactError, RetuneError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.threads.affinity import require_memory

FORMAT_VERSION = 1
MANIFEST = "archive.json"
# Hashing less takes microseconds; hashing weights would read pages that mapping leaves on the disk.
EAGER_BYTES = 1 << 16
"""Opening a file checks arrays below this size: biases and tables, not weights."""
VM_EXECUTABLE = "executable"
"""The kind of a file that the virtual machine runs."""

# JSON of a large network takes 1 MB; parsing takes up to 25 times the size in memory, and a second for 10 MB.
JSON_BYTES = 32 << 20
# Parts that deflate better are stored uncompressed, so that no small file inflates to a large one.
INFLATION = 100
_INFLATED_BYTES = 1 << 20  # every part may inflate to this size

DAMAGE = (
    OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, IndexError, OverflowError, RuntimeError,
    SyntaxError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of JSON, zip and npy readers for invalid files; deeply nested values raise RecursionError."""
_PYTHONS_TEXT = re.compile(
    r"object (is not|has no|does not|cannot|of type)|(positional|keyword) argument|argument must|unsupported operand"
    r"|indices must|to unpack|unpack requires|invalid literal|could not convert|can only|zip\("
    r"|index out of range|int too large"
)
"""Texts of errors that Python raises, not a reader."""

# Other methods of zipfile (bzip2, LZMA) would only widen the attack surface.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LOCAL = struct.Struct("<4s22x2H")
"""A member's own header: signature, length of its name, length of its extra field."""
_PADDING = 0xD935
"""The extra field that Android's zipalign pads with: its number, its length, the alignment, zeros."""
# Tag and length (4 bytes), then the two sizes of 8 bytes that do not fit the header.
_ZIP64_BYTES = 20
_NPY = b"\x93NUMPY"


def write_archive(path: Path, kind: str, version: int, parts: Mapping[str, object]) -> None:
    """Write `parts` into a file, replaced atomically: arrays as `.npy`, bytes unchanged, other values as JSON.

    Raises: ArtifactError when it cannot be written; TypeError for non-JSON.
    """
    with atomic_write(path) as temporary, temporary.open("x+b") as file:
        _write(file, kind, version, parts)


def append_archive(path: Path, kind: str, version: int, parts: Mapping[str, object]) -> None:
    """Add an archive at the end of a file, with a checksum of the file. Raises: OSError; TypeError for non-JSON."""
    with path.open("r+b") as file:
        code = file.read()
        before = {"bytes": len(code), "sha256": hashlib.sha256(code).hexdigest()}
        _write(file, kind, version, parts, {"before": before})


def archive_bytes(kind: str, version: int, parts: Mapping[str, object], *, compress: bool = False) -> bytes:
    """The archive as bytes. Raises: TypeError for non-JSON."""
    file = io.BytesIO()
    _write(file, kind, version, parts, method=zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED)
    return file.getvalue()


def _write(
    file: BinaryIO,
    kind: str,
    version: int,
    parts: Mapping[str, object],
    facts: Mapping[str, object] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> None:
    members: dict[str, dict[str, object]] = {}
    # "a" on a file that is no zip appends: readers find the directory from the end, so code may precede it.
    with zipfile.ZipFile(file, "a", method) as out:
        for name, part in parts.items():
            chunks: list[bytes | memoryview]
            if isinstance(part, np.ndarray):
                array = little_endian(part)
                chunks = [_npy_header(array), array.reshape(-1).view(np.uint8).data]
                members[name] = {"dtype": array.dtype.name, "shape": array.shape}
            else:
                chunks = [part if isinstance(part, bytes) else json.dumps(part).encode()]
                members[name] = {}
            members[name]["sha256"] = _add(out, file, name, chunks)
        manifest = {"archive": FORMAT_VERSION, "kind": kind, "version": version, **(facts or {}), "members": members}
        _add(out, file, MANIFEST, [json.dumps(manifest).encode()])


def _add(out: zipfile.ZipFile, file: BinaryIO, name: str, chunks: list[bytes | memoryview]) -> str:
    """Write a member whose content begins at a multiple of `ALIGNMENT`, and return its checksum."""
    entry = zipfile.ZipInfo(name)
    # ZipInfo's default date (1980) stays: equal parts give equal files.
    entry.compress_type, entry.external_attr = out.compression, 0o644 << 16
    entry.file_size = sum(map(len, chunks))
    if out.compression != zipfile.ZIP_STORED and entry.file_size > _INFLATED_BYTES:
        deflated = sum(len(zlib.compress(chunk)) for chunk in chunks)
        if entry.file_size > INFLATION // 2 * deflated:
            entry.compress_type = zipfile.ZIP_STORED
    large = entry.file_size * 1.05 > zipfile.ZIP64_LIMIT  # then zipfile adds its own field, by this same rule
    start = file.tell() + _LOCAL.size + len(name.encode()) + _ZIP64_BYTES * large
    padding = -start % ALIGNMENT
    if padding:
        # The extra field itself takes six bytes.
        padding += ALIGNMENT * (padding < 6)
        entry.extra = struct.pack("<3H", _PADDING, padding - 4, ALIGNMENT) + bytes(padding - 6)
    digest = hashlib.sha256()
    with out.open(entry, "w") as sink:
        for chunk in chunks:
            sink.write(chunk)
            digest.update(chunk)
    return digest.hexdigest()


def _npy_header(array: Array) -> bytes:
    """NumPy's header, for other readers: it has no name for bfloat16 and says "two bytes" instead."""
    sink = io.BytesIO()
    np.lib.format.write_array_header_1_0(sink, np.lib.format.header_data_from_array_1_0(array))
    return sink.getvalue()


def kind_of(path: Path) -> str:
    """The kind of an archive in its manifest; empty for any other file."""
    try:
        with path.open("rb") as file:
            entries = _directory(file, path.stat().st_size)
            with zipfile.ZipFile(file) as archive:
                return str(json.loads(archive.read(entries[MANIFEST]))["kind"])
    except DAMAGE:
        return ""


def has_part(path: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return name in archive.namelist()
    except DAMAGE:
        return False


def little_endian(array: Array) -> Array:
    """A dense array of the same numbers, little-endian in memory; applied twice it is native."""
    dense = np.ascontiguousarray(array).reshape(array.shape)
    native = dense if dense.dtype.isnative else dense.astype(dense.dtype.newbyteorder("="))
    return native if sys.byteorder == "little" else native.byteswap()


@contextmanager
def reject_damage(
    what: str, source: object, error: type[RetuneError] = ArtifactError, damage: type[RetuneError] | None = None
) -> Iterator[None]:
    """Read `what` from `source`: raise `error`, in one sentence, for any fault; `damage` if the file is something else
    or damaged (not for another version or a file too large).
    """
    try:
        yield
    except FileNotFoundError as missing:
        raise error(f"no such file: {source}") from missing
    except (IsADirectoryError, NotADirectoryError) as wrong:
        reason = "it is a folder" if isinstance(wrong, IsADirectoryError) else "a part of the path is no folder"
        raise error(f"{source} is no file: {reason}") from wrong
    except error as wrong:
        raise error(f"{source}: {wrong}") from wrong
    except MemoryError as wrong:
        reason = f": {wrong}" if str(wrong) else ""
        raise error(f"{source} does not fit into the free memory{reason}") from wrong
    except (*DAMAGE, RetuneError) as wrong:
        raise (damage or error)(f"{source} is no {what}, or is damaged: {damage_text(wrong)}; make it again") from wrong


def damage_text(error: Exception) -> str:
    """What is wrong with data, by the error of `DAMAGE` that reading it raised; without Python's own words."""
    text = " ".join(str(error).split())
    match error:
        case KeyError():
            name = error.args[0] if error.args else ""
            return name if isinstance(name, str) and " " in name else f"there is no {name!r}"
        case RecursionError():
            return "its values are nested too deeply"
        case json.JSONDecodeError():
            return f"its JSON is invalid: {text}"
        case UnicodeError():
            return "its text is not UTF-8"
    if isinstance(error, (OSError, EOFError, zipfile.BadZipFile, zlib.error)):
        return text
    return text if text and not _PYTHONS_TEXT.search(text) else "a value has the wrong type or length"


class Archive:
    """An open archive: its parts by name. Methods raise an error of `DAMAGE` for a damaged part."""

    def __init__(self, source: Path | bytes, kind: str, version: int) -> None:
        """Raises: an error of `DAMAGE`; ArtifactError for another kind or version; MemoryError if the unmapped parts
        exceed the free memory.
        """
        self._is_mapped = isinstance(source, Path)
        if isinstance(source, Path):
            with source.open("rb") as file:
                # The mapping outlives the file object, and replacement of the file.
                self._view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                self._entries = _directory(file, len(self._view))
        else:
            self._view = memoryview(source)
            self._entries = _directory(io.BytesIO(source), len(self._view))
        # The directory's sizes are claims; requested before anything is inflated, they bound a zip bomb.
        unmapped = (entry for entry in self._entries.values() if not self._stays_mapped(entry))
        require_memory(sum(entry.file_size for entry in unmapped), "its parts")
        if MANIFEST not in self._entries:
            raise ValueError(f"{MANIFEST} is missing")
        content = bytes(self._content(MANIFEST))
        if zlib.crc32(content) != self._entries[MANIFEST].CRC:
            raise ValueError(f"the checksum of {MANIFEST} differs")
        manifest = json.loads(content)
        if manifest["archive"] != FORMAT_VERSION:
            raise ArtifactError(f"archive format {manifest['archive']!r}; this Retune reads {FORMAT_VERSION}")
        self._check_version(manifest["kind"], kind, manifest["version"], version)
        self._facts: JsonObject = manifest["members"]
        self._check_before(manifest.get("before"))

    @staticmethod
    def _check_version(kind: object, wanted: str, version: object, known: int) -> None:
        if kind == VM_EXECUTABLE and wanted == "network":
            raise ArtifactError(
                "it holds a network of dynamic shapes, which retune.load, `retune run` and `retune serve` read"
            )
        if kind != wanted:
            raise ArtifactError(f"it holds a {kind!s:.40}, not a {wanted}")
        if version != known:
            raise ArtifactError(f"a {kind} of version {version!r:.40}; this Retune reads version {known}")

    def _check_before(self, before: JsonObject | None) -> None:
        if before is not None:
            # Checked before the dynamic linker sees it: loading runs its constructors.
            code = self.before(int(before["bytes"]))
            if hashlib.sha256(code).hexdigest() != before["sha256"]:
                raise ArtifactError("the code is damaged: its checksum differs")

    def before(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._view):
            raise ValueError(f"it ends after {len(self._view)} of {size} bytes")
        return self._view[:size]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self, prefix: str = "") -> list[str]:
        """The names of parts that begin with `prefix`, in the order of the file."""
        return [name for name in self._entries if name.startswith(prefix)]

    def json(self, name: str) -> Any:
        return json.loads(self.blob(name))

    def blob(self, name: str) -> bytes:
        return bytes(self._check(name, self._content(name)))

    def array(self, name: str) -> Array:
        """A read-only array: a view of the mapped file if it is stored uncompressed."""
        facts, content = self._facts[name], self._content(name)
        if not self._stays_mapped(self._entries[name]) or len(content) < EAGER_BYTES:
            self._check(name, content)
        dtype, shape = number_type(facts["dtype"]), facts["shape"]
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise ValueError(f"an array of the shape {shape!r:.80}")
        # Magic (6 bytes), version (2), length of the header (2), header: version 1.0, which `_npy_header` writes.
        start = len(_NPY) + 4 + int.from_bytes(content[8:10], "little")
        if content[: len(_NPY)] != _NPY or len(content) - start != math.prod(shape) * item_bytes(dtype):
            raise ValueError(f"{name} is no array of {dtype}{shape!r:.80}")
        array: Array = np.ndarray(tuple(shape), dtype, content, start)
        return array if sys.byteorder == "little" else array.byteswap()

    def _stays_mapped(self, entry: zipfile.ZipInfo) -> bool:
        is_array = entry.filename.endswith(".npy")
        return self._is_mapped and is_array and entry.compress_type == zipfile.ZIP_STORED

    def _content(self, name: str) -> memoryview:
        """The content of a part, unchecked. Never inflates more than its entry declares."""
        entry = self._entries[name]
        start = entry.header_offset
        # The local header, not the directory, locates the content: their extra fields differ in length.
        signature, name_bytes, extra_bytes = _LOCAL.unpack_from(self._view, start)
        start += _LOCAL.size + name_bytes + extra_bytes
        packed = self._view[start : start + entry.compress_size]
        if signature != b"PK\3\4" or len(packed) != entry.compress_size:
            raise ValueError(f"{name} is not where the directory says")
        if entry.compress_type == zipfile.ZIP_STORED or not entry.file_size:
            content = packed
        else:
            # Bounded by the declared size: a small part must not inflate to fill the memory.
            content = memoryview(zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, entry.file_size))
        if len(content) != entry.file_size:
            raise ValueError(f"{name} has {len(content)} of {entry.file_size} bytes")
        return content

    def _check(self, name: str, content: memoryview) -> memoryview:
        if hashlib.sha256(content).hexdigest() != self._facts[name]["sha256"]:
            raise ValueError(f"the checksum of {name} differs")
        return content


def _directory(file: BinaryIO, size: int) -> dict[str, zipfile.ZipInfo]:
    """The entries of a zip by name. Raises: ValueError for impossible entries."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    for entry in entries.values():
        if entry.compress_type not in _METHODS:
            raise ValueError("a member is packed by a method that Retune does not write")
        if not 0 <= entry.header_offset <= size - _LOCAL.size:
            raise ValueError(f"{entry.filename} is not where the directory says")
        if entry.filename.endswith(".json") and entry.file_size > JSON_BYTES:
            raise ValueError(f"{entry.filename} has {entry.file_size} bytes, more than the {JSON_BYTES} of a network")
        if entry.file_size > max(_INFLATED_BYTES, INFLATION * entry.compress_size):
            raise ValueError(f"{entry.filename} inflates {entry.compress_size} bytes to {entry.file_size}")
    return entries
