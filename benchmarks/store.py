"""Latency of appends and queries of the record store, with synthetic records.

    python -m benchmarks.store [--only REGEX] [--seconds S] [--out FILE] [--rows N]

The store is filled with `--rows` rows, or for `--seconds` if that ends sooner, in a temporary folder that is removed;
then it is compacted and queried again. `--compacted ROWS` queries a second store, of so many rows of `--tasks` tasks in
compacted files, to which rounds are appended as well: 10,000,000 rows take about a minute and 0.4 GB. The targets are
50 ms for an append and 1 s for the best of every task among 10 million rows.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Figure, Run, parse, percentile
from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.storage.blob_store import LocalBlobStore
from retune.storage.compaction import FULL_ROWS, compact
from retune.storage.files import new_id
from retune.storage.layout import part_folder
from retune.storage.parquet import ParquetRecordStore
from retune.storage.parts import encode_compacted, part_name
from retune.storage.query import connect
from retune.storage.schema import SCHEMA, to_table

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
            task_key=task_key_of(task),
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

    task_key = task_key_of(0)
    yield figure("append_round_of_64", "median", float(np.median(appends)))
    yield figure("append_round_of_64", "p99", percentile(appends, 0.99))
    cold = ParquetRecordStore(root)
    yield figure("best_per_task", "cold", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_per_task", "warm", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_of_one_task", "warm", timed(lambda: cold.best(task_key, target=TARGET)))
    yield figure("records_of_one_task", "cold", timed(lambda: cold.records(task_key, target=TARGET)))
    yield figure("records_of_one_task", "warm", timed(lambda: cold.records(task_key, target=TARGET)))
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


def measure_compacted(root: Path, rows: int, tasks: int, seconds: float) -> Iterator[Figure]:
    """What a store of years answers: `rows` rows of `tasks` tasks in compacted files, and rounds appended to it for
    some `seconds`.
    """
    each = -(-rows // tasks)
    rng = np.random.default_rng(0)
    filled = timed(lambda: fill(root, each, tasks, rng))
    details: dict[str, object] = {"rows": each * tasks, "tasks": tasks}

    def figure(case: str, metric: str, value: float) -> Figure:
        return Figure(f"{case}_compacted", "retune", 1, metric, value, "ms", details=details)

    yield figure("fill", "total", filled)
    appends: list[float] = []
    store = ParquetRecordStore(root)
    began = time.perf_counter()
    while not appends or (time.perf_counter() - began < seconds and len(appends) < 200):
        records = synthetic_round(len(appends), rng)
        appends.append(timed(partial(store.append, records)))
    yield figure("append_round_of_64", "median", float(np.median(appends)))
    yield figure("append_round_of_64", "p99", percentile(appends, 0.99))
    cold = ParquetRecordStore(root)
    key = task_key_of(0)
    yield figure("best_per_task", "cold", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_per_task", "warm", timed(lambda: cold.best_per_task(target=TARGET)))
    yield figure("best_of_one_task", "cold", timed(lambda: ParquetRecordStore(root).best(key, target=TARGET)))
    for one in queries(root, details):
        yield replace(one, case=f"{one.case}_compacted")


def fill(root: Path, each: int, tasks: int, rng: np.random.Generator) -> None:
    """Write `each` rows of every task, in files as compaction makes them."""
    for task in range(tasks):
        table = synthetic_table(task, each, rng)
        folder = part_folder(TARGET, task_key_of(task))
        parts = {}
        for start in range(0, each, FULL_ROWS):
            data = encode_compacted(table.slice(start, FULL_ROWS))
            parts[f"{folder}/{part_name(data)}"] = data
        LocalBlobStore(root).put(parts)


def synthetic_table(task: int, rows: int, rng: np.random.Generator) -> Any:
    """Rows of one task in the order of a compacted file, every sixteenth failed; steps differ from row to row."""
    sample = to_table(synthetic_round(task, rng)[:1])
    seconds = np.sort(rng.lognormal(-7.0, 0.5, rows))
    good = np.arange(rows) < rows - rows // 16
    columns: dict[str, Any] = {name: pa.repeat(sample.column(name)[0], rows) for name in sample.column_names}
    order = rng.permutation(rows)
    numbers = pa.array(order).cast(pa.string())
    head, _, tail = STEPS.partition("512")
    columns["task_key"] = pa.repeat(task_key_of(task), rows)
    columns["record_id"] = pc.binary_join_element_wise(f"{task:06d}", pc.utf8_lpad(numbers, 20, "0"), "")
    columns["steps"] = pc.binary_join_element_wise(head, numbers, tail, "")
    columns["round"] = pa.array((order // ROUND).astype(np.int32))
    columns["timestamp"] = pa.array(((1.7e9 + order) * 1e6).astype(np.int64)).cast(pa.timestamp("us", tz="UTC"))
    columns["seconds"] = pa.array(seconds, mask=~good)
    lengths = np.concatenate([[0], np.cumsum(good)]).astype(np.int32)
    columns["costs"] = pa.ListArray.from_arrays(pa.array(lengths), pa.array(seconds[good]))
    columns["status"] = pa.array(np.where(good, 0, int(MeasureStatus.RUN_TIMEOUT)).astype(np.int8))
    columns["status_name"] = pa.array(np.where(good, "OK", MeasureStatus.RUN_TIMEOUT.name))
    columns["error"] = pa.array(np.where(good, "", "no answer within 10 s"))
    return pa.Table.from_pydict(columns, schema=SCHEMA)


def task_key_of(task: int) -> str:
    """The key of a synthetic task."""
    return f'["{task:032x}", [1, 56, 56, 64], [3, 3, 64, 64]]'


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON line for every case that `--only` lets through."""
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="most seconds to fill the store for",
        options={
            "rows": (100_000, "rows in the store"),
            "compacted": (0, "rows of a second store, compacted"),
            "tasks": (300, "tasks in the second store"),
        },
    )
    with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
        for figure in measure(Path(folder), run):
            if run.wants(figure.case):
                run.write(figure)
    if run.options["compacted"]:
        with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
            second = measure_compacted(Path(folder), run.options["compacted"], run.options["tasks"], run.seconds)
            for figure in second:
                if run.wants(figure.case):
                    run.write(figure)


if __name__ == "__main__":
    main()
