"""State folders with invented runs; nothing is measured."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from retune.compiler.measure.record import MeasureRecord
from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.report import Comparison, Contender, Report
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger, append_round
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
        guess = KernelRow("pool", "wp", 1, 1e8, 1 << 20, default_seconds=1e-5, best_seconds=9e-6)
        guess = replace(guess, origin=ProgramOrigin.UNTESTED, note="too small for trials")
        unknown = KernelRow("odd", "wo", note=HOSTILE)
        lost = KernelRow("winograd", "wl", 2, 1e8, 1 << 20, default_seconds=1.0, best_seconds=1.0)
        lost = replace(lost, note="another is faster", used=False)
        ours = (Contender("untuned", 0.1, 1e-7), Contender("tuned", 0.01, 2e-7))
        contenders = (*ours, Contender("ONNX Runtime", 0.012, None))
        folder = home / "runs" / run.run_id
        report = Report(
            run.run_id,
            dict(request),
            len(records),
            3.0 * tasks,
            Comparison("ONNX Runtime", contenders),
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


def _outcome(key: str, records: list[MeasureRecord]) -> KernelRow:
    mine = [record for record in records if record.task_key == key]
    best = min(mine, key=lambda record: record.seconds)
    number = int(key[1:])
    flops, moved = 8e7 * (number + 1) * (1 - 0.1 * number), 1 << (18 + number % 6)
    default = mine[0].seconds
    return KernelRow(
        best.task_name,
        key,
        2,
        flops,
        moved,
        trials=len(mine),
        default_seconds=default,
        best_seconds=best.seconds,
        origin=ProgramOrigin.RECORD,
        record_id=best.record_id,
    )
