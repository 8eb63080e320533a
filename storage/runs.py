"""Runs of a store: the ledger, the rounds and the reports.

The ledger gives a new run for a fingerprint, or the unfinished one. A run has one owner at a time.

A round is one line, durable on return: a JSON object in `root/runs/RUN/rounds.jsonl`, which DuckDB and others read
directly; the view `rounds` of `retune.storage.query` has the rounds of all runs. A resumed run may repeat a round: the
last line counts. In an object store every line is an object, since objects do not grow.
"""

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self, cast

from pydantic import Field, TypeAdapter

from retune.compiler.core.errors import CorruptRecordError, StoreError, UnknownFormError
from retune.storage.artifacts import ArtifactStore, key_of
from retune.storage.blob_store import BlobStore, LocalBlobStore, Lock
from retune.storage.documents import REPORT, ROUND, Moment, RunReport, Summary, parse_document, read_document, set_aside
from retune.storage.files import ID, new_id
from retune.storage.store_url import Location, local_folder, open_blob_store

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as the ledger has it; `started`, `resumed`, `completed` are seconds since 1970.

    `precision` is the choice of precisions that the run keeps, see `retune.compiler.tune.precision`; None in float32.
    `horizon` is the moment before which everything in the store was there when the run began. It lies after `started`
    where the clock was set back since something was stored; None until it is known.
    """

    run_id: Annotated[str, Field(pattern=f"^{ID}$")]  # it becomes part of paths
    fingerprint: str
    describe: Mapping[str, Any]
    started: Moment
    resumed: tuple[Moment, ...] = ()
    completed: Moment | None = None
    summary: Summary | None = None
    horizon: Moment | None = None
    precision: Mapping[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        return self.completed is not None


class Run:
    """A run that this process owns until `close`, the end of the `with` block, or its own death."""

    def __init__(self, info: RunInfo, lock: Lock) -> None:
        self.info = info
        self._lock = lock

    @property
    def run_id(self) -> str:
        """The ULID that the run's records carry."""
        return self.info.run_id

    def close(self) -> None:
        """Give the run up; it stays resumable unless it was completed."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RunLedger:
    """One small JSON file per run in `root/runs/`, each replaced atomically and durably; `root` is a folder or a URL.

    A fingerprint has at most one owner at a time, see `retune.storage.blob_store.BlobStore.lock`.
    """

    def __init__(self, root: Path | str) -> None:
        self._blobs = open_blob_store(root)

    def open_or_resume(self, fingerprint: str, describe: Mapping[str, object]) -> Run:
        """Own the newest unfinished run with this fingerprint, or a new one.

        `fingerprint` says what makes two commands the same run; `describe` is kept for people.

        Raises:
            StoreError: another process owns it now, or the ledger cannot be written.
        """
        # Locked by fingerprint, not by run: two equal commands must not both open a new run.
        lock = self._blobs.lock(f"{RUNS}/.{hashlib.sha256(fingerprint.encode()).hexdigest()[:16]}.lock")
        try:
            unfinished = [run for run in self.list() if run.fingerprint == fingerprint and not run.is_complete]
            if unfinished:
                # Ids are ULIDs, so the last of the sorted list is the newest run.
                newest = unfinished[-1]
                info = replace(newest, resumed=(*newest.resumed, time.time()))
            else:
                info = RunInfo(new_id(), fingerprint, dict(describe), time.time())
            self._write(info)
        # Also on Ctrl-C: the lock would outlive this call.
        except BaseException:
            lock.close()
            raise
        return Run(info, lock)

    def complete(self, run_id: str, summary: Mapping[str, object]) -> RunInfo:
        """Mark a run as finished, with what came of it; it will not be resumed.

        Raises:
            StoreError: there is no such run, or the ledger cannot be written.
        """
        info = replace(self.get(run_id), completed=time.time(), summary=cast(Summary, dict(summary)))
        self._write(info)
        return info

    def set_once(self, run_id: str, name: str, value: Any) -> Any:
        """Note a field of a run, its `horizon` or `precision`, unless it is known; return the value that holds from now
        on: a resumed run must replay the same records as before, and must not mix precisions.

        Raises:
            StoreError: there is no such run, or the ledger cannot be written.
        """
        info = self.get(run_id)
        if (known := getattr(info, name)) is not None:
            return known
        self._write(replace(info, **{name: value}))
        return value

    def get(self, run_id: str) -> RunInfo:
        """The run with this id.

        Raises:
            StoreError: there is none.
            CorruptRecordError: its file cannot be read.
        """
        name = f"{RUNS}/{run_id}.json"
        if name not in self._names():
            raise StoreError(f"no run {run_id} in {self._blobs.where(RUNS)}")
        try:
            return self._read(name)
        except FileNotFoundError as error:
            raise StoreError(f"cannot read {self._blobs.where(name)}: it is gone") from error

    def list(self) -> tuple[RunInfo, ...]:
        """Every run, oldest first; a run that cannot be read is left out with a warning, see `set_aside`."""
        runs = []
        for name in self._names():
            with suppress(FileNotFoundError):  # it was removed since it was listed
                try:
                    runs.append(self._read(name))
                except CorruptRecordError as error:
                    set_aside(self._blobs, name, error)
        return tuple(runs)

    def _names(self) -> Sequence[str]:
        parts = (name.split("/") for name in self._blobs.files(RUNS))
        return sorted("/".join(p) for p in parts if len(p) == 2 and p[1].endswith(".json") and not p[1].startswith("."))

    def _write(self, info: RunInfo) -> None:
        try:
            text = json.dumps(asdict(info), indent=2, sort_keys=True)
        except TypeError as error:
            raise StoreError(f"run {info.run_id} cannot be described in JSON: {error}") from error
        self._blobs.put({f"{RUNS}/{info.run_id}.json": text.encode()})

    def _read(self, name: str) -> RunInfo:
        info = read_document(self._blobs, name, RUN)
        # A copied file would show one run twice, and completing it would leave the copy unfinished.
        if f"{RUNS}/{info.run_id}.json" != name:
            raise UnknownFormError(f"{self._blobs.where(name)} says that it is the run {info.run_id}")
        return info


RUN = TypeAdapter(RunInfo)


ROUNDS = "rounds.jsonl"

RoundField = str | int | float | None


def append_round(root: Path | str, run_id: str, row: Mapping[str, RoundField]) -> None:
    """Add the line of one round; `row` must have its number as `round`.

    Raises: StoreError when it cannot be written.
    """
    open_blob_store(root).add_line(_name(run_id), json.dumps({"run_id": run_id, **row}).encode())


def rounds_of(root: Path | str, run_id: str) -> list[dict[str, RoundField]]:
    """The rounds of a run, by number, without a cut-off line."""
    return _rounds(open_blob_store(root), _name(run_id))


def all_rounds(blobs: BlobStore) -> list[dict[str, RoundField]]:
    names = {name[: name.index(ROUNDS) + len(ROUNDS)] for name in blobs.files("runs") if f"/{ROUNDS}" in name}
    return [row for name in sorted(names) for row in _rounds(blobs, name)]


def _rounds(blobs: BlobStore, name: str) -> list[dict[str, RoundField]]:
    rounds: dict[int, dict[str, RoundField]] = {}
    try:
        lines = blobs.lines(name)
    except CorruptRecordError as error:
        blobs.quarantine(name, error)
        return []
    for line in lines:
        try:
            row = parse_document(line, ROUND, blobs.where(name))
        # The last line of a killed writer: the round is repeated when the run is resumed.
        except CorruptRecordError:
            continue
        if isinstance(number := row.get("round"), int):
            # A resumed run may repeat a round: the last line counts.
            rounds[number] = row
    return [rounds[number] for number in sorted(rounds)]


def _name(run_id: str) -> str:
    return f"runs/{run_id}/{ROUNDS}"


logger = logging.getLogger(__name__)


def read_report(home: Location, info: RunInfo, folder: Path | None = None) -> RunReport:
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


def _kept_report(home: Location, info: RunInfo) -> RunReport:
    """The report of another machine's run, if the store is a URL; empty without a report."""
    key = key_of(info.summary)
    try:
        data = ArtifactStore(home).read(key, "report.json") if key else None
        return parse_document(data, REPORT, f"the report of run {info.run_id}") if data else {}
    except CorruptRecordError as error:  # it stays: files under a content key are never moved
        logger.warning("%s", error)
        return {}
