"""Compaction: merges the small files of a store into few large ones, and deletes expired records on request.

No reader ever misses a record that stays. The large file is written atomically and durably before the small ones are
removed. In between, and after a crash in between, both exist: readers deduplicate records, and the next compaction
removes the leftovers. A reader that misses a small file lists the folder again and finds the large file.
"""

import contextlib
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retune.compiler.core.errors import CorruptRecordError, OptionError
from retune.compiler.measure.record import CONFIRMED
from retune.storage.blob_store import BlobStore
from retune.storage.layout import part_names
from retune.storage.parts import BEST_KEY, Key, encode_compacted, part_name, read_outline, read_part
from retune.storage.runs import RunLedger
from retune.storage.schema import distinct_rows
from retune.storage.store_url import open_blob_store

# A query pays for each file it opens; below so few files a rewrite gains less than it costs.
LEAST_PARTS = 8
"""A task with fewer files is not rewritten."""

# Rewriting costs as much as the file is large: a full file is never read again for a few more rows.
FULL_ROWS = 500_000
"""Maximal rows of a file; full files stay untouched."""

# The fastest first, so that `best` reads only the first row group of a compacted file.
_ORDER = [
    ("seconds", "ascending"),
    ("timestamp", "ascending"),
    ("round", "ascending"),
    ("record_id", "ascending"),
    ("sizes", "ascending"),
]

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The records that a compaction keeps. Records of unfinished runs stay too, for their resumption."""

    best: int = 1
    """Number of fastest records kept of every task, target, device and thread count; at least one."""
    days: float = 0.0
    """Records younger than this stay."""

    def __post_init__(self) -> None:
        if self.best < 1:
            raise OptionError(f"the best record of a task always stays, so keep at least 1, not {self.best}")
        if not self.days >= 0:
            raise OptionError(f"records can be kept for 0 days or more, not {self.days}")

    @classmethod
    def of(cls, best: int | None, days: float | None) -> Self | None:
        """The retention for these options; None without any: everything stays."""
        if best is None and days is None:
            return None
        return cls(1 if best is None else best, 0.0 if days is None else days)

    def keeps(self, table: pa.Table, unfinished: Collection[str], now: float) -> pa.Table:
        """Mask of the rows of a table that stay, with all rows of a trial; its rows are of one task and device.

        The newest confirmation stays. Trials with only a short measurement count as slower than all others, as when a
        network is compiled.
        """
        ids = table.column("record_id").to_numpy(zero_copy_only=False)
        _, first, trial = np.unique(ids, return_index=True, return_inverse=True)
        stays: pa.Table = self._keeps_trials(table.take(pa.array(first)), unfinished, now)[trial]
        return stays

    def _keeps_trials(self, table: pa.Table, unfinished: Collection[str], now: float) -> pa.Table:
        """Mask of the rows that stay of a table with one row a trial."""
        seconds = table.column("seconds").fill_null(math.inf).to_numpy()
        confirmed = pc.starts_with(table.column("mutation"), CONFIRMED).to_numpy()
        looked_at = table.column("censored").to_numpy()
        # The last key sorts first: confirmations last, then failures, trials with one short measurement, and by time.
        ranked = np.lexsort((seconds, looked_at, np.isinf(seconds), confirmed))
        fast = np.zeros(table.num_rows, dtype=bool)
        fast[ranked[: self.best]] = True
        # The fastest row stays even if its measurement was short: views of the best would change otherwise.
        fast[np.argmin(seconds)] = True
        moments = pc.cast(table.column("timestamp"), pa.int64()).to_numpy() / 1e6
        runs = np.isin(table.column("run_id").to_numpy().astype(str), np.array(sorted(unfinished), dtype=str))
        # The newest confirmation says what serves; its row has the whole program.
        serves = confirmed & (moments == np.max(moments, where=confirmed, initial=-math.inf))
        return (fast & np.isfinite(seconds)) | serves | runs | (moments > now - self.days * _DAY)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction: numbers of files merged and written, of the rows in these, and of rows deleted."""

    files_before: int
    files_after: int
    rows: int
    dropped: int = 0


