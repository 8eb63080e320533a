"""Fuzzes the loaders of files: how many mutated inputs each loads, rejects or fails on.

    python -m benchmarks.fuzz [--loader NAME] [--inputs N] [--seed S] [--limit SECONDS] [--keep FOLDER] [--out FILE]

Inputs are mutated valid files: flipped bits, truncation, splices, repeated pieces, endless lengths; for JSON, zip, tar,
Parquet and protocol messages also mutated contents under correct checksums. An input is loaded, or rejected with the
loader's class of error. Anything else is a failure: another error, a process that dies, or one that does not return
within the limit. Failures are kept in the folder under their numbers; the same seed reproduces them. Inputs are loaded
in worker processes with bounded memory, and a failure does not stop the others.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.fuzzing import rehearsal, worker
from benchmarks.fuzzing.worker import CASES, GROWN, LOADED, NEXT, OTHER, REFUSED, SLOWEST
from retune.compiler.core import config

LOADERS = tuple(name for name in CASES if name != rehearsal.CASE.name)
"""The loaders that there are."""

_TICK = 0.1
_START_SECONDS = 120.0
"""How long a process may take to begin."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcomes of the inputs of one loader.

    `other` counts errors of another class, `dead` processes that ended, and `hung` inputs that took longer than the
    limit. `slowest_ms` is the slowest input in milliseconds, `grown_mb` the growth of the process's memory in
    megabytes.
    """

    loader: str
    inputs: int
    seed: int
    loaded: int
    refused: int
    other: int
    dead: int
    hung: int
    slowest_ms: float
    grown_mb: float
    seconds: float
    engine: str

    @property
    def failures(self) -> int:
        """Inputs that were neither loaded nor refused."""
        return self.other + self.dead + self.hung

    def line(self) -> str:
        """All of it as one JSON object, with the fields that the lines of every program here have."""
        figure = {"case": self.loader, "backend": "retune", "threads": 1, "metric": "failures"}
        return json.dumps({**figure, "value": self.failures, "unit": "inputs", **asdict(self)})


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for every loader; 1 when an input failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", choices=[*LOADERS, "all"], default="all")
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, metavar="SECONDS", help="for one input; 10")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where failures stay; nowhere by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the lines to this file as well")
    given = parser.parse_args(argv)
    failed = False
    for name in LOADERS if given.loader == "all" else (given.loader,):
        with tempfile.TemporaryDirectory(prefix="retune-fuzz-") as folder:
            tally = fuzz(name, given.inputs, given.seed, given.limit, Path(folder))
            if given.keep and (Path(folder) / "failures").is_dir():
                shutil.copytree(Path(folder) / "failures", given.keep, dirs_exist_ok=True)
        line = tally.line() + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(line)
        failed |= tally.failures > 0
    return int(failed)


def fuzz(name: str, inputs: int, seed: int, limit: float, folder: Path) -> Tally:
    """Give a loader so many inputs, one after the other; failures are kept in `folder / "failures"`."""
    context = multiprocessing.get_context("spawn")
    counts = context.RawArray("q", 6)  # without a lock, which a process that is killed would keep
    began = time.perf_counter()
    dead = hung = 0
    while counts[NEXT] < inputs:
        stop = min(inputs, counts[NEXT] + CASES[name].together)
        process = context.Process(target=worker.work, args=(name, seed, stop, folder, counts))
        process.start()
        in_time = _watch(process, counts, limit)
        if in_time and process.exitcode == 0:
            continue
        number = counts[NEXT]
        kept = worker.current(folder, CASES[name], number)
        if not kept.exists():
            raise RuntimeError(f"{name}: the process for inputs from {number} on ended before the first of them")
        (folder / "failures").mkdir(exist_ok=True)
        kept.replace(folder / "failures" / kept.name)
        dead, hung = dead + in_time, hung + (not in_time)
        counts[NEXT] = number + 1
    return Tally(
        name,
        inputs,
        seed,
        counts[LOADED],
        counts[REFUSED],
        counts[OTHER],
        dead,
        hung,
        counts[SLOWEST] / 1e3,
        counts[GROWN] / 1024,
        round(time.perf_counter() - began, 1),
        config.engine_version(),
    )


def _watch(process: "multiprocessing.process.BaseProcess", counts: Sequence[int], limit: float) -> bool:
    """Wait for a process to end; one that stays at one input for longer than the limit is killed. Whether it ended.

    Time is counted in looks at it, so that it stands still while this program is stopped.
    """
    at, left = counts[NEXT], _START_SECONDS + limit
    while process.is_alive():
        process.join(_TICK)
        if counts[NEXT] != at:
            at, left = counts[NEXT], limit
        left -= _TICK
        if left < 0:
            process.kill()
            process.join()
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
