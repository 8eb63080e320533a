"""Reads and writes the Parquet files of a record store, with a cache that stays valid because files never change.

A file of one append has one row group. A compacted file has many, the fastest rows first, and a checksum on every page,
so its best rows are read without the others.
"""

import math
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retune.compiler.core.errors import CorruptRecordError
from retune.compiler.measure.record import SCHEMA_VERSION, MeasureRecord
from retune.storage.blob_store import BlobStore
from retune.storage.files import new_id
from retune.storage.layout import SUFFIX
from retune.storage.schema import SCHEMA, VERSION_KEY, from_table, refuse_newer, to_table, upgrade, version_of

BEST_KEY = ("task_key", "target", "device", "threads")
"""The columns that have one "best" record per combination."""

Key = tuple[str, str, str, int]
"""The values of `BEST_KEY`."""

# The first group is small because `best` reads only that; the others large, since every group costs footer space.
FIRST_ROWS, GROUP_ROWS = 64, 8192
"""Rows in the first group of a compacted file, and in the others."""

# A Parquet file ends with the footer's length (four bytes, little endian) and "PAR1".
_TAIL = 8
# Footers of one append are smaller, so an object store usually needs one request instead of two.
_USUAL_FOOTER = 32 * 1024
"""Bytes read for a footer before its length is known."""
_NAME = re.compile(rf"\w+-(?P<footer>[0-9a-f]{{8}})-(?P<body>[0-9a-f]{{8}}){re.escape(SUFFIX)}")
_VERSION = re.compile(re.escape(VERSION_KEY) + rb"\x18.(\d+)\x00", re.DOTALL)
"""The schema version as encoded in Parquet's footer, found without parsing."""

_OUTLINE_COLUMNS = [SCHEMA.names.index(name) for name in (*BEST_KEY, "seconds")]
"""Their numbers in a file: no nested column has more than one leaf, so leaves count like columns."""


def encode(records: Sequence[MeasureRecord]) -> bytes:
    """The Parquet file of canonical records, zstd-compressed, with the schema version in its footer."""
    sink = pa.BufferOutputStream()
    # without dictionaries a round is smaller, and read and written in half the time
    pq.write_table(to_table(records), sink, compression="zstd", use_dictionary=False)
    return bytes(sink.getvalue())


