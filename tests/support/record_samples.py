"""Sample records and a writer process; records differ only in what a test names.

Run as a program, `record_samples.py ROOT NAME ROUNDS` appends rounds of eight records and prints the ids of each after
it was acknowledged; ROUNDS of 0 continues until the process is killed.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from retune.compiler.measure.record import MeasureRecord, MeasureStatus, ShapeCosts, mean_costs
from retune.storage.blob_store import LocalBlobStore
from retune.storage.files import new_id
from retune.storage.layout import part_names
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import append_round

CPU = "llvm -mcpu=znver5"
DAY = 1.75e9

_ROOT = Path(__file__).parents[2]
_OWNER = """
import sys, time
from retune.storage.runs import RunLedger
run = RunLedger(sys.argv[1]).open_or_resume("f", {})
print(run.run_id, flush=True)
time.sleep(60)
"""

_BASE = MeasureRecord(
    record_id="",
    run_id="run",
    network="mlp",
    task_key='["abc", [512, 512]]',
    task_name="dense",
    target=CPU,
    device="host",
    threads=2,
    steps='[["SP", 2, 0, 512, [8, 2], 1]]',
    parent_id="",
    mutation="",
    predicted=0.5,
    costs=(1e-3,),
    status=MeasureStatus.OK,
    error="",
    build_seconds=0.05,
    run_seconds=0.1,
    options="{}",
    seed=0,
    round=0,
    elapsed=1.0,
    engine_version="0.1",
    llvm_version="20",
    timestamp=1.75e9,
)


RUN, UNFINISHED = f"{'0' * 25}A", f"{'0' * 25}B"
"""The runs of `write_store`."""


def timed(task_key: str, seconds: float, **changes: object) -> MeasureRecord:
    """A trial that succeeded."""
    record = replace(_BASE, record_id=new_id(), task_key=task_key, costs=(seconds,))
    return replace(record, **changes)  # type: ignore[arg-type]


def timed_at(task_key: str, seconds: Mapping[int, float], **changes: object) -> MeasureRecord:
    """A trial that succeeded, at equally frequent values of the symbol n with their seconds."""
    shapes = tuple(
        ShapeCosts(f'{{"n": {size}}}', 1 / len(seconds), (cost, 2 * cost)) for size, cost in sorted(seconds.items())
    )
    return timed(task_key, 1.0, shapes=shapes, costs=mean_costs(shapes), **changes)


def failed(task_key: str, **changes: object) -> MeasureRecord:
    """A trial that ran out of time."""
    status = MeasureStatus.RUN_TIMEOUT
    record = replace(_BASE, record_id=new_id(), task_key=task_key, costs=(), status=status)
    return replace(record, **{"error": "no answer within 10 s", **changes})  # type: ignore[arg-type]


@contextmanager
def another_owner(place: Path | str) -> Iterator[tuple[str, int]]:
    """The run "f" of a ledger while another process works on it, and that process, which is killed in the end."""
    owner = subprocess.Popen((sys.executable, "-c", _OWNER, str(place)), cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        yield owner.stdout.readline().strip(), owner.pid
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def part_paths(root: Path, target: str | None = None, task_key: str | None = None) -> list[Path]:
    """The record files of a store in a folder."""
    return [root / name for name in part_names(LocalBlobStore(root), target, task_key)]


def write_rounds(root: str, name: str, rounds: int) -> None:
    """Append rounds of eight and print what was acknowledged."""
    store = ParquetRecordStore(root)
    for number in range(rounds) if rounds else itertools.count():
        records = [timed("shared", 1e-3 + index, run_id=name, round=number) for index in range(8)]
        store.append(records)
        sys.stdout.write(" ".join(record.record_id for record in records) + "\n")
        sys.stdout.flush()


def write_store(root: Path) -> Path:
    """Make a state folder with one finished run of two rounds on one task, a failure, and an unfinished run."""
    first = timed("w0", 4e-3, mutation="default", round=0, run_id=RUN, elapsed=1.0, predicted=None)
    second = timed("w0", 1e-3, round=1, run_id=RUN, elapsed=2.0, predicted=0.9)
    third = timed("w0", 2e-3, round=1, run_id=RUN, elapsed=2.0, predicted=0.3, contention=0.2)
    said = "no answer within 10.5 s\nit was killed"
    lost = failed("w0", round=1, run_id=RUN, elapsed=2.0, predicted=0.95, error=said)
    again = failed("w0", round=1, run_id=RUN, elapsed=2.0, predicted=None, error="no answer within 11 s")
    confirmed = replace(second, record_id=new_id(), parent_id=second.record_id, mutation="confirmed", predicted=None)
    confirmed = replace(confirmed, costs=(1.5e-3,), timestamp=DAY + 60)
    ParquetRecordStore(root).append([first, second, third, lost, again, confirmed])
    for number, latency in ((0, 8e-3), (1, 2e-3)):
        row: dict[str, str | int | float | None] = {
            "round": number,
            "task_name": "dense",
            "trials": 2,
            "elapsed": 60.0 * (number + 1),
            "latency": latency,
        }
        append_round(root, RUN, row)
    _write_run(root, RUN, DAY + 60)
    _write_run(root, UNFINISHED, None)
    return root


def _write_run(root: Path, run_id: str, completed: float | None) -> None:
    describe = {"network": "mlp", "target": "llvm", "device": "host", "threads": 2, "seed": 0}
    summary = {"trials": 5, "elapsed": 120.0, "untuned_seconds": 8e-3, "tuned_seconds": 2e-3, "is_right": True}
    entry = {"run_id": run_id, "fingerprint": "f", "describe": describe, "started": DAY, "resumed": []}
    entry |= {"completed": completed, "summary": summary if completed else None}
    layer = {
        "name": "dense",
        "op": "dense",
        "precision": "int8",
        "float32_seconds": 2e-3,
        "seconds": 1e-3,
        "error": 1e-3,
    }
    entry["precision"] = {"precision": "auto", "layers": [layer]}
    folder = root / "runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    (root / "runs" / f"{run_id}.json").write_text(json.dumps(entry))


if __name__ == "__main__":
    write_rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]))
