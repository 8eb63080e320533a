"""`RecordStore`: the interface of record stores and its guarantees, and the queries by task and device."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from retune.compiler.measure.record import MeasureRecord


@dataclass(frozen=True, slots=True)
class Selection:
    """The records of a query; None means any. Without `confirmations` only trials are selected."""

    task_key: str | None = None
    target: str | None = None
    device: str | None = None
    threads: int | None = None
    run_id: str | None = None
    confirmations: bool = False

    def accepts(self, record: MeasureRecord) -> bool:
        return (
            (self.run_id is None or record.run_id == self.run_id)
            and (self.confirmations or not record.is_confirmation)
            and self.wants(record.task_key, record.target, record.device, record.threads)
        )

    def wants(self, task_key: str, target: str, device: str, threads: int) -> bool:
        """Whether records of this task and device may belong to the selection."""
        return (
            (self.task_key is None or task_key == self.task_key)
            and (self.target is None or target == self.target)
            and (self.device is None or device == self.device)
            and (self.threads is None or threads == self.threads)
        )


class RecordStore(ABC):
    """Every trial ever measured, by many writers, for good.

    Promises of every store, tested once for all of them:

    * `append` returns when the records are durable. Until then a reader sees, for each task, all of them or none. A
      process killed at any moment loses no acknowledged record.
    * Records are only added, and never change.
    * Any number of processes and threads append and read at once, without locks.
    * An id names one record. Appending it again, here or in another process, shows it once, so a retried append is
      harmless.
    * The order of an answer depends on the records alone: by timestamp, round, record id.
    * Records come back as `retune.storage.schema.canonical` makes them: times to the microsecond.
    * A store can be pickled; unpickled, it opens the same records.
    """

    @abstractmethod
    def append(self, records: Sequence[MeasureRecord]) -> None:
        """Store records, in one atomic file per task.

        Raises:
            StoreError: a record is not storable (then none is stored), or the store refused.
        """

    @abstractmethod
    def scan(self, selection: Selection) -> Iterable[MeasureRecord]:
        """Every record of the selection, in any order; ids may repeat."""

    def scan_best(self, selection: Selection) -> Iterable[MeasureRecord]:
        """At least the fastest of each task, target, device, threads; `run_id` must be None."""
        return self.scan(selection)

    def records(
        self,
        task_key: str | None = None,
        target: str | None = None,
        device: str | None = None,
        run_id: str | None = None,
        threads: int | None = None,
        *,
        confirmations: bool = False,
    ) -> list[MeasureRecord]:
        """The trials that match every given argument, with the `confirmations` if asked; by timestamp, round and id."""
        unique: dict[str, MeasureRecord] = {}
        for record in self.scan(Selection(task_key, target, device, threads, run_id, confirmations)):
            # A retried append, or an interrupted compaction, leaves an id in two files.
            unique.setdefault(record.record_id, record)
        return sorted(unique.values(), key=lambda r: (r.timestamp, r.round, r.record_id))

    def best(
        self, task_key: str, target: str | None = None, device: str | None = None, threads: int | None = None
    ) -> MeasureRecord | None:
        """The fastest successful record of a task, the earliest of ties, or None."""
        candidates = self.scan_best(Selection(task_key, target, device, threads, confirmations=True))
        return min((r for r in candidates if math.isfinite(r.seconds)), key=speed, default=None)

    def best_per_task(
        self, target: str | None = None, device: str | None = None, threads: int | None = None
    ) -> dict[str, MeasureRecord]:
        """The fastest successful record of every task with a success, by task key."""
        best: dict[str, MeasureRecord] = {}
        for record in self.scan_best(Selection(None, target, device, threads, confirmations=True)):
            if math.isfinite(record.seconds):
                rival = best.get(record.task_key)
                if rival is None or speed(record) < speed(rival):
                    best[record.task_key] = record
        return dict(sorted(best.items()))

    @abstractmethod
    def tasks(self) -> list[dict[str, Any]]:
        """A row for every measured task on a target, device and thread count, sorted by these and by key: with these
        `task_name`, `trials`, `failures`, `best_seconds`, None before a success, and `last_timestamp`.
        """


def speed(record: MeasureRecord) -> tuple[float, float, str]:
    """The order of "best": fewest seconds, then earliest."""
    # The id breaks the last tie, so that every store and every reader names the same winner.
    return record.seconds, record.timestamp, record.record_id
