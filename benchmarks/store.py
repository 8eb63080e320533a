"""In: a number of rows. Out: JSON lines with the cost of appends and queries.

    python -m benchmarks.store [--only REGEX] [--seconds S] [--out FILE] [--rows N]

The store is filled with `--rows` rows, or for `--seconds` when that ends sooner, in a temporary folder that is removed.
Always: synthetic records. The bars are 50 ms for an append, 1 s for the best of every task among 10 million rows.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, Run, parse, percentile
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
    with connect(root) as sql:
        yield figure("sql_best_view", "cold", timed(sql.sql("SELECT task_name, seconds FROM best").fetchall))
        counted = sql.sql("SELECT status_name, count(*) FROM records GROUP BY ALL")
        yield figure("sql_failures_by_cause", "warm", timed(counted.fetchall))


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON line for every case that `--only` lets through."""
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="most seconds to fill the store for",
        options={"rows": (100_000, "rows in the store")},
    )
    with tempfile.TemporaryDirectory(prefix="retune-store-") as folder:
        for figure in measure(Path(folder), run):
            if run.wants(figure.case):
                run.write(figure)


if __name__ == "__main__":
    main()
