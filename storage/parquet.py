"""Record store of append-only Parquet files that any tool can query."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.measure.record import CONFIRMED, SCHEMA_VERSION, MeasureRecord, MeasureStatus
from retune.storage.base import RecordStore, Selection
from retune.storage.blob_store import QUARANTINE
from retune.storage.documents import MARKER_KIND, read_document
from retune.storage.files import TEMPORARY_SUFFIX
from retune.storage.layout import RECORDS, part_folder, part_names, parts_below
from retune.storage.parts import Key, Outline, PartCache, encode, part_name, read_part
from retune.storage.schema import MICROSECOND, SCHEMA, canonical, distinct_rows, from_table, refuse_newer
from retune.storage.store_url import open_blob_store

MARKER = "store.json"

_ALL = Selection(confirmations=True)

_LISTINGS = 5
"""Most listings by a check of a folder whose files disappear while it reads them."""

_ORDER = ("timestamp", "round", "record_id", "sizes")
"""The columns that order rows; the last two identify them."""

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of a full check: readable `files`, the `rows` in them, and `temporaries` left by killed writers.

    `repeats` counts duplicate rows of a record; readers skip them. `quarantined` are unreadable files of any kind that
    were set aside.
    """

    files: int
    rows: int
    temporaries: tuple[str, ...]
    repeats: int = 0
    quarantined: tuple[str, ...] = ()


