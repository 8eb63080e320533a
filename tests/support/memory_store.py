"""In-memory record store: the reference that other stores are compared with."""

from collections.abc import Iterable, Sequence

from retune.compiler.measure.record import MeasureRecord
from retune.storage.base import RecordStore, Selection
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
