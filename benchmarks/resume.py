"""Time to resume a run from its stored records.

    python -m benchmarks.resume [--only REGEX] [--seconds S] [--out FILE] [--programs N] [--batch N]

A ResNet-18 is searched, without the workflow engine and with synthetic times, until `--programs` programs are stored or
`--seconds` are over; then the store is read and the run replayed, as after a crash, and once more as the history of a
new run. The resumed run must propose the same next programs as the uninterrupted one.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Figure, Run, parse
from benchmarks.simulated import made_up_seconds
from benchmarks.tuning import begin_tuning
from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.record import Measurement, MeasureRecord, MeasureStatus, TaskProgram
from retune.compiler.tune.extract import ExtractedNetwork, extract_network
from retune.compiler.tune.tuning import Tuning
from retune.storage.files import new_id
from retune.storage.parquet import ParquetRecordStore

NETWORKS = ("resnet18", "mlp")


def made_up(key: str, candidate: TaskProgram) -> Measurement:
    """The measurement of a program that was not run."""
    seconds = made_up_seconds(key, candidate.steps)
    if seconds is None:
        return Measurement((), MeasureStatus.RUN_TIMEOUT, "made up", 0.05, 0.05)
    return Measurement((seconds,), MeasureStatus.OK, "", 0.05, 0.05)


def asked(tuning: Tuning, count: int) -> tuple[int | None, tuple[TaskProgram, ...]]:
    """The task of the next round, and its next programs."""
    index = tuning.choose()
    return index, () if index is None else tuning.ask(index, count)


def search(tuning: Tuning, root: Path, run: Run) -> tuple[int | None, list[str]]:
    """Search and store, as the flows do; what would have been asked for next."""
    store = ParquetRecordStore(root)
    began = time.monotonic()
    while True:
        index, candidates = asked(tuning, run.options["batch"])
        if index is None or tuning.trials >= run.options["programs"] or time.monotonic() - began > run.seconds:
            return index, [candidate.steps for candidate in candidates]
        if not candidates:
            tuning.exhaust(index, "it has no program left")
            continue
        key = tuning.tasks[index].task.workload_key
        measured = [made_up(key, candidate) for candidate in candidates]
        records = tuning.records_of(index, candidates, measured, time.monotonic() - began, new_id)
        store.append(records)
        tuning.tell(index, records)


def measure(name: str, run: Run) -> list[Figure]:
    """Search, then go on. Raises: MeasureError when the run that goes on would do something else."""
    network = extract_network(name, "llvm", 1)
    with tempfile.TemporaryDirectory(prefix="retune-resume-") as folder:
        first = begin_tuning(network)
        expected = search(first, Path(folder), run)
        began = time.perf_counter()
        records = read(Path(folder), network)
        done = time.perf_counter()
        before = time.perf_counter()
        again = begin_tuning(network)
        again.replay({}, records)
        replayed = time.perf_counter() - before
        index, candidates = asked(again, run.options["batch"])
        if (index, [candidate.steps for candidate in candidates]) != expected:
            raise MeasureError(f"{name}: the resumed run asks for other programs")
        warm = begin_tuning(network)
        history = {key: [one for one in records if one.task_key == key] for key in network.task_keys}
        before = time.perf_counter()
        warm.replay(history, ())
        learned = time.perf_counter()
    details: dict[str, object] = {"programs": len(records), "rounds": first.rounds, "tasks": len(network.tasks)}

    def figure(metric: str, value: float) -> Figure:
        return Figure(name, "retune", 1, metric, value, "s", details=details)

    return [
        figure("records read", done - began),
        figure("run replayed", replayed),
        figure("history learned by a new run", learned - before),
    ]


def read(root: Path, network: ExtractedNetwork) -> list[MeasureRecord]:
    """All records of the network's tasks, as the flows read them."""
    store = ParquetRecordStore(root)
    return [record for key in dict.fromkeys(network.task_keys) for record in store.records(key)]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the seconds of every part."""
    run = parse(
        __doc__,
        argv,
        seconds=600,
        seconds_help="most seconds for the search",
        options={"programs": (10_000, "programs to search for"), "batch": (64, "programs in a round")},
    )
    for name in filter(run.wants, NETWORKS):
        run.write_all(measure(name, run))


if __name__ == "__main__":
    main()
