"""Speed of tuned operators over the course of tuning, next to their peers.

    python -m benchmarks.tune_ops [--only REGEX] [--threads N] [--seconds S] [--trials N] [--tvm PYTHON]
                                  [--tvm-trials N] [--out FILE] [--plot FILE]

Every operator is tuned once, with a new model. After 64, 200 and 1000 trials, and at the end, the best program is
rebuilt and verified, as the flows do it. `seconds` of a line are the tuning's until then, without that last check;
`curve` is [trials, seconds, GFLOP/s of the best so far], as the search saw them. The values are those of the fastest
call when the best programs, PyTorch, ONNX Runtime, NumPy and TVM's best program are interleaved, each where it is
installed. TVM has its own interpreter, named by `--tvm`; its MetaSchedule tunes the same operator in the same run.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.curves import curve_chart
from benchmarks.harness import Figure, Run, interleaved, parse
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_peers import peers
from benchmarks.kernel_timing import bound_kernel
from benchmarks.metaschedule import TVM, MetaSchedule, Point
from benchmarks.peak import measured_peak
from benchmarks.peers import peer_environment, relative_error
from benchmarks.problems import Convolution, LayerNorm, Problem, Softmax, random_inputs
from benchmarks.tuning import BATCH, SHORTLIST, Workers, play_round, write_tuned
from retune.compiler.core import config
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.measure.options import network_options
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import DEFAULT_SCHEDULE, MeasureRecord, MeasureStatus
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.tuning import RunHeader, begin
from retune.compiler.tune.tuning_loop import Budget
from retune.compiler.tune.winners import choose_best

OURS = "retune"
MILESTONES = (64, 200, 1000)
ROUNDS, PASS_SECONDS = 3, 0.03
"""The contenders alternate so often before and after TVM's program, which runs in its own process."""

_NAMES = (
    "matmul_512x512x512",
    "matmul_1024x1024x1024",
    "batch_matmul_12x128x64x128",
    "conv3x3_56x56_64_64",
    "conv3x3_28x28_128_128",
    "conv3x3_14x14_256_256",
    "conv3x3_7x7_512_512",
    "conv1x1_56x56_64_256",
    "depthwise3x3_112x112_32",
    "conv3x3_d2_28x28_256_256",
    "conv3x3_g32_14x14_512_512",
    "conv_transpose4x4_s2_16x16_512_256",
    "conv1d_3_512_256_256",
    "conv3d_3x3x3_4x14x14_256_256",
)

OPERATORS: Mapping[str, Problem] = {
    **{name: CASES[name].problem for name in _NAMES},
    "conv3x3_bn_relu_56x56_64_64": Convolution((56, 56), (64, 64), 3, epilogue=True, norm=True),
    "layer_norm_1024x1024": LayerNorm((1024, 1024)),
    "softmax_1024x1024": Softmax((1024, 1024)),
}
"""Every operator by name; see `benchmarks.kernel_cases` for the names."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """The state of a search after some trials: the best program (None: the default schedule), how many programs
    had failed, which were rejected by the last check, and the curve until then.
    """

    winner: MeasureRecord | None
    failed: int
    rejected: tuple[str, ...]
    curve: tuple[Point, ...]

    def told(self, task: SearchTask) -> dict[str, object]:
        """The fields that a line has about it."""
        trials, seconds, _ = self.curve[-1]
        return {
            "trials": trials,
            "seconds": round(seconds, 2),
            "failed": self.failed,
            "rejected": list(self.rejected),
            "served_by": self.winner.mutation if self.winner else DEFAULT_SCHEDULE,
            "curve": speeds(self.curve, task),
        }


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for every operator, thread count and contender; one for every milestone of ours."""
    run = parse(
        __doc__,
        argv,
        seconds=0.5,
        seconds_help="seconds of timing for each contender",
        threads=(1, 2),
        options={
            "trials": (200, "programs that we measure for each operator"),
            "tvm-trials": (64, "programs that TVM measures for each operator"),
            "seed": (0, "of both searches"),
        },
        texts={"tvm": ("PYTHON", "an interpreter that has TVM with MetaSchedule; left out: no TVM")},
        draw=curve_chart,
    )
    write_tuned(run, OPERATORS, figures)


