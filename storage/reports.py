"""Reports of finished runs, read from a state folder or a URL."""

import logging
from pathlib import Path

from retune.compiler.core.errors import CorruptRecordError
from retune.storage.artifacts import ArtifactStore, key_of
from retune.storage.blob_store import LocalBlobStore
from retune.storage.documents import REPORT, RunReport, parse_document, read_document, set_aside
from retune.storage.runs import RunInfo
from retune.storage.store_url import Place, local_folder

logger = logging.getLogger(__name__)


def read_report(home: Place, info: RunInfo, folder: Path | None = None) -> RunReport:
    """The report of a run, empty if the run did not finish or the report is lost; `folder` has its files if they are
    not below `home`. Raises: StoreError.
    """
    return _local_report((folder or local_folder(home) / "runs" / info.run_id) / "report.json") or _kept_report(
        home, info
    )


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
