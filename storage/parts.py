"""In: records or the path of a file. Out: the other. Always: what is cached stays true for ever.

A file of one append has one group of rows. One made by compaction has many, the fastest rows first, and a checksum on
every page, so that its best rows are read without the others.
"""

import math
import os
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compiler.errors import CorruptRecordError, StoreError
from compiler.measure.record import MeasureRecord
from storage.codec import from_table, to_table
from storage.files import new_id
from storage.layout import SUFFIX
from storage.schema import SCHEMA, VERSION_KEY, refuse_newer, upgrade, version_of

BEST_KEY = ("task_key", "target", "device", "threads")
"""The columns within which "best" is one record."""

Key = tuple[str, str, str, int]
"""The values of `BEST_KEY`."""

FIRST_ROWS, GROUP_ROWS = 64, 8192
"""Rows in the first group of a compacted file, and in the others."""

_TAIL = 8
_NAME = re.compile(rf"\w+-(?P<footer>[0-9a-f]{{8}})-(?P<body>[0-9a-f]{{8}}){re.escape(SUFFIX)}")
_VERSION = re.compile(re.escape(VERSION_KEY) + rb"\x18.(\d+)\x00", re.DOTALL)
"""The schema version as Parquet's footer spells it, found without parsing."""

_OUTLINE_COLUMNS = [SCHEMA.names.index(name) for name in (*BEST_KEY, "seconds")]
"""Where they are in a file: no nested column has more than one leaf, so leaves count like columns."""


def encode(records: Sequence[MeasureRecord]) -> bytes:
    """The Parquet file of canonical records, zstd-compressed, the schema version in its footer."""
    sink = pa.BufferOutputStream()
    # without dictionaries a round is smaller, and read and written in half the time
    pq.write_table(to_table(records), sink, compression="zstd", use_dictionary=False)
    return bytes(sink.getvalue())


def encode_compacted(table: Any) -> bytes:
    """The Parquet file of a table with `SCHEMA`, its rows in groups that can be read alone: the first few rows are one,
    since the fastest come first.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for rows in (table.slice(0, FIRST_ROWS), table.slice(FIRST_ROWS)):
            if rows.num_rows:
                writer.write_table(rows, row_group_size=GROUP_ROWS)
    return bytes(sink.getvalue())


def part_name(data: bytes) -> str:
    """A fresh name for a file of these bytes: ULID, checksum of the footer, checksum of the rest.

    Arrow kills the process on some damaged footers, so nothing is parsed that was not checked first.
    """
    body, footer = _split(data)
    return f"{new_id()}-{zlib.crc32(footer):08x}-{zlib.crc32(body):08x}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Outline:
    """What a file's footer says: the task and place of all its rows, the fewest seconds among them, how many they are,
    and which groups of them hold the fastest.
    """

    key: Key
    seconds: float
    rows: int
    groups: int
    fastest: tuple[int, ...]


def read_part(path: Path) -> Any:
    """One file as an Arrow table of the current schema.

    Raises:
        FileNotFoundError: another process has moved it.
        SchemaError: it was written by a newer Retune.
        CorruptRecordError: it cannot be read back.
        StoreError: the medium failed.
    """
    body, footer = _checked(path)
    with _blame(path), pq.ParquetFile(pa.BufferReader(body + footer)) as file:
        version = version_of(file.schema_arrow.metadata, str(path))
        return upgrade(file.read(use_threads=False), version, str(path))


def read_outline(path: Path) -> Outline | None:
    """What the footer alone tells, ten times faster than reading rows. Raises as `read_part`.

    None if it does not tell: the rows differ in `BEST_KEY`, or the file is of an older version.
    `seconds` is infinite if no row succeeded.
    """
    _, footer = _checked(path, only_footer=True)
    with _blame(path):
        metadata = pq.read_metadata(pa.BufferReader(footer))
        version_of(metadata.metadata, str(path))
        if metadata.num_row_groups == 0 or metadata.schema.to_arrow_schema().names != SCHEMA.names:
            return None
        groups = [_group_outline(metadata.row_group(index)) for index in range(metadata.num_row_groups)]
    keys = {key for key, _ in groups}
    (key, *others) = keys
    if key is None or others:
        return None
    least = min(seconds for _, seconds in groups)
    fastest = tuple(index for index, (_, seconds) in enumerate(groups) if seconds == least)
    return Outline(key, least, metadata.num_rows, len(groups), fastest)


def _group_outline(group: Any) -> tuple[Key | None, float]:
    """The key that all rows of a group share, or None if it cannot be told, and the fewest seconds among them."""
    *columns, seconds = [group.column(index).statistics for index in _OUTLINE_COLUMNS]
    if any(column is None or not column.has_min_max or column.min != column.max for column in columns):
        return None, math.inf
    if seconds is None or not (seconds.has_min_max or seconds.null_count == group.num_rows):
        return None, math.inf
    task_key, target, device, threads = [column.min for column in columns]
    return (task_key, target, device, threads), seconds.min if seconds.has_min_max else math.inf


def read_fastest(path: Path, outline: Outline) -> Any:
    """The groups of rows that hold the fastest, as an Arrow table of the current schema. Raises as `read_part`."""
    with path.open("rb") as raw, _blame(path), pq.ParquetFile(raw, page_checksum_verification=True) as file:
        return file.read_row_groups(list(outline.fastest), use_threads=False)


def _checked(path: Path, only_footer: bool = False) -> tuple[bytes, bytes]:
    """The bytes of a file, before its footer (empty if not asked for) and from it, as its name vouches."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            start = size - _footer_length(file.read())
            file.seek(max(0, start) if only_footer else 0)
            data = file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    body, footer = _split(data)
    named = _NAME.fullmatch(path.name)
    if named and zlib.crc32(footer) != int(named["footer"], 16):
        if version := _VERSION.search(footer):
            refuse_newer(int(version[1]), str(path))
        raise CorruptRecordError(f"{path} is damaged: its footer is not the one that its name vouches for")
    if named and not only_footer and zlib.crc32(body) != int(named["body"], 16):
        raise CorruptRecordError(f"{path} is damaged: its rows are not those that its name vouches for")
    return body, footer


