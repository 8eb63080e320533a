"""The schema of record files, upgrades from older versions, and conversion between records and Arrow tables.

The version of the schema is in the footer of every file. A file of an older version is upgraded as it is read, one
version at a time. A file of a newer version is rejected, because unknown columns may change the meaning of known ones.

A store keeps the *canonical* record, which survives the round trip unchanged: times to the microsecond, valid UTF-8
text, and no score if the model's was not finite. Costs must be finite and positive, otherwise the record is rejected: a
failure is a status, never a magic cost.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retune.compiler.core.errors import CorruptRecordError, SchemaError, StoreError
from retune.compiler.measure.record import (
    MOMENTS,
    SCHEMA_VERSION,
    MeasureRecord,
    MeasureStatus,
    ShapeCosts,
    mean_costs,
)

VERSION_KEY = b"retune.schema_version"
"""Footer entry with the version, as decimal text."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the store: its name, Arrow type, and documentation for readers of the files."""

    name: str
    type: pa.DataType
    doc: str
    nullable: bool = False


COLUMNS = (
    Column("record_id", pa.string(), "ULID of the trial; with `sizes` unique in a store"),
    Column("run_id", pa.string(), "ULID of the tuning run that asked for it"),
    Column("network", pa.string(), "network that was being tuned"),
    Column("task_key", pa.string(), "workload key of the task: what was computed, with its shapes"),
    Column("task_name", pa.string(), "readable name of the task"),
    Column("target", pa.string(), "target text the code was generated for"),
    Column("device", pa.string(), "identity of the device the trial was timed on"),
    Column("threads", pa.int32(), "threads the trial was timed with"),
    Column("steps", pa.string(), "transform steps as JSON text: the schedule"),
    Column("parent_id", pa.string(), "candidate this one was mutated from, empty if none"),
    Column("mutation", pa.string(), "how it was derived from its parent, empty if sampled"),
    Column("predicted", pa.float64(), "cost model's score, higher is better; null if none", True),
    Column("costs", pa.list_(pa.float64()), "seconds per call with these sizes, one per repeat; empty if it failed"),
    Column("seconds", pa.float64(), "fastest repeat, over all sizes their mean; null if the trial failed", True),
    Column("status", pa.int8(), "how it ended, 0 is success"),
    Column("status_name", pa.string(), "the same in words: OK, RUN_TIMEOUT, WRONG_ANSWER, ..."),
    Column("error", pa.string(), "full text of the failure, empty on success"),
    Column("build_seconds", pa.float64(), "seconds spent building it"),
    Column("run_seconds", pa.float64(), "seconds spent timing it"),
    Column("options", pa.string(), "measurement options as JSON text"),
    Column("seed", pa.int64(), "seed of the run"),
    Column("round", pa.int32(), "round of the task in which it was tried, from 0"),
    Column("elapsed", pa.float64(), "seconds on the run's clock when its round was stored"),
    Column("engine_version", pa.string(), "version of Retune that measured it"),
    Column("llvm_version", pa.string(), "version of LLVM that compiled it"),
    Column("timestamp", pa.timestamp("us", tz="UTC"), "wall clock when it was measured"),
    Column("censored", pa.bool_(), "out of reach of the best: timed by one short look only"),
    Column("contention", pa.float64(), "share of the fastest repeat lost to others or a slow CPU; null: unknown", True),
    Column("schema_version", pa.int32(), "version of this layout"),
    Column("sizes", pa.string(), "sizes of the task's symbols as JSON text: one row each; empty without symbols"),
    Column("weight", pa.float64(), "share of calls that these sizes stand for"),
)

SCHEMA = pa.schema(
    [pa.field(c.name, c.type, nullable=c.nullable, metadata={"doc": c.doc}) for c in COLUMNS],
    metadata={VERSION_KEY: str(SCHEMA_VERSION)},
)

Upgrade = Callable[[pa.Table], pa.Table]
"""Converts a table of version n to version n + 1."""


def _add_race(table: pa.Table) -> pa.Table:
    """Version 1 repeated every timing at least once and did not look at the load of the machine. Some of its programs
    took the middle repeat for the cost, not the fastest.
    """
    rows = table.num_rows
    costs = table.column("costs").to_pylist()
    good = [status == 0 for status in table.column("status").to_pylist()]
    seconds = [min(repeats, default=None) if fine else None for repeats, fine in zip(costs, good, strict=True)]
    index = table.schema.get_field_index("seconds")
    table = table.set_column(index, "seconds", pa.array(seconds, pa.float64()))
    table = table.append_column("censored", pa.array([False] * rows, pa.bool_()))
    return table.append_column("contention", pa.nulls(rows, pa.float64()))


def _add_sizes(table: pa.Table) -> pa.Table:
    """Version 2 had one row a trial, of a fixed shape or with the mean over shapes that it did not know."""
    table = table.append_column("sizes", pa.array([""] * table.num_rows, pa.string()))
    return table.append_column("weight", pa.array([1.0] * table.num_rows, pa.float64()))