def encode_compacted(table: pa.Table) -> bytes:
    """The Parquet file of a table with `SCHEMA`, with row groups that can be read separately: a small first group,
    since the fastest rows come first.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for rows in (table.slice(0, FIRST_ROWS), table.slice(FIRST_ROWS)):
            if rows.num_rows:
                writer.write_table(rows, row_group_size=GROUP_ROWS)
    return bytes(sink.getvalue())


def part_name(data: bytes) -> str:
    """A fresh name for a file of these bytes: ULID, checksum of the footer, checksum of the rest.

    Arrow kills the process on some damaged footers, so nothing is parsed before its check.
    """
    body, footer = _split(data)
    return f"{new_id()}-{zlib.crc32(footer):08x}-{zlib.crc32(body):08x}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Outline:
    """The contents of a file's footer.

    `key` is the task and device of all its rows, `seconds` the least of their seconds, `rows` their number, `groups`
    the number of row groups, and `fastest` the groups with the fastest rows.
    """

    key: Key
    seconds: float
    rows: int
    groups: int
    fastest: tuple[int, ...]


def read_part(blobs: BlobStore, name: str, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
    """The `columns` of one file, as an Arrow table of the current schema.

    Raises:
        FileNotFoundError: another process has moved it.
        SchemaError: it was written by a newer Retune.
        CorruptRecordError: it is unreadable.
        StoreError: the store failed.
    """
    where = blobs.where(name)
    data = blobs.read(name)
    body, footer = _split(data)
    _check(where, footer, body)
    with _blame(where), pq.ParquetFile(pa.BufferReader(data)) as file:
        version = version_of(file.schema_arrow.metadata, where)
        if version == SCHEMA_VERSION and file.schema_arrow.equals(SCHEMA):
            return file.read(columns=list(columns), use_threads=False).select(columns)
        return upgrade(file.read(use_threads=False), version, where).select(columns)


def read_outline(blobs: BlobStore, name: str) -> Outline | None:
    """The outline from the footer alone, ten times faster than reading rows. Raises like `read_part`.

    None if the rows differ in `BEST_KEY`, or the file is of an older version. `seconds` is infinite if no row
    succeeded.
    """
    where = blobs.where(name)
    data = blobs.read_end(name, _USUAL_FOOTER)
    if len(data) < (length := _footer_length(data[-_TAIL:])):
        data = blobs.read_end(name, length)
    _, footer = _split(data)
    _check(where, footer)
    with _blame(where):
        metadata = pq.read_metadata(pa.BufferReader(footer))
        version_of(metadata.metadata, where)
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


def _group_outline(group: pq.RowGroupMetaData) -> tuple[Key | None, float]:
    """The key shared by all rows of a group, None if unknown, and the least of their seconds."""
    *columns, seconds = [group.column(index).statistics for index in _OUTLINE_COLUMNS]
    if any(column is None or not column.has_min_max or column.min != column.max for column in columns):
        return None, math.inf
    if seconds is None or not (seconds.has_min_max or seconds.null_count == group.num_rows):
        return None, math.inf
    task_key, target, device, threads = [column.min for column in columns]
    return (task_key, target, device, threads), seconds.min if seconds.has_min_max else math.inf


def read_fastest(blobs: BlobStore, name: str, outline: Outline) -> pa.Table:
    """The fastest rows, read without most others, as an Arrow table of the current schema. Raises like `read_part`."""
    try:
        with blobs.open(name) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            rows = file.read_row_groups(list(outline.fastest), use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        rows = read_part(blobs, name)  # raises if the file is damaged, gone, or the store failed
    return rows.filter(pc.equal(rows.column("seconds"), outline.seconds))


def _check(where: str, footer: bytes, body: bytes | None = None) -> None:
    """Check a footer, and optionally the bytes before it, against the checksums in the file's name."""
    named = _NAME.fullmatch(where.rpartition("/")[2])
    if named is None:
        return
    if zlib.crc32(footer) != int(named["footer"], 16):
        if version := _VERSION.search(footer):
            refuse_newer(int(version[1]), where)
        raise CorruptRecordError(f"{where} is damaged: its footer is not the one that its name vouches for")
    if body is not None and zlib.crc32(body) != int(named["body"], 16):
        raise CorruptRecordError(f"{where} is damaged: its rows are not those that its name vouches for")


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The bytes of a file before its footer, and from the footer on."""
    start = max(0, len(data) - _footer_length(data[-_TAIL:]))
    return data[:start], data[start:]


def _footer_length(tail: bytes) -> int:
    """Length of the footer with the eight final bytes of a Parquet file: its length and a magic word."""
    return int.from_bytes(tail[:4], "little") + _TAIL


@contextmanager
def _blame(where: str) -> Iterator[None]:
    """Turn Arrow's errors on unparsable bytes into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"{where} cannot be read back: {error}") from error


class PartCache:
    """The contents of a blob store's files in memory; never outdated, because a file never changes.

    Outlines and the fastest rows of large files stay; rows are kept up to `max_rows` records, least recently used first
    out. Thread-safe.
    """

    def __init__(self, blobs: BlobStore, max_rows: int = 200_000) -> None:
        self._blobs = blobs
        self._max_rows = max_rows
        self._rows: OrderedDict[str, tuple[MeasureRecord, ...]] = OrderedDict()
        self._held = 0
        self._outlines: dict[str, Outline | None] = {}
        self._fastest: dict[str, tuple[MeasureRecord, ...]] = {}
        self._lock = threading.Lock()

    def records(self, name: str) -> tuple[MeasureRecord, ...]:
        """Every record of a file. Raises like `read_part`."""
        with self._lock:
            if name in self._rows:
                self._rows.move_to_end(name)
                return self._rows[name]
        records = tuple(from_table(read_part(self._blobs, name), self._blobs.where(name)))
        self.keep(name, records)
        return records

    def fastest(self, name: str) -> tuple[MeasureRecord, ...]:
        """At least the fastest records of a file. Raises like `read_part`."""
        outline = self.outline(name)
        if outline is None or len(outline.fastest) == outline.groups or name in self._rows:
            return self.records(name)
        if name not in self._fastest:
            rows = read_fastest(self._blobs, name, outline)
            self._fastest[name] = tuple(from_table(rows, self._blobs.where(name)))
        return self._fastest[name]

    def outline(self, name: str) -> Outline | None:
        """The outline of a file. Raises like `read_part`."""
        if name not in self._outlines:
            # Without the lock: two threads may read the same footer, and both get the same value.
            self._outlines[name] = read_outline(self._blobs, name)
        return self._outlines[name]

    def keep(self, name: str, records: tuple[MeasureRecord, ...]) -> None:
        """Cache the records of a file, after reading or writing it."""
        with self._lock:
            if name in self._rows:
                return
            self._rows[name] = records
            self._held += len(records)
            while self._held > self._max_rows and len(self._rows) > 1:
                _, left = self._rows.popitem(last=False)
                self._held -= len(left)
