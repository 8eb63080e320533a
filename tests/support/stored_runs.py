"""State folders with invented runs; nothing is measured."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from retune.compiler.driver.coverage import CoverageReport
from retune.compiler.driver.limits import MachineLimits
from retune.compiler.driver.report import Comparison, Contender, Report, TaskOutcome
from retune.compiler.executor.network import Coverage, ProgramSource
from retune.compiler.measure.record import MeasureRecord
from retune.storage.parquet import ParquetRecordStore
from retune.storage.rounds import append_round
from retune.storage.runs import RunLedger
from tests.support.record_samples import failed, timed

HOSTILE = "<script>alert('x')</script> & \"friends\""
"""A string that must come out as itself, wherever it is shown."""


def finished_run(home: Path, tasks: int = 9, network: str = "resnet18") -> str:
    """A run that came to its end, with failures, a kernel without a record, and everything else a page shows."""
    ledger = RunLedger(home)
    request: dict[str, str | int | float | None] = {
        "network": network,
        "threads": 2,
        "device": "host",
        "target": "llvm",
        "home": str(home),
        "seed": 0,
    }
    with ledger.open_or_resume(f"finished {network}", request) as run:
        records = list(_records(run.run_id, tasks))
        ParquetRecordStore(home).append(records)
        for number in range(2 * tasks):
            row: dict[str, str | int | float | None] = {
                "round": number,
                "task_key": f"w{number % tasks}",
                "elapsed": 3.0 * (number + 1),
            }
            latency = None if number < tasks else 0.1 / (number - tasks + 2)
            accuracy = min(0.9, 0.5 + number / 50)
            append_round(home, run.run_id, {**row, "latency": latency, "model_pair_accuracy": accuracy})
        outcomes = tuple(_outcome(f"w{number}", records) for number in range(tasks))
        guess = TaskOutcome("pool", 1, 1e6, 0, 1e-5, 9e-6, "", True, False, "too small for trials", "wp", 1 << 20)
        unknown = TaskOutcome("odd", 1, 0.0, 0, math.inf, math.inf, "", False, False, HOSTILE, "wo", 0)
        beaten = ("winograd", 2, 1e8, 16, 1.0, 1.0, "", False, False, "another is faster", "wl", 1 << 20, False)
        lost = TaskOutcome(*beaten)
        kernels = (
            Coverage("conv", "w0", 2, True, "record", "", ProgramSource.RECORD, 3e8),
            Coverage("pool", "wp", 1, True, None, "", ProgramSource.GUESS, 1e8),
        )
        ours = (Contender("untuned", 0.1, 1e-7), Contender("tuned", 0.01, 2e-7))
        contenders = (*ours, Contender("ONNX Runtime", 0.012, None))
        folder = home / "runs" / run.run_id
        report = Report(
            run.run_id,
            dict(request),
            len(records),
            3.0 * tasks,
            Comparison("ONNX Runtime", contenders),
            CoverageReport.of(kernels),
            (*outcomes, guess, unknown, lost),
            str(folder / "resnet18.retune"),
            str(home / "records"),
            str(folder),
            MachineLimits(2, 460.0, 70.0, 250.0),
        )
        report.write()
        ledger.complete(run.run_id, report.summary())
        return run.run_id


def interrupted_run(home: Path) -> str:
    """A run that was stopped after its first round."""
    request = {"network": "mlp", "threads": 2, "device": "host"}
    with RunLedger(home).open_or_resume("interrupted", request) as run:
        ParquetRecordStore(home).append(list(_records(run.run_id, 1)))
        append_round(home, run.run_id, {"round": 0, "task_key": "w0", "elapsed": 1.0, "latency": None})
        return run.run_id


def _records(run_id: str, tasks: int) -> Iterator[MeasureRecord]:
    """Sixteen trials of every task, the first of them untuned, every seventh failed."""
    for task in range(tasks):
        for trial in range(16):
            about = {
                "run_id": run_id,
                "task_name": f"conv2d_3x3_c64_{task}",
                "round": task,
                "predicted": None if trial == 0 else 1 - trial / 20,
                "mutation": "default" if trial == 0 else "tile",
                "steps": json.dumps([trial]),
            }
            if trial % 7 == 6:
                yield failed(f"w{task}", error=f"no answer within {trial} s\n{HOSTILE}", **about)
            else:
                yield timed(f"w{task}", (1 + task) * 1e-3 / (1 + trial % 5), **about)


def _outcome(key: str, records: list[MeasureRecord]) -> TaskOutcome:
    mine = [record for record in records if record.task_key == key]
    best = min(mine, key=lambda record: record.seconds)
    number = int(key[1:])
    flops, moved = 8e7 * (number + 1) * (1 - 0.1 * number), 1 << (18 + number % 6)
    default = mine[0].seconds
    return TaskOutcome(
        best.task_name, 2, flops, len(mine), default, best.seconds, best.record_id, False, False, "", key, moved
    )
