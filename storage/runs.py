"""In: a run's fingerprint. Out: a new run, or the unfinished one. Always: one owner a run."""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from compiler.errors import CorruptRecordError, StoreError
from storage.files import make_folder, new_id, publish, quarantine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run as the ledger has it; `started`, `resumed`, `completed` are seconds since 1970."""

    run_id: str
    fingerprint: str
    describe: Mapping[str, Any]
    started: float
    resumed: tuple[float, ...] = ()
    completed: float | None = None
    summary: Mapping[str, Any] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end; if not, it can be resumed."""
        return self.completed is not None


class Run:
    """A run that this process owns until `close`, the end of the `with` block, or its own death."""

    def __init__(self, info: RunInfo, lock: IO[str]) -> None:
        self.info = info
        self._lock = lock

    @property
    def run_id(self) -> str:
        """The ULID that the run's records carry."""
        return self.info.run_id

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier process began it."""
        return bool(self.info.resumed)

    def close(self) -> None:
        """Give the run up; it stays resumable unless it was completed."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RunLedger:
    """One small JSON file per run in `root/runs/`, each replaced atomically and durably.

    A fingerprint has at most one owner at a time: an advisory lock that the kernel drops when the
    process dies, however it dies. Processes started with exec do not inherit it; forked ones would.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self._folder = self.root / "runs"

    def open_or_resume(self, fingerprint: str, describe: Mapping[str, Any]) -> Run:
        """Own the newest unfinished run with this fingerprint, or a new one.

        `fingerprint` says what makes two commands the same run; `describe` is kept for people.

        Raises:
            StoreError: another process owns it now, or the ledger cannot be written.
        """
        lock = self._lock(fingerprint)
        try:
            unfinished = [run for run in self.list() if run.fingerprint == fingerprint and not run.is_complete]
            if unfinished:
                newest = unfinished[-1]
                info = replace(newest, resumed=(*newest.resumed, time.time()))
            else:
                info = RunInfo(new_id(), fingerprint, dict(describe), time.time())
            self._write(info)
        except BaseException:
            lock.close()
            raise
        return Run(info, lock)

    def complete(self, run_id: str, summary: Mapping[str, Any]) -> RunInfo:
        """Mark a run as finished, with what came of it; it will not be resumed.

        Raises:
            StoreError: there is no such run, or the ledger cannot be written.
        """
        info = replace(self.get(run_id), completed=time.time(), summary=dict(summary))
        self._write(info)
        return info

    def get(self, run_id: str) -> RunInfo:
        """The run with this id.

        Raises:
            StoreError: there is none.
            CorruptRecordError: its file cannot be read.
        """
        known = {path.stem: path for path in self._paths()}
        if run_id not in known:
            raise StoreError(f"no run {run_id} in {self._folder}")
        return _read(known[run_id])

    def list(self) -> tuple[RunInfo, ...]:
        """Every run, oldest first; a file that cannot be read is set aside with a warning."""
        runs = []
        for path in self._paths():
            try:
                runs.append(_read(path))
            except CorruptRecordError as error:
                quarantine(path, self.root, error)
        return tuple(runs)

    def _paths(self) -> tuple[Path, ...]:
        return tuple(sorted(self._folder.glob("[!.]*.json")))

    def _write(self, info: RunInfo) -> None:
        try:
            text = json.dumps(asdict(info), indent=2, sort_keys=True)
        except TypeError as error:
            raise StoreError(f"run {info.run_id} cannot be described in JSON: {error}") from error
        publish({self._folder / f"{info.run_id}.json": text.encode()})

    def _lock(self, fingerprint: str) -> IO[str]:
        name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        path = self._folder / f".{name}.lock"
        try:
            make_folder(self._folder)
            file = path.open("a+")
        except OSError as error:
            raise StoreError(f"cannot use {path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        except BlockingIOError:
            file.seek(0)
            owner = file.read() or "unknown"
            file.close()
            raise StoreError(
                f"process {owner} is working on this run already: wait for it, stop it, or change an option"
            ) from None
        except OSError as error:
            file.close()
            raise StoreError(f"cannot lock {path}: {error.strerror}") from error
        return file


def _read(path: Path) -> RunInfo:
    try:
        fields = json.loads(path.read_bytes())
        return RunInfo(**{**fields, "resumed": tuple(fields["resumed"])})
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecordError(f"{path} cannot be read: {error}") from error
