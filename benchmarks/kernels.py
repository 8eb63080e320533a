"""Speed of hand-written schedules: the code generator without the search.

    python -m benchmarks.kernels [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--plot FILE]

Every schedule is written with the schedule functions, and weights are packed as it requires. The multiply-add peak, and
a stream through as many bytes as the operator must read and write, are contenders themselves, interleaved with the
others. Neither can be exceeded: `peak_ratio` is the longer of their two times divided by that of the kernel, and
`bound` says which one it was. NumPy, ONNX Runtime and PyTorch take part where they are installed. A value is that of
the fastest call.
"""

from collections.abc import Iterator, Sequence

from benchmarks.harness import Figure, Run, parse
from benchmarks.kernel_cases import CASES
from benchmarks.kernel_timing import CaseTimes
from benchmarks.peak import measured_peak
from benchmarks.peers import peer_environment
from retune.compiler.measure.processes.worker_process import WorkerProcess

ATTEMPTS, UNDISTURBED = 3, 0.9
"""A case whose passes saw less than this share of the peak was disturbed by other programs: it is timed again, so often
at the most.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Print a JSON line for every case, library and thread count."""
    run = parse(__doc__, argv, seconds=0.5, seconds_help="seconds of timing for each contender", threads=(1, 2))
    run.write_cases(CASES, figures)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """One case in its own process, since libraries keep their threads."""
    with WorkerProcess(environment=peer_environment(threads)) as worker:
        for _ in range(ATTEMPTS):
            times: CaseTimes = worker.call("benchmarks.kernel_timing:time_case", name, threads, run.seconds)
            if times.peak >= UNDISTURBED * measured_peak(threads):
                break
    in_bytes = CASES[name].in_bytes
    metric, unit, work = ("bandwidth", "GB/s", times.gigabytes) if in_bytes else ("speed", "GFLOP/s", times.gflop)
    arithmetic, memory = times.gflop / times.peak, times.gigabytes / times.bandwidth
    for one in times.contenders:
        details: dict[str, object] = {
            "ms": round(one.seconds * 1e3, 4),
            "bound": "memory" if memory > arithmetic else "arithmetic",
            "peak_gflops": round(times.peak, 1),
            "peak_gbs": round(times.bandwidth, 1),
        }
        ratio = max(arithmetic, memory) / one.seconds
        yield Figure(name, one.backend, threads, metric, work / one.seconds, unit, ratio, one.error, details)


if __name__ == "__main__":
    main()
