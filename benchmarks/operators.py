"""Speed of the tuned kernels of single operators, next to ONNX Runtime.

    python -m benchmarks.operators [--only REGEX] [--threads N] [--seconds S] [--out FILE]

Every operator is tuned alone for `--seconds`, its best program is verified and timed again, and then all contenders are
interleaved in a fresh process. `retune` is our kernel alone, `retune-network` includes the layout changes from and to
NCHW around it. `onnxruntime` is a session of one node, which may change the layout too; `onnxruntime-node` is the
operator alone as its profiler reports it. `numpy` has the AVX-512 kernels of its OpenBLAS. Weights are constants.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Figure, Run, parse
from benchmarks.operator_networks import OPERATORS, operator_network
from benchmarks.peak import measured_peak
from benchmarks.peers import KERNEL, Peer, peer_environment
from benchmarks.tuning import Workers, tune, write_tuned
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.processes.worker_process import WorkerProcess


def main(argv: Sequence[str] | None = None) -> None:
    """Print five JSON lines an operator and thread count, six for matrix products."""
    run = parse(__doc__, argv, seconds=15, seconds_help="seconds of tuning for each operator", threads=(1, 2))
    write_tuned(run, OPERATORS, figures)


def figures(name: str, threads: int, workers: Workers, run: Run) -> Iterator[Figure]:
    """Tune one operator and time it beside its peers."""
    network = operator_network(name, threads, winograd=True)
    (layer,) = network.partition.layers()
    tuned = tune(network, workers, run.seconds)
    winner = next(winner for winner in tuned.winners.values() if winner.used)
    compiled = compile_graph(network.graph, network.target, tuned.best, threads=threads, cut=network.partition)
    with tempfile.TemporaryDirectory(prefix="retune-operators-") as folder:
        path = compiled.save(Path(folder) / f"{name}.retune")
        with WorkerProcess(environment=peer_environment(threads)) as worker:
            is_product = name.startswith(("matmul", "dense"))
            arguments = (path, winner.task.name, OPERATORS[name](), threads, is_product)
            peers: list[Peer] = worker.call("benchmarks.peers:time_operator", *arguments)
    peak = measured_peak(threads)
    spent: dict[str, object] = {
        "trials": tuned.trials,
        "failed": tuned.failed,
        "tuning_seconds": round(tuned.seconds, 1),
        "untuned_ms": round(winner.default_seconds * 1e3, 4),
        "kernel": winner.task.name,
        "rejected": list(winner.rejected),
        "served_by": "default schedule" if winner.is_default else winner.program.mutation,
    }
    for peer in peers:
        speed = layer.tasks[0].flop_count / peer.seconds / 1e9
        details = {"ms": round(peer.seconds * 1e3, 4), **(spent if peer.backend == KERNEL else {})}
        yield Figure(name, peer.backend, threads, "speed", speed, "GFLOP/s", speed / peak, peer.error, details)


if __name__ == "__main__":
    main()
