"""In-memory record store: the reference that other stores are compared with."""

import math
from collections.abc import Iterable, Sequence

from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.storage.base import HistoryPoint, RecordStore, Selection, TaskSummary
from retune.storage.codec import canonical, from_table, to_table


class MemoryRecordStore(RecordStore):
    """Records by their id."""

    def __init__(self) -> None:
        self._by_id: dict[str, MeasureRecord] = {}

    def append(self, records: Sequence[MeasureRecord]) -> None:
        """See `RecordStore.append`; a record goes through the codec, as in any other store."""
        for record in from_table(to_table([canonical(record) for record in records])):
            self._by_id.setdefault(record.record_id, record)

    def scan(self, selection: Selection) -> Iterable[MeasureRecord]:
        """See `RecordStore.scan`."""
        return [record for record in list(self._by_id.values()) if selection.accepts(record)]

    def tasks(
        self, target: str | None = None, device: str | None = None, threads: int | None = None
    ) -> list[TaskSummary]:
        """See `RecordStore.tasks`."""
        groups: dict[tuple[str, str, int, str], list[MeasureRecord]] = {}
        for record in self.records(target=target, device=device, threads=threads):
            key = (record.target, record.device, record.threads, record.task_key)
            groups.setdefault(key, []).append(record)
        return [_summary(groups[key]) for key in sorted(groups)]

    def history(
        self,
        task_key: str,
        target: str | None = None,
        device: str | None = None,
        run_id: str | None = None,
        threads: int | None = None,
    ) -> list[HistoryPoint]:
        """See `RecordStore.history`."""
        points: list[HistoryPoint] = []
        best = math.inf
        for number, record in enumerate(self.records(task_key, target, device, run_id, threads), 1):
            best = min(best, record.seconds)
            moment = (record.round, record.elapsed, record.timestamp)
            points.append(HistoryPoint(number, *moment, _or_none(record.seconds), _or_none(best)))
        return points


def _summary(records: Sequence[MeasureRecord]) -> TaskSummary:
    last = records[-1]
    return TaskSummary(
        task_key=last.task_key,
        task_name=last.task_name,
        target=last.target,
        device=last.device,
        threads=last.threads,
        trials=len(records),
        failures=sum(r.status is not MeasureStatus.OK for r in records),
        best_seconds=_or_none(min(r.seconds for r in records)),
        last_timestamp=last.timestamp,
    )


def _or_none(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
