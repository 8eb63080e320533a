"""In: seconds for each network. Out: JSON lines, its latency untuned, tuned, and in ONNX Runtime.

    python -m benchmarks.networks [--only REGEX] [--threads N] [--seconds S] [--out FILE]

A network is tuned from nothing for `--seconds`, every winner is verified and timed again, and then the three take turns
in a fresh process. Always: outputs are compared with ONNX Runtime's; a value is a median.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Figure, Run, parse
from benchmarks.tuning import Tuned, open_workers, tune
from compiler.driver.compare import REFERENCE
from compiler.driver.compile_network import compile_graph
from compiler.driver.extract import ExtractedNetwork, extract_network
from compiler.driver.report import Comparison
from compiler.frontend.network import network_bytes
from compiler.measure.peak import measured_peak
from compiler.measure.worker_process import WorkerProcess
from compiler.target import Target

NETWORKS = ("mlp", "mobilenet_v2", "resnet18")
BACKENDS = {"tuned": "retune", "untuned": "retune-untuned", REFERENCE: "onnxruntime"}


def main(argv: Sequence[str] | None = None) -> None:
    """Print three JSON lines a network and thread count."""
    run = parse(__doc__, argv, seconds=60, seconds_help="seconds of tuning for each network", threads=(1, 2))
    for threads in run.threads:
        for name in filter(run.wants, NETWORKS):
            for figure in figures(name, threads, run):
                run.write(figure)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune one network and time it beside its peers."""
    network = extract_network(name, str(Target.host()), threads)
    with open_workers(threads, network.constant_bytes) as workers:
        tuned = tune(network, workers, run.seconds)
    comparison = compare(network, tuned)
    work = sum(task.flop_count * weight for task, weight in zip(network.tasks, network.weights, strict=True))
    ours = comparison.seconds("tuned")
    spent: dict[str, object] = {
        "trials": tuned.trials,
        "failed": tuned.failed,
        "tuning_seconds": round(tuned.seconds, 1),
        "tasks": len(network.tasks),
        "tasks_on_the_default_schedule": len(network.tasks) - len(tuned.best),
        "times_as_fast_as": {
            BACKENDS[one.name]: round(one.seconds / ours, 3) for one in comparison.contenders if one.name != "tuned"
        },
    }
    for one in comparison.contenders:
        ratio = work / one.seconds / 1e9 / measured_peak(threads)
        details = spent if one.name == "tuned" else {}
        yield Figure(name, BACKENDS[one.name], threads, "latency", one.seconds * 1e3, "ms", ratio, one.error, details)


def compare(network: ExtractedNetwork, tuned: Tuned) -> Comparison:
    """Compile the network with and without its records and time both beside ONNX Runtime, in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="retune-networks-") as folder, WorkerProcess() as worker:
        paths: dict[str, Path] = {}
        for label, best in (("untuned", {}), ("tuned", tuned.best)):
            compiled = compile_graph(
                network.graph, network.target, best, threads=network.threads, cut=network.partition
            )
            paths[label] = compiled.save(Path(folder) / f"{label}.retune")
        arguments = (paths, network_bytes(network.source), network.threads, 0)
        comparison: Comparison = worker.call("compiler.driver.compare:compare_networks", *arguments)
    return comparison


if __name__ == "__main__":
    main()
