"""In-memory record store: the reference that other stores are compared with."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.storage.base import RecordStore, Selection
from retune.storage.schema import canonical, from_table, to_table


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

    def tasks(self) -> list[dict[str, Any]]:
        """See `RecordStore.tasks`."""
        groups: dict[tuple[str, str, int, str], list[MeasureRecord]] = {}
        for record in self.records():
            key = (record.target, record.device, record.threads, record.task_key)
            groups.setdefault(key, []).append(record)
        return [_summary(groups[key]) for key in sorted(groups)]


def _summary(records: Sequence[MeasureRecord]) -> dict[str, Any]:
    last, best = records[-1], min(record.seconds for record in records)
    return {
        **{name: getattr(last, name) for name in ("task_key", "task_name", "target", "device", "threads")},
        "trials": len(records),
        "failures": sum(record.status is not MeasureStatus.OK for record in records),
        "best_seconds": best if math.isfinite(best) else None,
        "last_timestamp": last.timestamp,
    }