class ParquetRecordStore(RecordStore):
    """Append-only Parquet files under `root`, a folder or a URL, in the layout of `retune.storage.layout`.

    An unreadable file is moved to `root/quarantine/` with a warning that names it, and the query goes on without it;
    `check` raises instead.

    Raises:
        StoreError: `root` cannot hold a store.
        SchemaError: a newer Retune has written to the store.
    """

    def __init__(self, root: Path | str) -> None:
        self.blobs = open_blob_store(root)
        self._cache = PartCache(self.blobs)
        self._unreadable: set[str] = set()
        self._marked = self._check_marker()

    # Without the cache and its lock: Prefect and Dask pickle stores to send them to workers.
    def __reduce__(self) -> tuple[type["ParquetRecordStore"], tuple[str]]:
        return type(self), (self.blobs.url,)

    def append(self, records: Sequence[MeasureRecord]) -> None:
        """See `RecordStore.append`: one file per target and task."""
        unique: dict[str, MeasureRecord] = {}
        for record in records:
            unique.setdefault(record.record_id, canonical(record))
        groups: dict[str, list[MeasureRecord]] = {}
        for record in unique.values():
            groups.setdefault(part_folder(record.target, record.task_key), []).append(record)
        files: dict[str, bytes] = {}
        parts: dict[str, tuple[MeasureRecord, ...]] = {}
        for folder, rows in groups.items():
            data = encode(rows)
            name = f"{folder}/{part_name(data)}"
            files[name], parts[name] = data, tuple(rows)
        # Before the records: an older Retune that reads in between is refused, not misled.
        self._write_marker()
        self.blobs.put(files)
        for name, kept in parts.items():
            self._cache.keep(name, kept)

    def scan(self, selection: Selection) -> Iterable[MeasureRecord]:
        """See `RecordStore.scan`: opens only the folders of the target and task."""
        for name in self._names_until_settled(selection):
            for records in self._readable(name, self._cache.records):
                yield from filter(selection.accepts, records)

    def scan_best(self, selection: Selection) -> Iterable[MeasureRecord]:
        """See `RecordStore.scan_best`: footers locate the fastest rows; only those are read."""
        fastest: dict[Key, float] = {}
        outlines: dict[str, Outline | None] = {}
        listed = self._names(selection)
        for name in listed:
            for outline in self._readable(name, self._cache.outline):
                if outline is None:
                    outlines[name] = None
                elif selection.wants(*outline.key):
                    outlines[name] = outline
                    fastest[outline.key] = min(outline.seconds, fastest.get(outline.key, math.inf))
        # Footers give each file's minimum, so only the files with a task's minimum are opened (zone maps).
        names = [n for n, o in outlines.items() if o is None or o.seconds == fastest[o.key] < math.inf]
        winners = [
            record
            for name in names
            for records in self._readable(name, self._cache.fastest)
            for record in records
            if selection.accepts(record)
        ]
        if any(name in self._unreadable for name in names) or self._move(listed, selection):
            return self.scan_best(selection)  # a winner is gone: look for the next
        return winners

    def table(self, selection: Selection = _ALL, columns: Sequence[str] = tuple(SCHEMA.names)) -> pa.Table:
        """The distinct rows of a selection as an Arrow table, in the order of `records`, one for each shape of a trial.
        `columns` are names of `retune.storage.schema.COLUMNS`. Much faster than `records` for many of them.
        """
        limits = {name: value for name, value in asdict(selection).items() if value is not None}
        with_confirmations = limits.pop("confirmations")
        wanted = list(dict.fromkeys((*columns, *_ORDER, *limits, "mutation")))
        load = partial(read_part, self.blobs, columns=wanted)
        parts = [part for name in self._names_until_settled(selection) for part in self._readable(name, load)]
        whole = pa.concat_tables(parts).combine_chunks() if parts else SCHEMA.empty_table().select(wanted)
        for name, value in limits.items():
            whole = whole.filter(pc.equal(whole.column(name), value))
        if not with_confirmations:
            whole = whole.filter(pc.invert(pc.starts_with(whole.column("mutation"), CONFIRMED)))
        whole = distinct_rows(whole.sort_by([(name, "ascending") for name in _ORDER]))
        return whole.select(list(columns))

    def tasks(self) -> list[dict[str, Any]]:
        key = ["target", "device", "threads", "task_key"]
        rows = self.table(Selection(), (*key, "task_name", "status", "seconds", "timestamp", "record_id"))
        rows = distinct_rows(rows, ("record_id",))
        moments = rows.column("timestamp").cast(pa.int64())  # Python has no dates after the year 9999
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", moments)
        rows = rows.append_column("failed", pc.not_equal(rows.column("status"), int(MeasureStatus.OK)))
        # One thread: "last" is defined only for rows in order.
        sums = rows.group_by(key, use_threads=False).aggregate(
            [("task_name", "last"), ("seconds", "min"), ("timestamp", "last"), ("failed", "sum"), ([], "count_all")]
        )
        names = {"task_name_last": "task_name", "count_all": "trials", "failed_sum": "failures"}
        names |= {"seconds_min": "best_seconds", "timestamp_last": "last_timestamp"}
        tasks = [{names.get(name, name): value for name, value in row.items()} for row in sums.to_pylist()]
        tasks = [{**task, "last_timestamp": task["last_timestamp"] / MICROSECOND} for task in tasks]
        return sorted(tasks, key=lambda task: [task[name] for name in key])

    def check(self) -> StoreCheck:
        """Read every file again, past the cache.

        Raises:
            CorruptRecordError: a file is unreadable, or in another task's folder.
            SchemaError: a file was written by a newer Retune.
            StoreError: a folder's files are replaced faster than they are read.
        """
        self._check_marker()
        files = rows = records = 0
        folders: dict[str, list[str]] = {}
        for name in part_names(self.blobs):
            folders.setdefault(name.rpartition("/")[0], []).append(name)
        for folder, names in sorted(folders.items()):
            counts = self._check_folder(folder, names)
            files, rows, records = files + counts[0], rows + counts[1], records + counts[2]
        temporaries = sorted(name for name in self.blobs.files(RECORDS) if name.endswith(TEMPORARY_SUFFIX))
        unreadable = sorted(self.blobs.files(QUARANTINE))
        where = self.blobs.where
        return StoreCheck(files, rows, tuple(map(where, temporaries)), records - rows, tuple(map(where, unreadable)))

    def _check_folder(self, folder: str, names: Sequence[str]) -> tuple[int, int, int]:
        """Numbers of files, records and rows of a folder, listed again when files disappear. Raises: like `check`."""
        for _ in range(_LISTINGS):
            with suppress(FileNotFoundError):  # a compaction has replaced files
                return self._check_files(folder, names)
            names = parts_below(self.blobs, folder)
        raise StoreError(
            f"{self.blobs.where(folder)} cannot be checked: its files are replaced all the time; "
            "check again when no other process works on the store"
        )

    def _check_files(self, folder: str, names: Iterable[str]) -> tuple[int, int, int]:
        ids: set[str] = set()
        files = rows = 0
        for name in names:
            where = self.blobs.where(name)
            records = from_table(read_part(self.blobs, name), where)
            if any(part_folder(r.target, r.task_key) != folder for r in records):
                raise CorruptRecordError(f"{where} holds records of another task than its folder's")
            ids.update(record.record_id for record in records)
            files, rows = files + 1, rows + len(records)
        return files, len(ids), rows

    def add(self, records: Sequence[MeasureRecord]) -> int:
        """Append the records that the store lacks; returns their number. Raises: StoreError."""
        known: set[str] = set()
        for target, key in {(record.target, record.task_key): None for record in records}:
            known.update(
                self.table(Selection(key, target, confirmations=True), ("record_id",)).column("record_id").to_pylist()
            )
        fresh = {record.record_id: record for record in records if record.record_id not in known}
        if fresh:
            self.append(list(fresh.values()))
        return len(fresh)

    def _names(self, selection: Selection) -> list[str]:
        return part_names(self.blobs, selection.target, selection.task_key)

    def _names_until_settled(self, selection: Selection) -> Iterator[str]:
        """The files to read, and replacements of files that disappeared during the reading."""
        read: set[str] = set()
        # A compaction writes the large file before it removes the small files, so a second listing shows the
        # replacement.
        while names := [name for name in self._names(selection) if name not in read]:
            read.update(names)
            yield from names
            if not self._move(names, selection):
                return

    def _move(self, names: Iterable[str], selection: Selection) -> bool:
        """Whether a missing file may have been replaced by another since it was listed."""
        return not set(self._names(selection)).issuperset(name for name in names if name not in self._unreadable)

    def _readable(self, name: str, load: Callable[[str], Loaded]) -> Iterator[Loaded]:
        """The result of `load` for a file, or nothing for an unreadable file, which is quarantined."""
        if name in self._unreadable:
            return
        try:
            loaded = load(name)
        except FileNotFoundError:
            logger.info("%s was moved by another process", self.blobs.where(name))
        except CorruptRecordError as error:
            self._unreadable.add(name)
            self.blobs.quarantine(name, error)
        else:
            yield loaded

    def _check_marker(self) -> bool:
        """Reject a store of a newer Retune; True if it is marked with our version."""
        try:
            version = read_document(self.blobs, MARKER, MARKER_KIND)["schema_version"]
        except FileNotFoundError:
            return False
        except CorruptRecordError as error:  # the next writer rewrites it; every record file has its own version
            self.blobs.quarantine(MARKER, error)
            return False
        return refuse_newer(version, self.blobs.url) == SCHEMA_VERSION

    def _write_marker(self) -> None:
        if not self._marked:
            self._marked = self._check_marker()
        if not self._marked:
            self.blobs.put({MARKER: json.dumps({"schema_version": SCHEMA_VERSION}).encode()})
            self._marked = True
