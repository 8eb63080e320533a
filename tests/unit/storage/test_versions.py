"""Stores as every past version of the code has left them, which this one reads as it reads its own.

`tests/formats/records/vN` was written by the code whose `SCHEMA_VERSION` was N, with its own
`ParquetRecordStore.append` (and `compact`, where the name says so), from the records below, as far as it knew their
fields.
"""

import shutil
from pathlib import Path

import pytest

from retune.compiler.measure.record import SCHEMA_VERSION, MeasureRecord, MeasureStatus, ShapeCosts
from retune.storage.compaction import compact
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import connect
from tests.support.record_samples import part_paths, timed

GOLDEN = Path(__file__).parents[2] / "formats" / "records"
STORES = sorted(path.name for path in GOLDEN.iterdir())
SHAPES = ShapeCosts('{"n": 40}', 0.5, (0.002,)), ShapeCosts('{"n": 4}', 0.5, (0.001,))
TASK = '["conv2d", [1, 56, 56, 64], [3, 3, 64, 64]]'


def expected(version: int) -> list[MeasureRecord]:
    """The records that were stored; what a version did not know has the value that was true then."""
    outcomes = [
        (MeasureStatus.OK, (0.003, 0.001, 0.002), ""),
        (MeasureStatus.WRONG_ANSWER, (), "output 0 differs by 0.5 at (0, 1)\ncafé"),
        (MeasureStatus.OK, (0.0015,), ""),
        (MeasureStatus.RUN_TIMEOUT, (), "no answer within 10 s"),
    ]
    return [
        MeasureRecord(
            record_id=f"01HGOLDEN{number:017d}",
            run_id="01HGOLDENRUN00000000000000",
            network="resnet18",
            task_key=TASK,
            task_name="conv2d_56",
            target="llvm -mcpu=znver5",
            device="AMD EPYC 9B45, 2 cores",
            threads=2,
            steps=f'[["SP", 2, 0, 512, [{number + 1}, 2], 1]]',
            parent_id="" if number else "01HGOLDENPARENT0000000000",
            mutation="" if number else "tile",
            predicted=None if number == 1 else 0.25 * number,
            costs=costs,
            status=status,
            error=error,
            build_seconds=0.05,
            run_seconds=0.125,
            options='{"repeat": 3}',
            seed=7,
            round=number // 2,
            elapsed=1.5 * (number + 1),
            engine_version="0.1.0",
            llvm_version="llvmlite 0.50.0",
            timestamp=1750000000.25 + number,
            censored=version >= 2 and number == 2,
            contention=0.125 if version >= 2 and number == 2 else None,
            shapes=SHAPES if version >= 3 and number == 2 else (),
        )
        for number, (status, costs, error) in enumerate(outcomes)
    ]


@pytest.fixture(params=STORES)
def golden_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, Path]:
    """The version that wrote a store, and a copy of the store."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "store")
    return int(request.param.removeprefix("v").partition("-")[0]), tmp_path / "store"


def test_every_version_has_left_a_store() -> None:
    assert {f"v{version}" for version in range(1, SCHEMA_VERSION + 1)} <= set(STORES)


def test_it_is_read_as_what_was_meant(golden_store: tuple[int, Path]) -> None:
    version, root = golden_store
    store = ParquetRecordStore(root)
    assert store.records() == expected(version)
    assert store.best(TASK) == expected(version)[0]
    (summary,) = store.tasks()
    assert (summary["trials"], summary["failures"], summary["best_seconds"]) == (4, 2, 0.001)
    assert store.check().rows == 4


def test_new_rows_join_the_old_ones(golden_store: tuple[int, Path]) -> None:
    version, root = golden_store
    old = expected(version)
    fresh = timed(TASK, 5e-4, target=old[0].target, device=old[0].device, timestamp=old[-1].timestamp + 1)
    ParquetRecordStore(root).append([fresh])
    store = ParquetRecordStore(root)
    assert store.records() == [*old, fresh]
    assert store.best(TASK) == fresh
    compact(root, least_parts=2)
    assert len(part_paths(root)) == 1
    again = ParquetRecordStore(root)
    assert again.records() == [*old, fresh]
    expected_seconds = [0.001, None, *[0.0015] * max(1, len(old[2].shapes)), None, 5e-4]
    assert again.table(columns=["seconds"]).column("seconds").to_pylist() == expected_seconds


def test_sql_sees_its_columns(golden_store: tuple[int, Path]) -> None:
    version, root = golden_store
    query = "SELECT record_id, censored, contention, status_name FROM records ORDER BY timestamp"
    with connect(root) as sql:
        assert sql.execute(query).fetchall() == [
            (record.record_id, record.censored, record.contention, record.status.name) for record in expected(version)
        ]
        assert len(sql.execute("SELECT * FROM best").fetchall()) == 1
