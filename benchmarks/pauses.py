"""Latency of a network that is called now and then, as by a server, next to ONNX Runtime and OpenVINO.

    python -m benchmarks.pauses [--only REGEX] [--threads N] [--seconds S] [--pause MS] [--out FILE]

Between two calls the process sleeps for `--pause`, and all its threads with it. Each contender has a fresh process, and
`--seconds`, in four passes over all of them. `retune` is the network as it is compiled without records,
`retune-unbound` the same whose threads Linux may put on any CPU (`OMP_PROC_BIND=false`). A value is the median, with
the 90th percentile beside it.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from benchmarks import zoo
from benchmarks.harness import Figure, Run, parse, percentile
from benchmarks.network_peers import OPENVINO, SESSION, contender, seeded_inputs
from retune.compiler.core import config
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.tune import openvino

OURS, UNBOUND = "retune", "retune-unbound"
_PASSES = 4


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each contender and network."""
    options = {"pause": (20, "milliseconds between two calls")}
    run = parse(__doc__, argv, seconds=6, seconds_help="of each contender", threads=(2,), options=options)
    for name in filter(run.wants, zoo.NAMES):
        for threads in run.threads:
            run.write_all(figures(name, threads, run))


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Call one network and its peers with pauses."""
    network = zoo.extract(name, str(Target.host()), threads)
    model = zoo.build(name)
    samples: dict[str, list[float]] = {OURS: [], UNBOUND: [], SESSION: []}
    if openvino.is_installed():
        samples[OPENVINO] = []
    with tempfile.TemporaryDirectory(prefix="retune-pauses-") as folder:
        compiled = compile_graph(network.graph, network.target, threads=threads, cut=network.partition)
        ours, theirs = compiled.save(Path(folder) / "network.retune"), Path(folder) / "model.onnx"
        onnx.save_model(model, str(theirs))
        inputs = seeded_inputs(model)
        for _ in range(_PASSES):
            for backend, found in samples.items():
                path = ours if backend in (OURS, UNBOUND) else theirs
                # What they wait like where PyTorch, whose libgomp spins for longer, is not loaded.
                environment = {config.GOMP_SPIN_COUNT: config.SPIN_COUNT} if path is ours else {}
                environment |= {"OMP_PROC_BIND": "false"} if backend == UNBOUND else {}
                arguments = (backend, path, inputs, threads, run.options["pause"] / 1e3, run.seconds / _PASSES)
                with WorkerProcess(environment=environment) as worker:
                    found += worker.call("benchmarks.pauses:time_calls", *arguments)
    for backend, found in samples.items():
        details = {"pause_ms": run.options["pause"], "p90_ms": round(percentile(found, 0.9) * 1e3, 3)}
        yield Figure(name, backend, threads, "latency", statistics.median(found) * 1e3, "ms", details=details)


def time_calls(
    backend: str, path: Path, inputs: Mapping[str, NDArray[Any]], threads: int, pause: float, seconds: float
) -> list[float]:
    """Seconds of each call of a contender on its file, with a pause before each."""
    run, _ = contender(backend, path, inputs, threads)
    run()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(pause)
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    main()
