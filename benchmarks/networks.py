"""Latency, memory, size and first run of networks of the zoo, next to ONNX Runtime, OpenVINO, PyTorch and others.

    python -m benchmarks.networks [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--plot FILE] [--compiled 0]

A network is tuned from scratch for `--seconds`, and every best program is verified and timed again. Then it, the
untuned one and the installed peers are interleaved in a fresh process: ONNX Runtime, OpenVINO for latency (in float32,
and `openvino-default`, which computes in bfloat16 where the CPU has instructions for it), PyTorch eager and, unless
`--compiled` is 0, compiled, and those of `benchmarks.onnx_peers`. All have the same weights and inputs, errors are
against ONNX Runtime, and a value is a median. The best peer is that of float32. A peer that does not take the network
gets a line with the reason (`failure`).
"""

import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from benchmarks import onnx_peers, zoo
from benchmarks.harness import Figure, Run, parse
from benchmarks.network_peers import (
    COMPILED,
    EAGER,
    OPENVINO,
    OPENVINO_DEFAULT,
    SESSION,
    Arrays,
    NetworkPeer,
    has_torch,
    seeded_inputs,
)
from benchmarks.peak import measured_peak
from benchmarks.tuning import Tuned, open_workers, tune
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import TaskProgram
from retune.compiler.tune import openvino
from retune.compiler.tune.extract import ExtractedNetwork

TUNED, UNTUNED = "retune", "retune-untuned"
_MIB = 2.0**20


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each contender's latency and, but for PyTorch's compiler, its peak memory, the size of its file,
    and how long it takes to load and run once.
    """
    options = {"compiled": (1, "whether PyTorch's compiler, which takes a minute a network, takes part")}
    help_ = "seconds of tuning for each network"
    run = parse(__doc__, argv, seconds=60, seconds_help=help_, threads=(1, 2), options=options)
    run.write_cases(zoo.NAMES, figures)


@dataclass(frozen=True, slots=True)
class Built:
    """A network's files by contender, and how long ours took to compile."""

    files: Mapping[str, Path]
    compile_seconds: Mapping[str, float]


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune one network and time it beside its peers."""
    began = time.perf_counter()
    network = zoo.extract(name, str(Target.host()), threads)
    import_seconds = time.perf_counter() - began
    with open_workers(threads, network.constant_bytes) as workers:
        tuned = tune(network, workers, run.seconds)
    with tempfile.TemporaryDirectory(prefix="retune-networks-") as folder:
        model = zoo.build(name)
        inputs = seeded_inputs(model)
        built = build(network, tuned.best, model, Path(folder), compiled=bool(run.options["compiled"]))
        del model
        peers = time_peers(built, inputs, threads)
        failed = {peer.backend for peer in peers if peer.failure}
        costs = load_costs(built, inputs, threads, failed)
        sizes = {backend: path.stat().st_size for backend, path in built.files.items() if backend in costs}
    yield from _latencies(network, tuned, peers, {"import_seconds": round(import_seconds, 2)}, built)
    for backend, (count, seconds) in costs.items():
        yield Figure(name, backend, threads, "peak memory", count / _MIB, "MiB")
        yield Figure(name, backend, threads, "file size", sizes[backend] / _MIB, "MiB")
        yield Figure(name, backend, threads, "load and first run", seconds * 1e3, "ms")


def build(
    network: ExtractedNetwork, best: Mapping[str, TaskProgram], model: onnx.ModelProto, folder: Path, *, compiled: bool
) -> Built:
    """Compile the network with and without its records, and write what the peers read."""
    files: dict[str, Path] = {}
    seconds: dict[str, float] = {}
    for backend, programs in ((UNTUNED, {}), (TUNED, best)):
        began = time.perf_counter()
        product = compile_graph(network.graph, network.target, programs, threads=network.threads, cut=network.partition)
        files[backend] = product.save(folder / f"{backend}.retune")
        seconds[backend] = round(time.perf_counter() - began, 2)
    files[SESSION] = folder / "model.onnx"
    onnx.save_model(model, str(files[SESSION]))
    if openvino.is_installed():
        files |= dict.fromkeys((OPENVINO, OPENVINO_DEFAULT), files[SESSION])
    files |= dict.fromkeys(onnx_peers.installed(), files[SESSION])
    if has_torch():
        files[EAGER] = folder / "model.pt"
        with WorkerProcess() as worker:
            worker.call("benchmarks.network_peers:export_torch", files[SESSION], files[EAGER])
        if compiled:
            files[COMPILED] = files[EAGER]
    return Built(files, seconds)


def time_peers(built: Built, inputs: Arrays, threads: int) -> list[NetworkPeer]:
    """All contenders in turn, in a fresh process."""
    with WorkerProcess() as worker:
        found: list[NetworkPeer] = worker.call(
            "benchmarks.network_peers:time_networks", dict(built.files), dict(inputs), threads
        )
    return found


def load_costs(
    built: Built, inputs: Arrays, threads: int, failed: Collection[str] = ()
) -> dict[str, tuple[int, float]]:
    """Peak bytes and seconds to load and run once, by contender, each in its own process; without those that failed."""
    costs: dict[str, tuple[int, float]] = {}
    for backend, path in built.files.items():
        # The compilers of these run in the same process and take more than the network.
        if backend not in (COMPILED, onnx_peers.IREE, *failed):
            with WorkerProcess() as worker:
                arguments = (backend, path, dict(inputs), threads)
                costs[backend] = worker.call("benchmarks.network_peers:load_cost", *arguments)
    return costs


def _latencies(
    network: ExtractedNetwork, tuned: Tuned, peers: Sequence[NetworkPeer], known: Mapping[str, Any], built: Built
) -> Iterator[Figure]:
    """One figure a contender; ours says what it took, and how it compares."""
    layers = network.partition.layers()
    work = sum(layer.tasks[0].flop_count * layer.weight for layer in layers)
    by_backend = {peer.backend: peer.seconds for peer in peers if not peer.failure}
    others = {backend: seconds / by_backend[TUNED] for backend, seconds in by_backend.items() if backend != TUNED}
    spent: dict[str, object] = {
        **known,
        "trials": tuned.trials,
        "failed": tuned.failed,
        "tuning_seconds": round(tuned.seconds, 1),
        "tasks": len(layers),
        "tasks_on_the_default_schedule": len(layers) - len(tuned.best),
        "winograd": sum(layer.tasks[0].workload_key not in tuned.best for layer in layers if len(layer.tasks) > 1),
        "times_as_fast_as": {backend: round(ratio, 3) for backend, ratio in others.items()},
        "times_as_fast_as_the_best_peer": round(
            # Those that compute in float32, as ours does.
            min(ratio for backend, ratio in others.items() if backend not in (UNTUNED, OPENVINO_DEFAULT)),
            3,
        ),
    }
    threads, peak = network.threads, measured_peak(network.threads)
    for peer in peers:
        details: dict[str, object] = dict(spent) if peer.backend == TUNED else {}
        if peer.failure:
            details["failure"] = peer.failure
        if peer.backend in built.compile_seconds:
            details["compile_seconds"] = built.compile_seconds[peer.backend]
        ratio = work / peer.seconds / 1e9 / peak
        milliseconds = peer.seconds * 1e3
        yield Figure(network.name, peer.backend, threads, "latency", milliseconds, "ms", ratio, peer.error, details)


if __name__ == "__main__":
    main()
