"""Reports of finished runs, read from a state folder or a URL, and the newest confirmation of each task."""

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
    """A run's final, interleaved timing of the best programs of a task, with its time.

    `record_id` names the fastest program, empty for the default schedule. `seconds` are per call, infinite if an
    alternative computation was faster.
    """

    record_id: str
    seconds: float
    completed: float


def read_report(home: Place, info: RunInfo, folder: Path | None = None) -> RunReport:
    """The report of a run, empty if the run did not finish or the report is lost; `folder` has its files if they are
    not below `home`. Raises: StoreError.
    """
    return _local_report((folder or local_folder(home) / "runs" / info.run_id) / "report.json") or _kept_report(
        home, info
    )


def confirmed_programs(home: Place, keys: Collection[str], scope: Mapping[str, Any]) -> dict[str, Confirmed]:
    """The newest confirmation of each of these tasks. `scope` selects the runs by the requested target, device and
    threads; None means any. Raises: StoreError.
    """
    confirmed: dict[str, Confirmed] = {}
    missing = set(keys)
    ended = [(info.completed, info) for info in RunLedger(home).list() if info.completed is not None]
    # By their ends: a run that began earlier, or was resumed, may have confirmed later.
    for completed, info in sorted(ended, key=lambda run: run[0], reverse=True):
        if not missing:
            break
        for row in read_report(home, info).get("tasks", ()) if _counts(info.describe, scope) else ():
            if row.task_key in missing:
                seconds = row.best_seconds if row.used else math.inf
                confirmed[row.task_key] = Confirmed(row.record_id, seconds, completed)
                missing.remove(row.task_key)
    return confirmed


def _counts(describe: Mapping[str, Any], scope: Mapping[str, Any]) -> bool:
    return all(value is None or describe.get(name) == value for name, value in scope.items())


def _local_report(path: Path) -> RunReport:
    # The state folder is three levels up (runs/RUN/report.json), and has the quarantine.
    blobs, name = LocalBlobStore(path.parents[2]), "/".join(path.parts[-3:])
    try:
        return read_document(blobs, name, REPORT)
    except FileNotFoundError:
        return {}
    except CorruptRecordError as error:
        set_aside(blobs, name, error)
        return {}


def _kept_report(home: Place, info: RunInfo) -> RunReport:
    """The report of another machine's run, if the store is a URL; empty without one."""
    key = key_of(info.summary)
    try:
        data = ArtifactStore(home).read(key, "report.json") if key else None
        return parse_document(data, REPORT, f"the report of run {info.run_id}") if data else {}
    except CorruptRecordError as error:  # it stays: files under a content key are never moved
        logger.warning("%s", error)
        return {}