def compact(
    root: Path | str,
    least_parts: int = LEAST_PARTS,
    retention: Retention | None = None,
    now: float | None = None,
) -> Compaction:
    """Merge the files of every task, target, device and thread count with at least `least_parts` files.

    Any number of processes may read, append and compact meanwhile. Unreadable files, and files of several devices,
    stay. With a `retention`, files with rows that need not stay at `now`, in seconds since 1970 (default: the current
    time), are rewritten whatever their number and size.
    Raises: StoreError when the store refuses; completed merges stay.
    """
    blobs = open_blob_store(root)
    groups: dict[tuple[str, Key], list[str]] = {}
    for name in part_names(blobs):
        with contextlib.suppress(CorruptRecordError, FileNotFoundError):
            key, rows = _kind(blobs, name)
            if key is not None and (rows < FULL_ROWS or retention):
                groups.setdefault((name.rpartition("/")[0], key), []).append(name)
    done = Compaction(0, 0, 0)
    # A resumed run replays its records: without them it would propose other candidates than before.
    unfinished = {run.run_id for run in RunLedger(root).list() if not run.is_complete} if retention else set()
    moment = time.time() if now is None else now
    for (folder, _), names in groups.items():
        if len(names) >= least_parts or retention:
            joined = _Merged.read(blobs, folder, names)
            if retention is not None:
                joined.drop(retention, unfinished, moment)
            if len(names) >= least_parts or joined.dropped:
                done = joined.put(blobs, done)
    return done


def _kind(blobs: BlobStore, name: str) -> tuple[Key | None, int]:
    """The task and device of all rows of a file, None if they differ, and the number of rows."""
    outline = read_outline(blobs, name)
    if outline is not None:
        return outline.key, outline.rows
    rows = read_part(blobs, name, BEST_KEY)  # an older version's footer has no key
    keys = rows.group_by(list(BEST_KEY)).aggregate([]).to_pylist()
    if len(keys) != 1:
        return None, rows.num_rows
    (key,) = keys
    return (key["task_key"], key["target"], key["device"], key["threads"]), rows.num_rows


class _Merged:
    """The merged rows of files of one task and device, and the names of those files."""

    def __init__(self, folder: str, names: Sequence[str], table: pa.Table) -> None:
        self._folder, self._names, self._table = folder, names, table
        self.dropped = 0

    @classmethod
    def read(cls, blobs: BlobStore, folder: str, names: Sequence[str]) -> "_Merged":
        """Every record once, the fastest first; missing or damaged files are skipped."""
        tables, read = [], []
        for name in names:
            with contextlib.suppress(CorruptRecordError, FileNotFoundError):
                tables.append(read_part(blobs, name))
                read.append(name)
        if not tables:
            return cls(folder, (), None)
        return cls(folder, read, distinct_rows(pa.concat_tables(tables)).sort_by(_ORDER))

    def drop(self, retention: Retention, unfinished: Collection[str], now: float) -> None:
        """Drop the rows that need not stay."""
        if self._table is not None:
            stays = retention.keeps(self._table, unfinished, now)
            self.dropped = int(np.count_nonzero(~stays))
            self._table = self._table.filter(pa.array(stays))

    def put(self, blobs: BlobStore, done: Compaction) -> Compaction:
        """Write the rows into as few files as possible and remove the others; returns the updated `done`."""
        if self._table is None:
            return done
        files: dict[str, bytes] = {}
        for start in range(0, self._table.num_rows, FULL_ROWS):
            data = encode_compacted(self._table.slice(start, FULL_ROWS))
            files[f"{self._folder}/{part_name(data)}"] = data
        # First the new files, then the removal: a crash in between leaves duplicates, never a gap.
        blobs.put(files)
        blobs.remove(self._names)
        return Compaction(
            done.files_before + len(self._names),
            done.files_after + len(files),
            done.rows + self._table.num_rows,
            done.dropped + self.dropped,
        )