def figures(name: str, threads: int, workers: Workers, run: Run) -> Iterator[Figure]:
    """Tune one operator, ours and TVM's search one after the other, and time what they found beside the other peers."""
    target = Target.host()
    task = SearchTask(name, OPERATORS[name].graph(), target, hardware_of(target, threads))
    found = milestones(task, threads, workers, run)
    programs = [dump_steps(default_steps(task.dag)) if one.winner is None else one.winner.steps for one in found]
    passes = max(1, round(run.seconds / PASS_SECONDS / ROUNDS))
    with ExitStack() as stack:
        tvm = None
        if run.texts["tvm"]:
            trials, seed = run.options["tvm-trials"], run.options["seed"]
            tvm = stack.enter_context(MetaSchedule(run.texts["tvm"], OPERATORS[name], threads, trials, seed))
        worker = stack.enter_context(WorkerProcess(environment=peer_environment(threads)))
        seconds: dict[str, float] = {}
        for _ in range(ROUNDS):
            times, errors = worker.call("benchmarks.tune_ops:time_contenders", name, task, programs, threads, passes)
            if tvm:
                times[TVM] = min(tvm.times(passes * PASS_SECONDS), default=math.nan)
            seconds = {each: min(spent, seconds.get(each, spent)) for each, spent in times.items()}
    details: dict[str, dict[str, object]] = {f"{OURS}{place}": one.told(task) for place, one in enumerate(found)}
    if tvm:
        details[TVM] = {**tvm.told, "curve": speeds(tvm.curve, task)}
    for each, spent in seconds.items():
        speed = task.flop_count / spent / 1e9
        backend = OURS if each.startswith(OURS) else each
        ratio = speed / measured_peak(threads)
        told = {"ms": round(spent * 1e3, 4), **details.get(each, {})}
        yield Figure(name, backend, threads, "speed", speed, "GFLOP/s", ratio, errors.get(each), told)


def milestones(task: SearchTask, threads: int, workers: Workers, run: Run) -> list[Milestone]:
    """Tune an operator, and choose what serves it at every milestone up to the trials asked for."""
    trials, seed = run.options["trials"], run.options["seed"]
    options = network_options(threads, 0).to_json()
    run_info = RunHeader("benchmark", task.name, str(task.target), config.device_name(), threads, seed, options)
    tuning = begin([task], [1], run_info)
    records: list[MeasureRecord] = []
    curve: list[Point] = []
    found: list[Milestone] = []
    began = time.monotonic()
    for goal in (*(each for each in MILESTONES if each < trials), trials):
        for a_round in tuning.rounds_until(Budget(goal, None), BATCH):
            records += play_round(tuning, replace(a_round, spent=0.0), workers, began)[0]
            curve.append((tuning.trials, time.monotonic() - began, tuning.tasks[0].state.best_seconds))
        pause = time.monotonic()
        fastest = sorted((one for one in records if one.costs), key=lambda one: one.seconds)[:SHORTLIST]
        winner = choose_best(
            task, [record.program for record in fastest], workers.measurer.builder, workers.measurer.runner
        )
        failed = sum(one.status is not MeasureStatus.OK for one in records)
        served = winner.program.record_id
        record = next((one for one in fastest if one.record_id == served), None)
        found.append(Milestone(record, failed, winner.rejected, tuple(curve)))
        began += time.monotonic() - pause
        if tuning.tasks[0].state.exhausted:
            break
    return found


def speeds(curve: Sequence[Point], task: SearchTask) -> list[tuple[int, float, float]]:
    """The curve with GFLOP/s."""
    return [(trials, round(spent, 2), round(task.flop_count / best / 1e9, 2)) for trials, spent, best in curve]


def time_contenders(
    name: str, task: SearchTask, programs: Sequence[str], threads: int, passes: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of the fastest call, and error, of every program (`retune0`, `retune1`, …) and of the other libraries."""
    problem = OPERATORS[name]
    arrays = random_inputs(task.dag)
    wanted = problem.reference(arrays)
    ours = {
        f"{OURS}{place}": bound_kernel(task, load_steps(text), arrays, threads) for place, text in enumerate(programs)
    }
    others = peers(problem, arrays, threads)
    runs: dict[str, Callable[[], object]] = {backend: call for backend, (call, _) in ours.items()}
    runs |= {backend: call.run for backend, call in others.items()}
    seconds = interleaved(runs, passes=passes, pass_seconds=PASS_SECONDS, figure=min)
    results = {backend: output for backend, (_, output) in ours.items()}
    results |= {backend: call.result() for backend, call in others.items()}
    return seconds, {backend: relative_error(result, wanted) for backend, result in results.items()}


if __name__ == "__main__":
    main()
