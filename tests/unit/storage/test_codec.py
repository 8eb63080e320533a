"""Tests of the record codec: round trips lose nothing, and infinity is never stored."""

import math
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.measure.record import SCHEMA_VERSION, MeasureRecord, MeasureStatus, ShapeCosts
from retune.storage.schema import COLUMNS, SCHEMA, canonical, from_table, to_table
from tests.support.record_samples import timed, timed_at

durations = st.floats(0, 1e9)
texts = st.text(st.characters())  # all of Unicode, lone surrogates included

positive = st.floats(min_value=1e-9, max_value=1e9)
shapes = st.lists(
    st.builds(ShapeCosts, st.text(min_size=1), positive, st.lists(positive, max_size=4).map(tuple)),
    max_size=4,
    unique_by=lambda shape: shape.sizes.encode("utf-8", "backslashreplace"),
).map(tuple)

records = st.builds(
    MeasureRecord,
    record_id=st.text(min_size=1),
    run_id=texts,
    network=texts,
    task_key=texts,
    task_name=texts,
    target=texts,
    device=texts,
    threads=st.integers(1, 2**31 - 1),
    steps=texts,
    parent_id=texts,
    mutation=texts,
    predicted=st.none() | st.floats(),
    costs=st.lists(st.floats(min_value=0, exclude_min=True, allow_infinity=False), max_size=4).map(tuple),
    status=st.sampled_from(MeasureStatus),
    error=texts,
    build_seconds=durations,
    run_seconds=durations,
    options=texts,
    seed=st.integers(-(2**63), 2**63 - 1),
    round=st.integers(0, 2**31 - 1),
    elapsed=durations,
    engine_version=texts,
    llvm_version=texts,
    timestamp=st.floats(0, 4e9),
    censored=st.booleans(),
    contention=st.none() | st.floats(0, 1),
    schema_version=st.just(SCHEMA_VERSION),
    shapes=shapes,
)


@settings(deadline=None)  # the first table takes Arrow a while
@given(st.lists(records, max_size=5, unique_by=lambda record: record.record_id.encode("utf-8", "backslashreplace")))
def test_a_canonical_record_survives_the_round_trip(drawn: list[MeasureRecord]) -> None:
    kept = [canonical(record) for record in drawn]
    table = to_table(kept)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert from_table(table) == kept
    assert [canonical(record) for record in kept] == kept


@settings(deadline=None)  # the first table takes Arrow a while
@given(st.lists(records, min_size=1, max_size=5))
def test_nothing_infinite_is_stored(drawn: list[MeasureRecord]) -> None:
    table = to_table([canonical(record) for record in drawn])
    for name in ("predicted", "seconds", "build_seconds", "run_seconds", "elapsed"):
        assert pc.all(pc.is_finite(table.column(name))).as_py() is not False
    assert pc.all(pc.is_finite(pc.list_flatten(table.column("costs")))).as_py() is not False
    seconds = table.column("seconds").to_pylist()
    kept = [canonical(record) for record in drawn for _ in record.shapes or (None,)]
    assert seconds == [record.seconds if math.isfinite(record.seconds) else None for record in kept]


def test_a_trial_at_several_shapes_has_a_row_for_each() -> None:
    record = timed_at("w0", {4: 1e-3, 40: 3e-3})
    assert record.costs == (2e-3, 4e-3)
    rows = to_table([canonical(record)]).to_pylist()
    assert [(row["sizes"], row["weight"], row["costs"]) for row in rows] == [
        ('{"n": 40}', 0.5, [3e-3, 6e-3]),
        ('{"n": 4}', 0.5, [1e-3, 2e-3]),
    ]
    assert {row["record_id"] for row in rows} == {record.record_id}
    assert {row["seconds"] for row in rows} == {2e-3}
    for weight in (0.0, math.nan):
        with pytest.raises(StoreError, match="has a cost of"):
            canonical(replace(record, shapes=(replace(record.shapes[0], weight=weight),)))


def test_canonical_changes_only_what_it_says() -> None:
    record = timed("w0", 1e-3, predicted=-math.inf, timestamp=1750000000.1234567)
    kept = canonical(record)
    assert kept.predicted is None
    assert kept.timestamp == 1750000000.123457
    assert kept.record_id == record.record_id


def test_every_column_is_documented() -> None:
    assert all(column.doc for column in COLUMNS)
    of_shapes = {"sizes", "weight"}
    own = set(MeasureRecord.__dataclass_fields__) - {"shapes"}
    assert own | {"seconds", "status_name"} | of_shapes == set(SCHEMA.names)


def test_an_unknown_status_is_corrupt() -> None:
    table = to_table([canonical(timed("w0", 1.0))])
    index = table.schema.get_field_index("status")
    odd = table.set_column(index, SCHEMA.field("status"), pa.array([99], pa.int8()))
    with pytest.raises(CorruptRecordError, match="status 99"):
        from_table(odd)


@pytest.mark.parametrize("timestamp", [3e11, -7e10, math.nan])
def test_moments_that_no_date_can_show_are_refused(timestamp: float) -> None:
    with pytest.raises(StoreError, match="timestamp"):
        canonical(timed("w0", 0.1, timestamp=timestamp))
