"""In: a number of rows. Out: JSON lines with the cost of appends and queries. Always: synthetic.

`python -m benchmarks.store --rows 1000000`; the store is made in a temporary folder and removed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from compiler.measure.record import MeasureRecord, MeasureStatus
from storage.files import new_id
from storage.parquet import ParquetRecordStore
from storage.query import connect

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


def measure(root: Path, rows: int) -> Iterator[tuple[str, str, float]]:
    """Case, metric and milliseconds, one after the other, on a store of at least `rows` rows."""
    rng = np.random.default_rng(0)
    store = ParquetRecordStore(root)
    appends = []
    for number in range(max(1, -(-rows // ROUND))):
        records = synthetic_round(number, rng)
        appends.append(timed(partial(store.append, records)))
    task_key = synthetic_round(0, rng)[0].task_key
    yield "append_round_of_64", "median", float(np.median(appends))
    yield "append_round_of_64", "p99", float(np.percentile(appends, 99))
    cold = ParquetRecordStore(root)
    yield "best_per_task", "cold", timed(lambda: cold.best_per_task(target=TARGET))
    yield "best_per_task", "warm", timed(lambda: cold.best_per_task(target=TARGET))
    yield "best_of_one_task", "warm", timed(lambda: cold.best(task_key, target=TARGET))
    yield "records_of_one_task", "cold", timed(lambda: cold.records(task_key, target=TARGET))
    yield "records_of_one_task", "warm", timed(lambda: cold.records(task_key, target=TARGET))
    yield "training_rows", "cold", timed(ParquetRecordStore(root).training_rows)
    with connect(root) as sql:
        yield "sql_best_view", "cold", timed(sql.sql("SELECT task_name, seconds FROM best").fetchall)
        counted = sql.sql("SELECT status_name, count(*) FROM records GROUP BY ALL")
        yield "sql_failures_by_cause", "warm", timed(counted.fetchall)


def main() -> None:
    """Print one JSON object per figure, and append them to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
        for case, metric, value in measure(Path(folder), options.rows):
            line: dict[str, Any] = {
                "case": case,
                "backend": "retune",
                "threads": 1,
                "metric": metric,
                "value": round(value, 3),
                "unit": "ms",
                "rows": options.rows,
            }
            text = json.dumps(line) + "\n"
            sys.stdout.write(text)
            if options.out:
                with options.out.open("a") as file:
                    file.write(text)


if __name__ == "__main__":
    main()
