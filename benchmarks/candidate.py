"""In: how many programs to sample. Out: JSON lines, what a candidate costs from state to object code.

    python -m benchmarks.candidate [--only REGEX] [--seconds S] [--out FILE] [--programs N]

For every convolution of a ResNet-18 programs are asked from an untrained search and compiled, in this process and on
one core: CPU and wall milliseconds, in all and by part (replay and lowering, LLVM text, LLVM itself). Always: the same
programs, at most `--seconds` a convolution. The bar is 60 ms.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.harness import Figure, Run, parse, percentile
from compiler.codegen.cpu import compile_module, function_attributes
from compiler.codegen.kernel import write_kernel
from compiler.cost_model import RandomModel
from compiler.driver.extract import extract_network
from compiler.errors import RetuneError
from compiler.lower.pipeline import lower
from compiler.schedule.state import replay
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask
from compiler.search.options import SearchOptions
from compiler.search.policy import SketchPolicy
from compiler.target import Target

BAR_MS = 60.0
PARTS = ("lower", "text", "llvm")
ALL = "resnet18_convolutions"

Sample = tuple[tuple[float, float], ...]
"""CPU and wall seconds of every part of one program."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print JSON lines for every convolution, then for all of them."""
    run = parse(
        __doc__,
        argv,
        seconds=10,
        seconds_help="most seconds of compiling for each convolution",
        options={"programs": (32, "programs of each convolution")},
    )
    samples: list[Sample] = []
    failures = 0
    for task in extract_network("resnet18", str(Target.host()), 2).tasks:
        if "conv2d" not in task.name or not run.wants(task.name):
            continue
        found, failed = compile_programs(task, run)
        for figure in totals(task.name, found, failed):
            run.write(figure)
        samples += found
        failures += failed
    for figure in (*totals(ALL, samples, failures), *parts(ALL, samples)):
        run.write(figure)


def compile_programs(task: SearchTask, run: Run) -> tuple[list[Sample], int]:
    """Costs of the task's programs, and how many could not be compiled. The first one warms up and does not count."""
    policy = SketchPolicy(task, RandomModel(0), SearchOptions(), 0)
    programs = [candidate.steps for candidate in policy.ask(run.options["programs"], 0)]
    if not programs:
        return [], 0
    samples, failed = [], 0
    began = time.perf_counter()
    for steps in (programs[0], *programs):
        try:
            samples.append(compile_one(task, steps))
        except RetuneError:
            failed += 1
        if len(samples) > 1 and time.perf_counter() - began > run.seconds:
            break
    return samples[1:], failed


def compile_one(task: SearchTask, steps: Sequence[Step]) -> Sample:
    """What `compiler.driver.build` does, part by part."""
    width = task.hardware.vector_unit_bytes
    marks = [_now()]
    function = lower(replay(task.dag, steps), "kernel", task.hardware)
    marks.append(_now())
    text = write_kernel(function, width, task.hardware.stack_bytes, function_attributes(width))
    marks.append(_now())
    compile_module(text.llvm, task.target)
    marks.append(_now())
    return tuple((after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks))


def totals(case: str, samples: Sequence[Sample], failed: int) -> Iterator[Figure]:
    """Median and 90th percentile of the whole way."""
    if not samples:
        return
    for clock, column in (("CPU", 0), ("wall", 1)):
        times = [sum(part[column] for part in sample) * 1e3 for sample in samples]
        details: dict[str, object] = {
            "programs": len(times),
            "failed": failed,
            "share_within_the_bar": round(sum(each <= BAR_MS for each in times) / len(times), 3),
        }
        yield Figure(case, "retune", 1, f"{clock} time, median", statistics.median(times), "ms", details=details)
        yield Figure(case, "retune", 1, f"{clock} time, p90", percentile(times, 0.9), "ms", details=details)


def parts(case: str, samples: Sequence[Sample]) -> Iterator[Figure]:
    """Median CPU time of every part."""
    if not samples:
        return
    for number, part in enumerate(PARTS):
        times = [sample[number][0] * 1e3 for sample in samples]
        yield Figure(case, "retune", 1, f"CPU time of {part}, median", statistics.median(times), "ms")
        yield Figure(case, "retune", 1, f"CPU time of {part}, p90", percentile(times, 0.9), "ms")


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


if __name__ == "__main__":
    main()
