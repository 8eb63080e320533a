"""Latency of networks beside busy processes: ours and ONNX Runtime's.

    python -m benchmarks.load [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--spins N,N]

Networks of benchmarks/zoo run with the default schedule, each contender in its own process, interleaved, beside 0, 1
and 4 processes that never sleep. Lines: the median, the 99th percentile and the largest time of a run. Contenders:
`retune`; `retune-passive` with OMP_WAIT_POLICY=passive; `retune-spin-N` with GOMP_SPINCOUNT=N, by default libgomp's own
300,000; `onnxruntime`; `retune-1`, which runs on one thread.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import onnx

from benchmarks import zoo
from benchmarks.harness import Figure, Run, parse, percentile
from benchmarks.network_peers import SESSION, Arrays, contender, seeded_inputs
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.processes.worker_process import WorkerProcess

CASES = ("mlp", "gpt2_block", "mobilenet_v2")
BUSY = (0, 1, 4)
OURS, PASSIVE, ALONE = "retune", "retune-passive", "retune-1"
LIBGOMP = "300000"
PASSES = 5

_runs: list[Callable[[], object]] = []
"""What `prepare` made, in a worker process."""
_SHARES = {"median": 0.5, "99th percentile": 0.99, "maximum": 1.0}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    spins = {"spins": ("N,N", f"values of GOMP_SPINCOUNT to compare with; {LIBGOMP}")}
    help_ = "seconds for each contender beside each load"
    run = parse(__doc__, argv, seconds=2.5, seconds_help=help_, threads=(2,), texts=spins)
    run.write_cases(CASES, figures)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """All contenders beside all loads on one network."""
    spins = (run.texts["spins"] or LIBGOMP).split(",")
    environments: dict[str, Mapping[str, str]] = {OURS: {}, PASSIVE: {"OMP_WAIT_POLICY": "passive"}}
    environments |= {f"{OURS}-spin-{count}": {"GOMP_SPINCOUNT": count} for count in spins}
    environments |= {SESSION: {}, ALONE: {}}
    with tempfile.TemporaryDirectory(prefix="retune-load-") as folder, ExitStack() as stack:
        model = zoo.build(name)
        inputs = seeded_inputs(model)
        ours, theirs = _files(name, model, threads, Path(folder))
        workers = {}
        for backend, environment in environments.items():
            workers[backend] = stack.enter_context(WorkerProcess(environment=environment))
            path, kind = (theirs, SESSION) if backend == SESSION else (ours, OURS)
            workers[backend].call("benchmarks.load:prepare", kind, path, inputs, 1 if backend == ALONE else threads)
        for count in BUSY:
            times: dict[str, list[float]] = {backend: [] for backend in workers}
            with _busy_processes(count):
                for _ in range(PASSES):
                    for backend, worker in workers.items():
                        times[backend] += worker.call("benchmarks.load:run_times", run.seconds / PASSES)
            for backend, samples in times.items():
                for metric, share in _SHARES.items():
                    value = percentile(samples, share) * 1e3
                    details = {"busy": count, "runs": len(samples)}
                    used = 1 if backend == ALONE else threads
                    yield Figure(name, backend, used, f"{metric} beside {count} busy", value, "ms", details=details)


def prepare(backend: str, path: Path, inputs: Arrays, threads: int) -> None:
    """Make this process a contender."""
    _runs.append(contender(backend, path, inputs, threads)[0])


def run_times(seconds: float) -> list[float]:
    """Seconds of each run, for so many seconds, after one that does not count."""
    (run,) = _runs
    run()
    times: list[float] = []
    began = start = time.perf_counter()
    while start - began < seconds:
        run()
        end = time.perf_counter()
        times.append(end - start)
        start = end
    return times


def _files(name: str, model: onnx.ModelProto, threads: int, folder: Path) -> tuple[Path, Path]:
    network = zoo.extract(name, str(Target.host()), threads)
    compiled = compile_graph(network.graph, network.target, {}, threads=threads, cut=network.partition)
    onnx.save_model(model, str(folder / "model.onnx"))
    return compiled.save(folder / "model.retune"), folder / "model.onnx"


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
