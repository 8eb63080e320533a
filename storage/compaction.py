"""In: a store of many small files. Out: the same records in few large ones. Always: no reader ever misses a record.

The large file is published, durable, before the small ones are removed. In between, and after a crash in between, both
are there: readers show a record once, whatever file it is in, and the next compaction removes what is left over. A
reader that finds a small file gone lists the folder again and comes upon the large one.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compiler.errors import CorruptRecordError, StoreError
from storage.files import publish, sync_folder
from storage.layout import part_paths
from storage.parts import Key, encode_compacted, part_name, read_outline, read_part

LEAST_PARTS = 8
"""Fewer files of a task than this are not worth a rewrite."""

FULL_ROWS = 500_000
"""A file of so many rows is left as it is, and none is made with more."""

_ORDER = [("seconds", "ascending"), ("timestamp", "ascending"), ("round", "ascending"), ("record_id", "ascending")]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done: how many files became how many, and the rows in these."""

    files_before: int
    files_after: int
    rows: int


def compact(root: Path | str, least_parts: int = LEAST_PARTS) -> Compaction:
    """Join the files of every task, target, device and thread count that has at least `least_parts` of them.

    Any number of processes may read, append and compact meanwhile. Files that cannot be read, or whose rows are of
    several devices, are left alone.
    Raises: StoreError when the medium refuses; what was joined until then stays joined.
    """
    groups: dict[tuple[Path, Key], list[Path]] = {}
    for path in part_paths(Path(root).absolute()):
        with contextlib.suppress(CorruptRecordError, FileNotFoundError):
            outline = read_outline(path)
            if outline is not None and outline.rows < FULL_ROWS:
                groups.setdefault((path.parent, outline.key), []).append(path)
    before = after = rows = 0
    for (folder, _), paths in groups.items():
        if len(paths) >= least_parts:
            made, count = _join(folder, paths)
            before, after, rows = before + len(paths), after + made, rows + count
    return Compaction(before, after, rows)


def _join(folder: Path, paths: Sequence[Path]) -> tuple[int, int]:
    """Replace the files by as few as possible; how many these are, and their rows."""
    tables, read = [], []
    for path in paths:
        with contextlib.suppress(CorruptRecordError, FileNotFoundError):
            tables.append(read_part(path))
            read.append(path)
    if not tables:
        return 0, 0
    table = _unique(pa.concat_tables(tables)).sort_by(_ORDER)
    files: dict[Path, bytes] = {}
    for start in range(0, table.num_rows, FULL_ROWS):
        data = encode_compacted(table.slice(start, FULL_ROWS))
        files[folder / part_name(data)] = data
    publish(files)
    try:
        for path in read:
            path.unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise StoreError(f"cannot remove {error.filename or folder}: {error.strerror}") from error
    return len(files), table.num_rows


def _unique(table: Any) -> Any:
    """The rows with the first of every record id."""
    _, first = np.unique(table.column("record_id").to_numpy(zero_copy_only=False), return_index=True)
    return table if len(first) == table.num_rows else table.take(pa.array(np.sort(first)))
