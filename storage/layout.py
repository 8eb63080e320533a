"""In: a root, a target, a task. Out: where its files are. Always: paths hold safe letters only.

    root/store.json                        newest schema version that wrote here
    root/records/target_slug=<slug>/workload=<hash>/<ulid>-<checksums>.parquet
                                           one file per append and task
    root/quarantine/records/...            files that could not be read back
    root/runs/<ulid>.json                  the run ledger
    root/runs/<ulid>/rounds.jsonl          how every round of a run went
    root/lessons/<place>/<ulid>.npz        what cost models learned, for later runs

The folder key is `target_slug`, not `target`: the full text is a column, and a key of the same name
would replace it in DuckDB and clash with it in pandas and Polars.
"""

import hashlib
import os
import re
from pathlib import Path

RECORDS = "records"
SUFFIX = ".parquet"
_SLUG = "target_slug="
_WORKLOAD = "workload="


def target_slug(target: str) -> str:
    """A readable folder name for a target, distinct for distinct texts."""
    words = re.sub(r"[^a-z0-9]+", "-", target.lower()).strip("-")[:48]
    return f"{words}-{_digest(target, 8)}"


def workload_hash(task_key: str) -> str:
    """Sixteen letters that stand for a task key; the first keeps tools from reading a number."""
    return f"w{_digest(task_key, 15)}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:length]


def part_folder(root: Path, target: str, task_key: str) -> Path:
    """The folder of all files of one task on one target."""
    folder = f"{_SLUG}{target_slug(target)}"
    return root / RECORDS / folder / f"{_WORKLOAD}{workload_hash(task_key)}"


def part_paths(root: Path, target: str | None = None, task_key: str | None = None) -> list[Path]:
    """The record files that may hold rows of `target` and `task_key` (None: any), oldest first."""
    slug = None if target is None else f"{_SLUG}{target_slug(target)}"
    workload = None if task_key is None else f"{_WORKLOAD}{workload_hash(task_key)}"
    found = [
        os.path.join(folder, name)
        for slug_folder in _folders(os.path.join(root, RECORDS), _SLUG, slug)
        for folder in _folders(slug_folder, _WORKLOAD, workload)
        for name in _names(folder)
        if name.endswith(SUFFIX) and not name.startswith(".")
    ]
    return [Path(path) for path in sorted(found, key=lambda path: (os.path.basename(path), path))]


def _folders(parent: str, prefix: str, only: str | None) -> list[str]:
    names = _names(parent) if only is None else [only]
    return [os.path.join(parent, name) for name in names if name.startswith(prefix)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
