"""In: nothing. Out: records to store, and a writer process. Always: only what a test names differs.

Run as a program, `samples.py ROOT NAME ROUNDS` appends rounds of eight records and prints the ids of
each after it was acknowledged; ROUNDS of 0 goes on until the process is killed.
"""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from compiler.measure.record import MeasureRecord, MeasureStatus
from storage.files import new_id
from storage.layout import part_names
from storage.medium import LocalMedium
from storage.parquet import ParquetRecordStore

CPU = "llvm -mcpu=znver5"

_ROOT = Path(__file__).parents[3]
_OWNER = """
import sys, time
from storage.runs import RunLedger
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


def timed(task_key: str, seconds: float, **changes: object) -> MeasureRecord:
    """A trial that succeeded."""
    record = replace(_BASE, record_id=new_id(), task_key=task_key, costs=(seconds,))
    return replace(record, **changes)  # type: ignore[arg-type]


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
    return [root / name for name in part_names(LocalMedium(root), target, task_key)]


def write_rounds(root: str, name: str, rounds: int) -> None:
    """Append rounds of eight and print what was acknowledged."""
    store = ParquetRecordStore(root)
    for number in range(rounds) if rounds else itertools.count():
        records = [timed("shared", 1e-3 + index, run_id=name, round=number) for index in range(8)]
        store.append(records)
        sys.stdout.write(" ".join(record.record_id for record in records) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    write_rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]))
