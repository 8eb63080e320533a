"""Memory and file growth of a long run with synthetic times.

    python -m benchmarks.soak [--only REGEX] [--seconds S] [--out FILE] [--rounds N] [--batch N]

`benchmarks.simulated` tunes an MLP for N rounds on embedded Prefect in a separate process, while this one samples the
memory and the open files of its processes. Growth is the difference between the first fifth of the rounds and the last,
so what a run needs in any case does not count; `--seconds` is how long the run may take. A round's seconds are those of
everything but measuring.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import Figure, Run, parse
from benchmarks.simulated import Simulation, command
from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError
from retune.flows.parameters import TuneJob
from retune.storage.runs import ROUNDS

POLL_SECONDS = 0.5
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Look:
    """A sample of a run.

    It holds the rounds done, the seconds since the first round, the resident bytes and open files of the run's own
    process, and the resident bytes of Prefect's.
    """

    rounds: int
    seconds: float
    memory: int
    files: int
    server_memory: int


@dataclass(frozen=True, slots=True)
class Soak:
    """The samples of a run: at least two in its first and two in its last fifth."""

    looks: tuple[Look, ...]

    def typical(self, fifth: int, field: str) -> float:
        """The median of a field in one fifth of the rounds, 0 … 4."""
        return float(statistics.median(getattr(look, field) for look in self._looks(fifth)))

    def _looks(self, fifth: int) -> list[Look]:
        last = self.looks[-1].rounds
        return [look for look in self.looks if fifth <= 5 * look.rounds / last <= fifth + 1]

    def growth(self, field: str) -> float:
        """What a field has grown by from the first fifth to the last."""
        return self.typical(4, field) - self.typical(0, field)

    def round_seconds(self, fifth: int) -> float:
        """Seconds a round in one fifth of the rounds."""
        here = self._looks(fifth)
        return (here[-1].seconds - here[0].seconds) / max(1, here[-1].rounds - here[0].rounds)


def soak(network: str, rounds: int, batch: int, limit: float, home: Path) -> Soak:
    """Run so many rounds of `batch` programs in `home`, at most `limit` seconds long.

    Raises: MeasureError when the run fails or takes too long.
    """
    (home / "prefect").mkdir(parents=True)
    job = TuneJob.of(network, trials=rounds * batch, threads=1, batch=batch, home=str(home))
    environment = config.child_environment(config.prefect_environment(home))
    looks: list[Look] = []
    began = time.monotonic()
    with (home / "log.txt").open("wb") as log:
        process = subprocess.Popen(command(Simulation(job.parameters())), env=environment, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                done, seconds = _rounds(home), time.monotonic() - began
                if seconds > limit:
                    raise MeasureError(f"only {done} of {rounds} rounds in {limit:g} s")
                if done:
                    looks += _look(process.pid, done, seconds)
                time.sleep(POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
    if process.returncode or not looks:
        raise MeasureError(f"the run failed:\n{(home / 'log.txt').read_text(encoding='utf-8')}")
    return Soak(tuple(looks))


def _rounds(home: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in home.glob(f"runs/*/{ROUNDS}"))


def _look(pid: int, done: int, seconds: float) -> Iterator[Look]:
    try:
        own = psutil.Process(pid)
        server = sum(child.memory_info().rss for child in own.children(recursive=True))
        yield Look(done, seconds, own.memory_info().rss, own.num_fds(), server)
    except psutil.NoSuchProcess:
        return


def figures(found: Soak) -> Iterator[Figure]:
    """What a watched run comes to."""
    details: dict[str, object] = {"rounds": found.looks[-1].rounds}

    def figure(case: str, metric: str, value: float, unit: str) -> Figure:
        return Figure(case, "retune", 1, metric, value, unit, details=details)

    for case, field in (("memory of the run", "memory"), ("memory of Prefect", "server_memory")):
        yield figure(case, "in the first fifth", found.typical(0, field) / MIB, "MiB")
        yield figure(case, "growth to the last fifth", found.growth(field) / MIB, "MiB")
    yield figure("open files", "in the first fifth", found.typical(0, "files"), "files")
    yield figure("open files", "growth to the last fifth", found.growth("files"), "files")
    for fifth in (0, 4):
        yield figure("a round without measuring", f"in fifth {fifth + 1}", found.round_seconds(fifth), "s")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures of one soak."""
    run: Run = parse(
        __doc__,
        argv,
        seconds=3600,
        seconds_help="most seconds for the run",
        options={"rounds": (500, "rounds of the run"), "batch": (16, "programs in a round")},
    )
    with tempfile.TemporaryDirectory(prefix="retune-soak-") as folder:
        found = soak("mlp", run.options["rounds"], run.options["batch"], run.seconds, Path(folder) / "home")
    for figure in figures(found):
        if run.wants(figure.case):
            run.write(figure)


if __name__ == "__main__":
    main()
