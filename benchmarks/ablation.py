"""Ablation of the search: speed of the best program found with one part of the search switched off.

    python -m benchmarks.ablation [--only REGEX] [--threads N] [--out FILE] [--plot FILE] [--trials N] [--seeds N]

`--only` selects lines by "operator: part". Every operator is tuned with all parts and then without each of them, with
the same seeds, on this machine. A line holds the best speed after 64 trials, or after all, as the median over seeds,
and `ratio`, that speed divided by the whole search's. Warm starts come from a similar operator that is tuned first, for
64 trials. A single process does all timing, so variants differ only in their programs.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.harness import Figure, Run, parse
from benchmarks.operator_networks import operator_network
from benchmarks.peak import measured_peak
from benchmarks.tuning import Workers, begin_tuning, open_workers, play_round
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.tuning_loop import Budget

SIBLINGS = {
    "matmul_512x512x512": "matmul_1024x1024x1024",
    "conv3x3_28x28_128_128": "conv3x3_56x56_64_64",
    "conv3x3_7x7_512_512": "conv3x3_14x14_256_256",
    "conv1x1_14x14_256_1024": "conv1x1_56x56_64_256",
    "depthwise3x3_14x14_384": "depthwise3x3_112x112_32",
}
"""Operators, and what is tuned before them."""

VARIANTS = {
    "everything": SearchOptions(),
    "without static filters": SearchOptions(static_filters=False),
    "without transfer": SearchOptions(transfer_ratio=0.0),
    "without neighbours": SearchOptions(finish_ratio=0.0),
    "without failures": SearchOptions(learn_failures=False),
    "without an analytical model": SearchOptions(prior_ratio=0.0, prior_trials=0),
    "without samples": SearchOptions(sampled_ratio=0.0),
    "without crossover": SearchOptions(crossover_probability=0.0),
    "without evolution": SearchOptions(generations=0),
}
"""The whole search, and what it is without each of its parts."""

ROUND = 32
EARLY = 64
"""Trials of the first figure, and of the similar operator."""


@dataclass(slots=True)
class Course:
    """Best seconds after every trial of one run; infinite before the first correct program."""

    best: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, records: Sequence[MeasureRecord]) -> None:
        """Take in one round."""
        for record in records:
            self.best.append(min(record.seconds, self.best[-1] if self.best else math.inf))
            self.failed += not math.isfinite(record.seconds)

    def after(self, trials: int) -> float:
        """Best seconds after so many trials, or after all when there were fewer."""
        return self.best[min(trials, len(self.best)) - 1] if self.best else math.inf


def main(argv: Sequence[str] | None = None) -> None:
    """Print two lines for every operator and variant."""
    run = parse(
        __doc__,
        argv,
        seconds=1,
        seconds_help="not used: runs are as long as their trials",
        options={"trials": (200, "trials of a run"), "seeds": (3, "runs with different seeds")},
    )
    for threads in run.threads:
        for name in SIBLINGS:
            wanted = [variant for variant in VARIANTS if run.wants(f"{name}: {variant}")]
            if wanted:
                with open_workers(threads) as workers:
                    run.write_all(figures(name, wanted, threads, workers, run))


def figures(name: str, variants: Sequence[str], threads: int, workers: Workers, run: Run) -> Iterator[Figure]:
    """The lines of one operator; variants alternate, so that a disturbance of the machine hits all of them."""
    trials, seeds = run.options["trials"], range(run.options["seeds"])
    courses: dict[str, list[Course]] = {variant: [] for variant in variants}
    for seed in seeds:
        similar: list[MeasureRecord] = []
        tune(SIBLINGS[name], SearchOptions(), min(EARLY, trials), seed, threads, workers, (), similar)
        similar = sorted((one for one in similar if one.costs), key=lambda one: one.seconds)[:3]
        for variant in variants:
            courses[variant].append(tune(name, VARIANTS[variant], trials, seed, threads, workers, similar))
    work = operator_network(name, threads).tasks[0].flop_count
    peak = measured_peak(threads)
    for after in sorted({min(EARLY, trials), trials}):
        speeds = {variant: [work / course.after(after) / 1e9 for course in found] for variant, found in courses.items()}
        whole = statistics.median(speeds[variants[0]])
        for variant, found in speeds.items():
            speed = statistics.median(found)
            details = {
                "trials": after,
                "ratio": round(speed / whole, 4) if whole else None,
                "compared_with": variants[0],
                "by_seed": [round(one, 1) for one in found],
                "failed": sum(course.failed for course in courses[variant]),
            }
            metric = f"{variant}, {after} trials"
            yield Figure(name, "retune", threads, metric, speed, "GFLOP/s", speed / peak, details=details)


def tune(
    name: str,
    options: SearchOptions,
    trials: int,
    seed: int,
    threads: int,
    workers: Workers,
    foreign: Sequence[MeasureRecord],
    kept: list[MeasureRecord] | None = None,
) -> Course:
    """One run of so many trials; its records are added to `kept`."""
    tuning = begin_tuning(operator_network(name, threads), seed, options)
    tuning.replay({}, (), foreign=foreign)
    course = Course()
    for a_round in tuning.rounds_until(Budget(trials, None, rounds_each=0), ROUND):
        records, _ = play_round(tuning, a_round, workers, 0.0)
        course.add(records)
        if kept is not None:
            kept += records
    return course


if __name__ == "__main__":
    main()