UPGRADES: Mapping[int, Upgrade] = {1: _add_race, 2: _add_sizes}
"""By older version; version 1 is the first."""


def version_of(metadata: Mapping[bytes, bytes] | None, source: str) -> int:
    """The schema version in a file's footer; `source` names the file in errors.

    Raises:
        SchemaError: the file is newer than this Retune.
        CorruptRecordError: the footer has no version, so it is no record file.
    """
    text = (metadata or {}).get(VERSION_KEY, b"")
    if not text.isdigit():
        raise CorruptRecordError(f"{source} is not a record file: its footer has no schema version")
    return refuse_newer(int(text), source)


def refuse_newer(version: int, source: str) -> int:
    """Return `version` if this Retune can read it, else raise `SchemaError` with what to do."""
    if version > SCHEMA_VERSION:
        raise SchemaError(
            f"{source} has record schema {version}, but this Retune reads up to {SCHEMA_VERSION}: "
            f"upgrade Retune, or choose another store"
        )
    return version


def upgrade(
    table: pa.Table,
    version: int,
    source: str,
    upgrades: Mapping[int, Upgrade] = UPGRADES,
    to: int = SCHEMA_VERSION,
) -> pa.Table:
    """Convert a table of an older `version` to version `to`, with exactly the columns of `SCHEMA`.

    Raises:
        CorruptRecordError: a column is missing or has values that do not fit its type.
        SchemaError: no upgrade leads from `version` onwards.
    """
    for step in range(version, to):
        if step not in upgrades:
            raise SchemaError(f"{source} has record schema {step}, which this Retune no longer reads")
        table = upgrades[step](table)
    if table.schema.equals(SCHEMA):
        return table
    try:
        # `select` orders the columns: upgrades append theirs at the end.
        return table.select(SCHEMA.names).cast(SCHEMA)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise CorruptRecordError(f"{source} does not fit record schema {to}: {error}") from error


# The unit of Arrow's timestamp column: finer times would not survive the round trip.
MICROSECOND = 1_000_000
FIELDS = tuple(field.name for field in fields(MeasureRecord) if field.name != "shapes")
"""The columns of a record, in order; others are of its shapes, or are derived."""

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
    shapes = tuple(sorted(record.shapes, key=lambda shape: shape.sizes))
    for cost in (*record.costs, *(cost for shape in shapes for cost in (shape.weight, *shape.costs))):
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
        costs=mean_costs(shapes) if shapes else tuple(record.costs),
        shapes=shapes,
        status=MeasureStatus(record.status),
        timestamp=round(record.timestamp * MICROSECOND) / MICROSECOND,
        contention=record.contention if watched else None,
    )


def _utf8(text: str) -> str:
    """Text with escaped lone surrogates (undecodable bytes of a worker's stderr)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def to_table(records: Sequence[MeasureRecord]) -> pa.Table:
    """Canonical records as an Arrow table with `SCHEMA`, in order; a record has a row for each of its shapes.

    Raises:
        StoreError: an integer is too large for its column.
    """
    parts = [(record, shape) for record in records for shape in record.shapes or (ShapeCosts("", 1.0, record.costs),)]
    records = [record for record, _ in parts]
    columns: dict[str, list[object]] = {name: [getattr(record, name) for record in records] for name in FIELDS}
    columns["costs"] = [list(shape.costs) for _, shape in parts]
    columns["sizes"] = [shape.sizes for _, shape in parts]
    columns["weight"] = [shape.weight for _, shape in parts]
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
    records = [MeasureRecord(*row) for row in zip(*values.values(), strict=True)]
    sizes = table.column("sizes").to_pylist()
    return _join_shapes(records, sizes, table.column("weight").to_pylist()) if any(sizes) else records


def _join_shapes(rows: Sequence[MeasureRecord], sizes: Sequence[str], weights: Sequence[float]) -> list[MeasureRecord]:
    """One record for the rows of each id, in the order of their first rows."""
    first: dict[str, MeasureRecord] = {}
    shapes: dict[str, dict[str, ShapeCosts]] = {}
    for row, text, weight in zip(rows, sizes, weights, strict=True):
        first.setdefault(row.record_id, row)
        if text:
            shapes.setdefault(row.record_id, {})[text] = ShapeCosts(text, weight, row.costs)
    joined = {key: tuple(parts[text] for text in sorted(parts)) for key, parts in shapes.items()}
    return [
        replace(row, shapes=joined[key], costs=mean_costs(joined[key])) if key in joined else row
        for key, row in first.items()
    ]


def distinct_rows(table: pa.Table, columns: Sequence[str] = ("record_id", "sizes")) -> pa.Table:
    """The first row of every combination of the text `columns`, in order."""
    joined = pc.binary_join_element_wise(*map(table.column, columns), "\n")
    # Dictionary codes are integers: `np.unique` sorts them much faster than strings.
    ids = joined.combine_chunks().dictionary_encode()
    _, first = np.unique(ids.indices.to_numpy(), return_index=True)
    return table if len(first) == table.num_rows else table.take(pa.array(np.sort(first)))
