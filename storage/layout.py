"""Layout of a state folder: the paths of the files of a target and a task. Path names consist of safe characters.

    root/store.json                        newest schema version that wrote here
    root/records/target_slug=<slug>/workload=<hash>/<ulid>-<checksums>.parquet
                                           one file per append and task
    root/quarantine/records/...            files that could not be read back
    root/runs/<ulid>.json                  the run ledger
    root/runs/<ulid>/rounds.jsonl          one line per round of a run
    root/lessons/<place>/<version>/<ulid>.npz
                                           training data of cost models, for later runs
    root/artifacts/<key>/...               compiled networks and other artifacts

The partition key is `target_slug`, not `target`: the full string is a column, and a key of the same name would replace
it in DuckDB and clash with it in pandas and Polars.
"""

import hashlib
import re

from retune.storage.blob_store import BlobStore

RECORDS = "records"
SUFFIX = ".parquet"
_SLUG = "target_slug="
_WORKLOAD = "workload="


def target_slug(target: str) -> str:
    """A readable folder name for a target, distinct for distinct strings."""
    # Shortened for people and for paths of 255 bytes; the hash keeps targets of equal beginnings apart.
    words = re.sub(r"[^a-z0-9]+", "-", target.lower()).strip("-")[:48]
    return f"{words}-{_digest(target, 8)}"


def workload_hash(task_key: str) -> str:
    """Sixteen letters for a task key; the first keeps tools from reading a number."""
    # 60 bits: by the birthday bound a collision is likely only near 2^30 tasks; a column holds the whole key anyway.
    return f"w{_digest(task_key, 15)}"


def _digest(text: str, length: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:length]


def part_folder(target: str, task_key: str) -> str:
    return f"{RECORDS}/{_SLUG}{target_slug(target)}/{_WORKLOAD}{workload_hash(task_key)}"


def part_names(blobs: BlobStore, target: str | None = None, task_key: str | None = None) -> list[str]:
    """The record files that may hold rows of `target` and `task_key` (None: any), oldest first."""
    workload = _WORKLOAD if task_key is None else f"{_WORKLOAD}{workload_hash(task_key)}"
    folder = RECORDS
    if target is not None:
        folder += f"/{_SLUG}{target_slug(target)}" + (f"/{workload}" if task_key is not None else "")
    names = parts_below(blobs, folder)
    return names if task_key is None else [name for name in names if name.split("/")[-2] == workload]


def parts_below(blobs: BlobStore, folder: str) -> list[str]:
    """The record files below `RECORDS`, or in one of its folders, oldest first."""
    parts = []
    for name in blobs.files(folder):
        _, *folders, base = name.split("/")
        # Names that begin with a dot are temporaries of active writers.
        is_part = base.endswith(SUFFIX) and not base.startswith(".") and len(folders) == 2
        if is_part and folders[0].startswith(_SLUG) and folders[1].startswith(_WORKLOAD):
            parts.append((base, name))
    # File names begin with a ULID, so sorting by name sorts by time across folders.
    return [name for _, name in sorted(parts)]