def _split(data: bytes) -> tuple[bytes, bytes]:
    """A file before its footer, and from it to the end."""
    start = max(0, len(data) - _footer_length(data[-_TAIL:]))
    return data[:start], data[start:]


def _footer_length(tail: bytes) -> int:
    """How many bytes the footer takes with the eight that end a Parquet file: its length and a magic word."""
    return int.from_bytes(tail[:4], "little") + _TAIL


@contextmanager
def _blame(path: Path) -> Iterator[None]:
    """Turn what Arrow raises on bytes it cannot parse into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"{path} cannot be read back: {error}") from error


class PartCache:
    """What the files say, kept in memory; valid for ever, because a file never changes.

    Outlines stay; rows are kept up to `max_rows` records, the longest unused leave first. Safe to
    use from many threads.
    """

    def __init__(self, max_rows: int = 200_000) -> None:
        self._max_rows = max_rows
        self._rows: OrderedDict[Path, tuple[MeasureRecord, ...]] = OrderedDict()
        self._held = 0
        self._outlines: dict[Path, Outline | None] = {}
        self._lock = threading.Lock()

    def records(self, path: Path) -> tuple[MeasureRecord, ...]:
        """Every record of a file. Raises as `read_part`."""
        with self._lock:
            if path in self._rows:
                self._rows.move_to_end(path)
                return self._rows[path]
        records = tuple(from_table(read_part(path), str(path)))
        self.keep(path, records)
        return records

    def fastest(self, path: Path) -> tuple[MeasureRecord, ...]:
        """At least the fastest records of a file. Raises as `read_part`."""
        outline = self.outline(path)
        if outline is None or len(outline.fastest) == outline.groups or path in self._rows:
            return self.records(path)
        return tuple(from_table(read_fastest(path, outline), str(path)))

    def outline(self, path: Path) -> Outline | None:
        """What a file's footer says. Raises as `read_part`."""
        if path not in self._outlines:
            self._outlines[path] = read_outline(path)
        return self._outlines[path]

    def keep(self, path: Path, records: tuple[MeasureRecord, ...]) -> None:
        """Remember what a file holds, after reading or writing it."""
        with self._lock:
            if path in self._rows:
                return
            self._rows[path] = records
            self._held += len(records)
            while self._held > self._max_rows and len(self._rows) > 1:
                _, left = self._rows.popitem(last=False)
                self._held -= len(left)
