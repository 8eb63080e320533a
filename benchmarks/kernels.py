"""In: seconds for each contender. Out: JSON lines, how fast code of hand-written schedules is. Always: no search.

    python -m benchmarks.kernels [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--plot FILE]

What is measured is the code generator: every schedule is written with the schedule functions, and weights are packed as
it says. Peak and memory bandwidth are contenders themselves, timed in the same turns: `peak_ratio` is the share of the
multiply-add peak, or, for a kernel that memory limits, of the bandwidth of a stream through as many bytes. NumPy, ONNX
Runtime and PyTorch stand beside where they are installed. A value is that of the fastest call.
"""

from collections.abc import Iterator, Sequence

from benchmarks.harness import Figure, Run, parse
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_timing import CaseTimes
from benchmarks.peers import peer_environment
from compiler.measure.worker_process import WorkerProcess


def main(argv: Sequence[str] | None = None) -> None:
    """Print a JSON line for every case, library and thread count."""
    run = parse(__doc__, argv, seconds=0.5, seconds_help="seconds of timing for each contender", threads=(1, 2))
    for threads in run.threads:
        for name in filter(run.wants, CASES):
            for figure in figures(name, threads, run):
                run.write(figure)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """One case in a process of its own, since libraries keep their threads."""
    with WorkerProcess(environment=peer_environment(threads)) as worker:
        times: CaseTimes = worker.call("benchmarks.kernel_timing:time_case", name, threads, run.seconds)
    memory_bound = CASES[name].memory_bound
    metric, unit = ("bandwidth", "GB/s") if memory_bound else ("speed", "GFLOP/s")
    work = times.gigabytes if memory_bound else times.gflop
    limit = times.bandwidth if memory_bound else times.peak
    for one in times.contenders:
        value = work / one.seconds
        details: dict[str, object] = {
            "ms": round(one.seconds * 1e3, 4),
            "gflops": round(times.gflop / one.seconds, 1),
            "peak_gflops": round(times.peak, 1),
            "bandwidth_gbs": round(times.bandwidth, 1),
        }
        yield Figure(name, one.backend, threads, metric, value, unit, value / limit, one.error, details)


if __name__ == "__main__":
    main()
