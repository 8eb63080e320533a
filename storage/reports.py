"""Reports of finished runs, read from a state folder or a URL, and what those of earlier versions confirmed."""

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from retune.compiler.core.errors import CorruptRecordError
from retune.storage.artifacts import ArtifactStore, key_of
from retune.storage.blob_store import LocalBlobStore
from retune.storage.documents import REPORT, RunReport, parse_document, read_document, set_aside
from retune.storage.runs import RunInfo, RunLedger
from retune.storage.store_url import Place, local_folder

logger = logging.getLogger(__name__)


Confirmed = tuple[str, float, float]
"""The record of a program that serves, empty for the default schedule, its seconds, infinite where another way to
compute the same served, and when they were confirmed.
"""


def read_report(home: Place, info: RunInfo, folder: Path | None = None) -> RunReport:
    """The report of a run, empty if the run did not finish or the report is lost; `folder` has its files if they are
    not below `home`. Raises: StoreError.
    """
    return _local_report((folder or local_folder(home) / "runs" / info.run_id) / "report.json") or _kept_report(
        home, info
    )


def confirmed_by_reports(home: Place, keys: Collection[str], scope: Mapping[str, Any]) -> dict[str, Confirmed]:
    """The newest confirmation of each of these tasks by a run of an earlier version, which stored it in its report
    alone. `scope` selects the runs by the requested target, device and threads; None means any. Raises: StoreError.
    """
    confirmed: dict[str, Confirmed] = {}
    ended = [(info.completed, info) for info in RunLedger(home).list() if info.completed is not None]
    # By their ends: a run that began earlier, or was resumed, may have confirmed later.
    for completed, info in sorted(ended, key=lambda run: run[0]):
        report = read_report(home, info) if _counts(info.describe, scope) else {}
        # Later versions store confirmations as records, and no kernels beside the tasks of a report.
        for row in report.get("tasks", ()) if "kernels" in report.get("coverage", {"kernels": []}) else ():
            if row.task_key in keys:
                confirmed[row.task_key] = row.record_id, row.best_seconds if row.used else math.inf, completed
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
