"""Compile time of a program from state to object code, phase by phase.

    python -m benchmarks.compile_time [--only REGEX] [--seconds S] [--out FILE] [--plot FILE] [--programs N]

Two kinds of cases: the hand-written schedules of `benchmarks.kernels`, compiled repeatedly, and for every convolution
of a ResNet-18 the programs that an untrained search proposes. Everything runs in this process on one core; times are
CPU milliseconds. The target is 60 ms for a convolution.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

from benchmarks.harness import Figure, Run, parse, percentile
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_timing import scheduled
from retune.compiler.codegen.cpu import (
    emit_module,
    make_target_machine,
    optimized_module,
    parse_module,
)
from retune.compiler.codegen.kernel import write_kernel
from retune.compiler.codegen.subtarget import subtarget_of
from retune.compiler.core.errors import RetuneError
from retune.compiler.core.target import Target
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import pass_name
from retune.compiler.lower.pipeline import cpu_passes
from retune.compiler.model import RandomModel
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.extract import extract_network

BAR_MS = 60.0
SEARCHED = "resnet18_convolutions"

Sample = dict[str, float]
"""CPU seconds of every phase of one compilation, in order."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print JSON lines for every case, then for all searched convolutions together."""
    run = parse(
        __doc__,
        argv,
        seconds=2,
        seconds_help="most seconds of compiling for each case",
        options={"programs": (32, "programs of each searched convolution")},
    )
    for name in filter(run.wants, CASES):
        case = CASES[name]
        task, steps = scheduled(case, case.problem.graph(), 1)
        run.write_all(totals(name, *compile_all(task, [steps] * run.options["programs"], run.seconds)))
    samples: list[Sample] = []
    failures = 0
    for task in extract_network("resnet18", str(Target.host()), 2).tasks:
        if "conv2d" not in task.name or not run.wants(task.name):
            continue
        found, failed = compile_all(task, searched(task, run), run.seconds)
        run.write_all(totals(task.name, found, failed))
        samples += found
        failures += failed
    run.write_all(totals(SEARCHED, samples, failures))


def searched(task: SearchTask, run: Run) -> list[tuple[Step, ...]]:
    """Programs that an untrained search asks for."""
    policy = SketchPolicy(task, RandomModel(0), SearchOptions(), 0)
    return [load_steps(candidate.steps) for candidate in policy.ask(run.options["programs"], 0)]


def compile_all(task: SearchTask, programs: Sequence[Sequence[Step]], seconds: float) -> tuple[list[Sample], int]:
    """Costs of the programs, and how many could not be compiled. The first one warms up and does not count."""
    samples, failed = [], 0
    began = time.perf_counter()
    for steps in (*programs[:1], *programs):
        try:
            samples.append(compile_one(task, steps))
        except RetuneError:
            failed += 1
        if len(samples) > 1 and time.perf_counter() - began > seconds:
            break
    return samples[1:], failed


def compile_one(task: SearchTask, steps: Sequence[Step]) -> Sample:
    """What `retune.compiler.driver.build` does, phase by phase."""
    clock = _Clock()
    state = replay(task.dag, steps)
    clock.mark("replay")
    function = build_loops(state, "kernel")
    clock.mark("bounds and loops")
    for loop_pass in cpu_passes(task.hardware):
        function = loop_pass(function)
        clock.mark(pass_name(loop_pass))
    text = write_kernel(function, subtarget_of(task), task.hardware.stack_bytes).llvm
    clock.mark("LLVM text")
    machine = make_target_machine(task.target)
    clock.mark("target machine")
    module = parse_module(text)
    clock.mark("parse")
    module = optimized_module(module, task.target, machine)
    clock.mark("optimize")
    emit_module(module, machine)
    clock.mark("emit")
    return clock.phases


class _Clock:
    """CPU time between marks."""

    def __init__(self) -> None:
        self.phases: Sample = {}
        self._last = time.process_time()

    def mark(self, phase: str) -> None:
        now = time.process_time()
        self.phases[phase] = now - self._last
        self._last = now


def totals(case: str, samples: Sequence[Sample], failed: int) -> Iterator[Figure]:
    """Median and 90th percentile of the whole way, with the median of every phase."""
    if not samples:
        return
    times = [sum(sample.values()) * 1e3 for sample in samples]
    phases = {name: round(statistics.median(sample[name] for sample in samples) * 1e3, 3) for name in samples[0]}
    details: dict[str, object] = {
        "programs": len(times),
        "failed": failed,
        "share_within_the_bar": round(sum(each <= BAR_MS for each in times) / len(times), 3),
        "phases_ms": phases,
    }
    yield Figure(case, "retune", 1, "CPU time, median", statistics.median(times), "ms", details=details)
    yield Figure(case, "retune", 1, "CPU time, p90", percentile(times, 0.9), "ms", details=details)


if __name__ == "__main__":
    main()
