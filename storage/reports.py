"""Reports of finished runs, read from a state folder or a URL, and what the newest of them confirmed for each task."""

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retune.compiler.errors import CorruptRecordError
from retune.storage.artifacts import ArtifactStore, key_of
from retune.storage.blob_store import LocalBlobStore
from retune.storage.documents import REPORT, RunReport, parse_document, read_document, set_aside
from retune.storage.runs import RunInfo, RunLedger
from retune.storage.store_url import Place, local_folder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a run found at its end when it timed the best programs of a task, interleaved, and when that was.

    `record_id` names the program that served, and is empty where the default schedule did. `seconds` are those of a
    call, infinite where another way to compute the same served.
    """

    record_id: str
    seconds: float
    completed: float


def read_report(home: Place, info: RunInfo, folder: Path | None = None) -> RunReport:
    """What a run reported at its end, nothing when it did not come so far or its report is lost; `folder` is where its
    files are, when that is not below `home`. Raises: StoreError.
    """
    return _local_report((folder or local_folder(home) / "runs" / info.run_id) / "report.json") or _kept_report(
        home, info
    )


def confirmed_programs(home: Place, keys: Collection[str], scope: Mapping[str, Any]) -> dict[str, Confirmed]:
    """What the run that confirmed each of these tasks last found. `scope` says which runs count, by the target,
    device and threads that were asked for; None means any. Raises: StoreError.
    """
    found: dict[str, Confirmed] = {}
    missing = set(keys)
    ended = [(info.completed, info) for info in RunLedger(home).list() if info.completed is not None]
    # By their ends: a run that began earlier, or was resumed, may have confirmed later.
    for completed, info in sorted(ended, key=lambda run: run[0], reverse=True):
        if not missing:
            break
        for row in read_report(home, info).get("tasks", ()) if _counts(info.describe, scope) else ():
            if row.task_key in missing:
                seconds = row.best_seconds if row.used else math.inf
                found[row.task_key] = Confirmed(row.record_id, seconds, completed)
                missing.remove(row.task_key)
    return found


def _counts(describe: Mapping[str, Any], scope: Mapping[str, Any]) -> bool:
    return all(value is None or describe.get(name) == value for name, value in scope.items())


def _local_report(path: Path) -> RunReport:
    # The state folder is three levels up (runs/RUN/report.json), where a damaged report's quarantine is.
    blobs, name = LocalBlobStore(path.parents[2]), "/".join(path.parts[-3:])
    try:
        return read_document(blobs, name, REPORT)
    except FileNotFoundError:
        return {}
    except CorruptRecordError as error:
        set_aside(blobs, name, error)
        return {}


def _kept_report(home: Place, info: RunInfo) -> RunReport:
    """The report of a run of another machine, where the store is a URL; nothing when there is none."""
    key = key_of(info.summary)
    try:
        data = ArtifactStore(home).read(key, "report.json") if key else None
        return parse_document(data, REPORT, f"the report of run {info.run_id}") if data else {}
    except CorruptRecordError as error:  # it stays: what has a key of content is never moved
        logger.warning("%s", error)
        return {}
