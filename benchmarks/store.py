"""In: a number of rows. Out: JSON lines with the cost of appends and queries.

    python -m benchmarks.store [--only REGEX] [--seconds S] [--out FILE] [--rows N]

The store is filled with `--rows` rows, or for `--seconds` when that ends sooner, in a temporary folder that is removed;
then it is compacted and asked again. `--compacted ROWS` asks a second store, of so many rows in compacted files.
Always: synthetic records. The bars are 50 ms for an append, 1 s for the best of every task among 10 million rows.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, Run, parse, percentile
from compiler.measure.record import MeasureRecord, MeasureStatus
from storage.codec import to_table
from storage.compaction import FULL_ROWS, compact
from storage.files import new_id
from storage.layout import part_folder
from storage.medium import LocalMedium
from storage.parquet import ParquetRecordStore
from storage.parts import encode_compacted, part_name
from storage.query import connect
from storage.schema import SCHEMA

ROUND = 64
TARGET = "llvm -mcpu=znver5"
TASKS = 30
STEPS = json.dumps([["SP", stage % 5, stage % 7, 512, [8, 2, 32], 1] for stage in range(24)])


def synthetic_round(number: int, rng: np.random.Generator) -> list[MeasureRecord]:
    """A round of 64 trials of one of thirty tasks, every sixteenth failed."""
    task = number % TASKS
    seconds = rng.lognormal(-7.0, 0.5, ROUND)
    return [
        MeasureRecord(
            record_id=new_id(),
            run_id="benchmark",
            network="synthetic",
            task_key=f'["{task:032x}", [1, 56, 56, 64], [3, 3, 64, 64]]',
            task_name=f"conv2d_{task}",
            target=TARGET,
            device="benchmark",
            threads=2,
            steps=STEPS.replace("512", str(number * ROUND + index)),
            parent_id="",
            mutation="tile",
            predicted=float(rng.random()),
            costs=(cost, cost * 1.01, cost * 1.02) if index % 16 else (),
            status=MeasureStatus.OK if index % 16 else MeasureStatus.RUN_TIMEOUT,
            error="" if index % 16 else "no answer within 10 s",
            build_seconds=0.05,
            run_seconds=0.1,
            options="{}",
            seed=0,
            round=number // TASKS,
            elapsed=float(number),
            engine_version="0",
            llvm_version="0",
            timestamp=1.7e9 + number * ROUND + index,
        )
        for index, cost in enumerate(seconds.tolist())
    ]


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def measure(root: Path, run: Run) -> Iterator[Figure]:
    """Append, then query, one after the other."""
    rng = np.random.default_rng(0)
    store = ParquetRecordStore(root)
    appends: list[float] = []
    began = time.perf_counter()
    for number in range(max(1, -(-run.options["rows"] // ROUND))):
        records = synthetic_round(number, rng)
        appends.append(timed(partial(store.append, records)))
        if time.perf_counter() - began > run.seconds:
            break
    details: dict[str, object] = {"rows": len(appends) * ROUND}

    def figure(case: str, metric: str, value: float) -> Figure:
        return Figure(case, "retune", 1, metric, value, "ms", details=details)

    task_key = synthetic_round(0, rng)[0].task_key
    yield figure("append_round_of_64", "median", float(np.median(appends)))
    yield figure("append_round_of_64", "p99", percentile(appends, 0.99))
    cold = ParquetRecordStore(root)
    yield figure("best_per_task", "cold", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_per_task", "warm", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_of_one_task", "warm", timed(lambda: cold.best(task_key, target=TARGET)))
    yield figure("records_of_one_task", "cold", timed(lambda: cold.records(task_key, target=TARGET)))
    yield figure("records_of_one_task", "warm", timed(lambda: cold.records(task_key, target=TARGET)))
    yield figure("training_rows", "cold", timed(ParquetRecordStore(root).training_rows))
    yield from queries(root, details)
    before = time.perf_counter()
    done = compact(root)
    yield figure("compact", f"{done.files_before} files to {done.files_after}", (time.perf_counter() - before) * 1e3)
    cold = ParquetRecordStore(root)
    yield figure("best_per_task_compacted", "cold", timed(lambda: cold.best_per_task(target=TARGET)))


def queries(root: Path, details: dict[str, object]) -> Iterator[Figure]:
    """What an analyst asks in SQL."""

    def figure(case: str, metric: str, value: float) -> Figure:
        return Figure(case, "retune", 1, metric, value, "ms", details=details)

    with connect(root) as sql:
        yield figure("sql_best_view", "cold", timed(sql.sql("SELECT task_name, seconds FROM best").fetchall))
        counted = sql.sql("SELECT status_name, count(*) FROM records GROUP BY ALL")
        yield figure("sql_failures_by_cause", "warm", timed(counted.fetchall))


def measure_compacted(root: Path, rows: int) -> Iterator[Figure]:
    """The best and the history of tasks among `rows` rows in compacted files, one a task."""
    each = -(-rows // TASKS)
    rng = np.random.default_rng(0)
    for task in range(TASKS):
        table = synthetic_table(task, each, rng)
        folder = part_folder(TARGET, table.column("task_key")[0].as_py())
        parts = {}
        for start in range(0, each, FULL_ROWS):
            data = encode_compacted(table.slice(start, FULL_ROWS))
            parts[f"{folder}/{part_name(data)}"] = data
        LocalMedium(root).publish(parts)
    details: dict[str, object] = {"rows": each * TASKS}
    store = ParquetRecordStore(root)
    for case, metric, value in (
        ("best_per_task_compacted", "cold", timed(lambda: store.best_per_task(target=TARGET))),
        ("best_per_task_compacted", "warm", timed(lambda: store.best_per_task(target=TARGET))),
    ):
        yield Figure(case, "retune", 1, metric, value, "ms", details=details)
    yield from queries(root, details)


def synthetic_table(task: int, rows: int, rng: np.random.Generator) -> Any:
    """Rows of one task in the order of a compacted file, every sixteenth failed; steps differ from row to row."""
    sample = to_table(synthetic_round(task, rng)[:1])
    seconds = np.sort(rng.lognormal(-7.0, 0.5, rows))
    good = np.arange(rows) < rows - rows // 16
    columns: dict[str, Any] = {name: pa.repeat(sample.column(name)[0], rows) for name in sample.column_names}
    ids = rng.permutation(rows)
    columns["record_id"] = pa.array([f"{task:06d}{number:020d}" for number in ids])
    columns["steps"] = pa.array([STEPS.replace("512", str(number)) for number in ids])
    columns["seconds"] = pa.array(seconds, mask=~good)
    columns["costs"] = pa.array([[cost] if fine else [] for cost, fine in zip(seconds.tolist(), good, strict=True)])
    columns["status"] = pa.array(np.where(good, 0, int(MeasureStatus.RUN_TIMEOUT)).astype(np.int8))
    columns["status_name"] = pa.array(np.where(good, "OK", MeasureStatus.RUN_TIMEOUT.name))
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON line for every case that `--only` lets through."""
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="most seconds to fill the store for",
        options={"rows": (100_000, "rows in the store"), "compacted": (0, "rows of a second store, compacted")},
    )
    with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
        for figure in measure(Path(folder), run):
            if run.wants(figure.case):
                run.write(figure)
    if run.options["compacted"]:
        with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
            for figure in measure_compacted(Path(folder), run.options["compacted"]):
                if run.wants(figure.case):
                    run.write(figure)


if __name__ == "__main__":
    main()
