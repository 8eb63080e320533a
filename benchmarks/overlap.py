"""What overlapping builds with timing saves, and how it affects the measured times.

    python -m benchmarks.overlap [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--batch N]

The same programs are measured repeatedly, alternating with and without overlap, by workers that are started before.
Lines: wall seconds of either way; then, over the programs that both timed in full, the median of (time with overlap /
time without), and the same ratio between two measurements without, which is the noise of the machine. Every program
starts from the same best time, so that early stopping treats both alike.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.harness import Figure, Run, parse
from benchmarks.operator_networks import operator_network
from benchmarks.tuning import BATCH
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement
from retune.compiler.model.base import RandomModel
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy

CASES = ("conv3x3_28x28_128_128", "conv1x1_56x56_64_256", "matmul_512x512x512", "depthwise3x3_112x112_32")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines of every operator."""
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="seconds after which an operator is not measured once more",
        threads=(1,),
        options={"batch": (BATCH, "programs to measure")},
    )
    run.write_cases(CASES, figures)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Both ways for one operator."""
    (task,) = operator_network(name, threads).tasks
    programs = [
        load_steps(candidate.steps) for candidate in SketchPolicy(task, RandomModel()).ask(run.options["batch"], 0)
    ]
    options = MeasureOptions(threads=threads, give_up_factor=1e9)
    began = time.monotonic()
    walls: dict[bool, list[float]] = {False: [], True: []}
    found: dict[bool, list[list[Measurement]]] = {False: [], True: []}
    beside, apart = (LocalMeasurer.with_options(replace(options, overlap=overlap)) for overlap in (True, False))
    with beside, apart:
        for measurer in (beside, apart):
            measurer.measure(task, programs[:4])
        while len(walls[False]) < 2 or time.monotonic() - began < run.seconds:
            for overlap, measurer in ((True, beside), (False, apart)):
                wall, results = _measured(measurer, task, programs)
                walls[overlap].append(wall)
                found[overlap].append(results)
    details = {"programs": len(programs), "times": len(walls[False])}
    for overlap, text in ((False, "without"), (True, "with")):
        yield Figure(name, "retune", threads, f"wall {text} overlap", min(walls[overlap]), "s", details=details)
    quiet, again = found[False][0::2], found[False][1::2]
    yield _ratio(name, threads, "time with / without overlap", found[True], found[False])
    yield _ratio(name, threads, "time without / without overlap", again, quiet)


def _measured(
    measurer: LocalMeasurer, task: SearchTask, programs: Sequence[Sequence[Step]]
) -> tuple[float, list[Measurement]]:
    start = time.perf_counter()
    results = measurer.measure(task, programs)
    return time.perf_counter() - start, results


def _ratio(
    name: str, threads: int, metric: str, ours: Sequence[list[Measurement]], theirs: Sequence[list[Measurement]]
) -> Figure:
    """How the times of programs compare, each the median over all measurements of the program's fastest repeat."""
    pairs = [
        (_typical(mine), _typical(other))
        for mine, other in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
        if all(result.costs for result in (*mine, *other))
    ]
    ratios = sorted(mine / other for mine, other in pairs)
    spread = {"lower_tenth": ratios[len(ratios) // 10], "upper_tenth": ratios[-1 - len(ratios) // 10]}
    return Figure(name, "retune", threads, metric, statistics.median(ratios), "", details=spread)


def _typical(results: Sequence[Measurement]) -> float:
    return statistics.median(min(result.costs) for result in results)


if __name__ == "__main__":
    main()
