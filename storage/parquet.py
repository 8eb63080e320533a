"""In: records. Out: Parquet files any tool can query. Always: `RecordStore`'s promises hold."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from compiler.errors import CorruptRecordError, StoreError
from compiler.measure.record import SCHEMA_VERSION, MeasureRecord
from storage.base import RecordStore, Selection
from storage.codec import canonical, from_table
from storage.files import TEMPORARY_SUFFIX, publish, quarantine
from storage.layout import RECORDS, part_folder, part_paths
from storage.parts import Key, Outline, PartCache, encode, part_name, read_part
from storage.schema import refuse_newer

MARKER = "store.json"

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What a full check found: readable files, their rows, temporaries left by killed writers."""

    files: int
    rows: int
    temporaries: tuple[Path, ...]


class ParquetRecordStore(RecordStore):
    """Append-only Parquet files under `root`, laid out as `storage.layout` says.

    A file that cannot be read back is moved to `root/quarantine/` with a warning that names it, and
    the query goes on without it; `check` raises instead.

    Raises:
        StoreError: `root` is not a folder.
        SchemaError: a newer Retune has written to the store.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self._cache = PartCache()
        self._unreadable: set[Path] = set()
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"{self.root} is not a folder, so it cannot hold a record store")
        self._marked = self._check_marker()

    def __reduce__(self) -> tuple[type["ParquetRecordStore"], tuple[Path]]:
        return type(self), (self.root,)

    def append(self, records: Sequence[MeasureRecord]) -> None:
        """See `RecordStore.append`: one file per target and task, fsynced with its folders."""
        unique: dict[str, MeasureRecord] = {}
        for record in records:
            unique.setdefault(record.record_id, canonical(record))
        groups: dict[Path, list[MeasureRecord]] = {}
        for record in unique.values():
            folder = part_folder(self.root, record.target, record.task_key)
            groups.setdefault(folder, []).append(record)
        files: dict[Path, bytes] = {}
        parts: dict[Path, tuple[MeasureRecord, ...]] = {}
        for folder, rows in groups.items():
            data = encode(rows)
            path = folder / part_name(data)
            files[path], parts[path] = data, tuple(rows)
        self._write_marker()
        publish(files)
        for path, kept in parts.items():
            self._cache.keep(path, kept)

    def scan(self, selection: Selection) -> Iterable[MeasureRecord]:
        """See `RecordStore.scan`: opens only the folders that the target and task allow."""
        read: set[Path] = set()
        while paths := [path for path in self._paths(selection) if path not in read]:
            read.update(paths)
            for path in paths:
                for records in self._readable(path, self._cache.records):
                    yield from filter(selection.accepts, records)
            if not self._moved(paths):
                return

    def scan_best(self, selection: Selection) -> Iterable[MeasureRecord]:
        """See `RecordStore.scan_best`: footers tell where the fastest rows are; only those are read."""
        fastest: dict[Key, float] = {}
        outlines: dict[Path, Outline | None] = {}
        listed = self._paths(selection)
        for path in listed:
            for outline in self._readable(path, self._cache.outline):
                if outline is None:
                    outlines[path] = None
                elif selection.wants(*outline.key):
                    outlines[path] = outline
                    fastest[outline.key] = min(outline.seconds, fastest.get(outline.key, math.inf))
        paths = [p for p, o in outlines.items() if o is None or o.seconds == fastest[o.key] < math.inf]
        found = [
            record
            for path in paths
            for records in self._readable(path, self._cache.fastest)
            for record in records
            if selection.accepts(record)
        ]
        if any(path in self._unreadable for path in paths) or self._moved(listed):
            return self.scan_best(selection)  # a winner is gone: look for the next
        return found

    def check(self) -> StoreCheck:
        """Read every file again, past the cache.

        Raises:
            CorruptRecordError: a file cannot be read back, or lies in another task's folder.
            SchemaError: a file was written by a newer Retune.
        """
        self._check_marker()
        files = rows = 0
        for path in part_paths(self.root):
            records = from_table(read_part(path), str(path))
            if any(part_folder(self.root, r.target, r.task_key) != path.parent for r in records):
                raise CorruptRecordError(f"{path} holds records of another task than its folder's")
            files += 1
            rows += len(records)
        temporaries = sorted((self.root / RECORDS).rglob(f".*{TEMPORARY_SUFFIX}"))
        return StoreCheck(files, rows, tuple(temporaries))

    def _paths(self, selection: Selection) -> list[Path]:
        return part_paths(self.root, selection.target, selection.task_key)

    def _moved(self, paths: Iterable[Path]) -> bool:
        """Whether a file is gone that can have been replaced by another one since it was listed."""
        return any(path not in self._unreadable and not path.exists() for path in paths)

    def _readable(self, path: Path, load: Callable[[Path], Loaded]) -> Iterator[Loaded]:
        """What `load` makes of a file, or nothing if the file is unreadable, which is seen to here."""
        if path in self._unreadable:
            return
        try:
            loaded = load(path)
        except FileNotFoundError:
            logger.info("%s was moved by another process", path)
        except CorruptRecordError as error:
            self._unreadable.add(path)
            quarantine(path, self.root, error)
        else:
            yield loaded

    def _check_marker(self) -> bool:
        """Refuse a store that a newer Retune wrote to; True if it is marked with our version."""
        marker = self.root / MARKER
        try:
            version = json.loads(marker.read_bytes())["schema_version"]
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot read {marker}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecordError(f"{marker} cannot be read: delete it, it is written again") from error
        return refuse_newer(int(version), str(self.root)) == SCHEMA_VERSION

    def _write_marker(self) -> None:
        if not self._marked:
            self._marked = self._check_marker()
        if not self._marked:
            publish({self.root / MARKER: json.dumps({"schema_version": SCHEMA_VERSION}).encode()})
            self._marked = True
