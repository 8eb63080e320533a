"""Overhead of the workflow engine in a real tuning run, in a separate folder.

    python -m benchmarks.orchestration [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--batch N]

`tune-network` runs on embedded Prefect in a fresh process, which starts as `retune tune` does. Orchestration is the
time inside a round that is not spent on proposing, measuring, storing or learning, and the time of the command outside
the flow, which begins with its first part and ends with its last: the start and end of Prefect and of the interpreter.
The target is 5% of the wall time of a command that tunes for ten minutes, `--seconds 600`.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Run, parse
from benchmarks.tuning import BATCH
from retune.compiler.core import config

CASES = ("mlp", "mobilenet_v2", "resnet18")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for the share of rounds, then for what the command takes."""
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="seconds of tuning for each network",
        threads=(2,),
        options={"batch": (BATCH, "most programs in a round")},
    )
    run.write_cases(CASES, figures)


def arguments(network: str, threads: int, minutes: float, batch: int, home: Path) -> dict[str, Any]:
    """What `tune-network` is called with."""
    return {"network": network, "threads": threads, "minutes": minutes, "batch": batch, "home": str(home)}


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune one network by the flow, in its own process, and account for its wall time."""
    with tempfile.TemporaryDirectory(prefix="retune-orchestration-") as folder:
        home = Path(folder) / "home"
        (home / "prefect").mkdir(parents=True)
        job = arguments(name, threads, run.seconds / 60, run.options["batch"], home)
        times = Path(folder) / "times.json"
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "retune.flows.cli.launch", "benchmarks.flow_times", json.dumps(job), str(times)],
            env=config.child_environment(config.prefect_environment(home)),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        command = time.perf_counter() - began
        found = json.loads(times.read_text(encoding="utf-8"))
    rounds, stages, flow = found["rounds"], found["stages"], found["flow"]
    share = 100 * (rounds - sum(stages.values())) / rounds
    details = {
        "rounds": found["count"],
        "seconds_in_rounds": round(rounds, 2),
        "seconds_by_stage": {stage: round(seconds, 3) for stage, seconds in stages.items()},
    }
    yield Figure(name, "retune", threads, "orchestration share of rounds", share, "%", details=details)
    parts = found["parts"]
    outside = {"seconds_by_part": {part: round(seconds, 2) for part, seconds in parts.items()}}
    yield Figure(name, "retune", threads, "wall time of the flow", flow, "s", details=outside)
    yield Figure(name, "retune", threads, "wall time of the command beyond the flow", command - flow, "s")
    engine = rounds - sum(stages.values()) + parts["start"] + parts["end"] + command - flow
    yield Figure(name, "retune", threads, "orchestration share of the command", 100 * engine / command, "%")


if __name__ == "__main__":
    main()
