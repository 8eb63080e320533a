"""Conversion between records and Arrow tables; a canonical record survives the round trip unchanged.

A store keeps the *canonical* record: times to the microsecond, valid UTF-8 text, and no score if the model's was not
finite. Costs must be finite and positive, otherwise the record is rejected: a failure is a status, never a magic cost.
"""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from retune.compiler.core.errors import CorruptRecordError, SchemaError, StoreError
from retune.compiler.measure.record import MOMENTS, SCHEMA_VERSION, MeasureRecord, MeasureStatus
from retune.storage.schema import SCHEMA

# The unit of Arrow's timestamp column: finer times would not survive the round trip.
MICROSECOND = 1_000_000
FIELDS = tuple(field.name for field in fields(MeasureRecord))
"""The columns of a record; the other columns of the schema are derived from them."""

_TEXTS = tuple(field.name for field in fields(MeasureRecord) if field.type is str)
_STATUS = {int(status): status for status in MeasureStatus}


def canonical(record: MeasureRecord) -> MeasureRecord:
    """The record as stored.

    Raises:
        StoreError: a cost or a duration is not measurable, or the id is empty.
        SchemaError: the record has another version of the layout.
    """
    if record.schema_version != SCHEMA_VERSION:
        raise SchemaError(
            f"record {record.record_id} has schema {record.schema_version}, but this Retune writes {SCHEMA_VERSION}"
        )
    if not record.record_id:
        raise StoreError("a record without an id cannot be stored")
    for cost in record.costs:
        if not (math.isfinite(cost) and cost > 0):
            raise StoreError(f"record {record.record_id} has a cost of {cost} s: a failure has a status instead")
    for name in ("build_seconds", "run_seconds", "elapsed", "timestamp"):
        if not math.isfinite(getattr(record, name)):
            raise StoreError(f"record {record.record_id}: {name} is {getattr(record, name)}")
    if not MOMENTS.start <= record.timestamp < MOMENTS.stop:
        raise StoreError(f"record {record.record_id}: the timestamp {record.timestamp} is not in the years 1 to 9999")
    scored = record.predicted is not None and math.isfinite(record.predicted)
    watched = record.contention is not None and math.isfinite(record.contention)
    texts: dict[str, Any] = {name: _utf8(getattr(record, name)) for name in _TEXTS}
    return replace(
        record,
        **texts,
        predicted=record.predicted if scored else None,
        costs=tuple(record.costs),
        status=MeasureStatus(record.status),
        timestamp=round(record.timestamp * MICROSECOND) / MICROSECOND,
        contention=record.contention if watched else None,
    )


def _utf8(text: str) -> str:
    """Text with escaped lone surrogates (undecodable bytes of a worker's stderr)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def to_table(records: Sequence[MeasureRecord]) -> pa.Table:
    """Canonical records as an Arrow table with `SCHEMA`, in order.

    Raises:
        StoreError: an integer is too large for its column.
    """
    columns: dict[str, list[object]] = {name: [getattr(record, name) for record in records] for name in FIELDS}
    columns["costs"] = [list(record.costs) for record in records]
    columns["seconds"] = [s if math.isfinite(s) else None for s in (r.seconds for r in records)]
    columns["status"] = [int(record.status) for record in records]
    columns["status_name"] = [record.status.name for record in records]
    columns["timestamp"] = [round(record.timestamp * MICROSECOND) for record in records]
    try:
        return pa.Table.from_pydict(columns, schema=SCHEMA)
    except (OverflowError, pa.ArrowException) as error:
        raise StoreError(f"cannot store the records: {error}") from error


def from_table(table: pa.Table, source: str = "the table") -> list[MeasureRecord]:
    """The records of a table with `SCHEMA`, in order; derived columns are recomputed, not read.

    `source` names the file in errors.

    Raises:
        CorruptRecordError: a status is unknown in this version.
    """
    columns = {name: table.column(name) for name in FIELDS}
    # Not to_pylist on the timestamps: Python's datetime ends with the year 9999 and is slow to construct.
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    values = {name: column.to_pylist() for name, column in columns.items()}
    values["costs"] = [tuple(costs) for costs in values["costs"]]
    values["timestamp"] = [moment / MICROSECOND for moment in values["timestamp"]]
    # `upgrade` has converted the rows to this version.
    values["schema_version"] = [SCHEMA_VERSION] * table.num_rows
    try:
        values["status"] = [_STATUS[status] for status in values["status"]]
    except KeyError as error:
        raise CorruptRecordError(f"{source} has a trial of unknown status {error}") from None
    return [MeasureRecord(*row) for row in zip(*values.values(), strict=True)]
