"""Wall time of rounds of 64 programs and of their parts.

    python -m benchmarks.round [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--batch N]

The operator is a 3x3 convolution that takes about half a millisecond on two threads. The first round, in which the
worker processes start, is a separate figure; the others, at least one, are medians. `build` and `run` are sums over the
programs, which overlap within `measure`. The target is 8 s on two cores.
"""

import statistics
import time
from collections.abc import Sequence

from benchmarks.harness import Figure, Run, parse
from benchmarks.operator_networks import operator_network
from benchmarks.tuning import BATCH, RoundTimes, begin_tuning, open_workers, play_round
from retune.compiler.tune.tuning_loop import Round

CASES = ("conv3x3_28x28_128_128",)
PARTS = ("ask", "measure", "tell", "build", "run", "total")


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for the first round and one for every part of the others."""
    run = parse(
        __doc__,
        argv,
        seconds=40,
        seconds_help="seconds after which no further round is begun",
        threads=(1, 2),
        options={"batch": (BATCH, "programs in a round")},
    )
    for threads in run.threads:
        for name in filter(run.wants, CASES):
            rounds, best = play(name, threads, run)
            write(name, threads, rounds, best, run)


def play(name: str, threads: int, run: Run) -> tuple[list[RoundTimes], float]:
    """The rounds of one operator, and its best time in seconds."""
    tuning = begin_tuning(operator_network(name, threads))
    rounds: list[RoundTimes] = []
    began = time.monotonic()
    with open_workers(threads) as workers:
        while len(rounds) < 2 or time.monotonic() - began < run.seconds:
            rounds.append(play_round(tuning, Round(0, run.options["batch"], 0.0), workers, began)[1])
            if tuning.tasks[0].state.exhausted:
                break
    return rounds, tuning.tasks[0].state.best_seconds


def write(name: str, threads: int, rounds: Sequence[RoundTimes], best: float, run: Run) -> None:
    """Print the figures of one operator."""
    later = [one for one in rounds[1:] if one.programs]
    details: dict[str, object] = {
        "programs": rounds[0].programs,
        "rounds": len(later),
        "failed": sum(one.failed for one in later),
        "operator_ms": round(best * 1e3, 4),
    }
    run.write(Figure(name, "retune", threads, "first round", rounds[0].total, "s", details=details))
    for part in PARTS:
        value = statistics.median(getattr(one, part) for one in later) if later else float("nan")
        run.write(Figure(name, "retune", threads, f"round: {part}", value, "s", details=details))


if __name__ == "__main__":
    main()
