"""Latency of networks of benchmarks/zoo in ONNX Runtime, as they are and exported by us, next to our executor.

    python -m benchmarks.ort_export [--only REGEX] [--threads N] [--seconds S] [--tuned FOLDER] [--out FILE]

A network is tuned from scratch for `--seconds`, or taken from FOLDER/NAME.retune, which must be compiled for as many
threads. Then four contenders are interleaved in a fresh process: ONNX Runtime on the model, ONNX Runtime on the
exported network, with NumPy's arrays and bound to its own tensors, and our executor on the same kernels, whose inputs
and outputs stay where they are. Errors are against the first; a value is a median.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from benchmarks import zoo
from benchmarks.harness import Figure, Run, parse
from benchmarks.network_peers import BOUND, EXPORTED, SESSION, NetworkPeer, seeded_inputs
from benchmarks.tuning import open_workers, tune
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.export import export_network
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.executor.network import CompiledNetwork

EXECUTOR = "retune"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each contender."""
    texts = {"tuned": ("FOLDER", "take tuned networks from here, NAME.retune, and tune nothing")}
    help_ = "seconds of tuning for each network"
    run = parse(__doc__, argv, seconds=60, seconds_help=help_, threads=(1, 2), texts=texts)
    run.write_cases(zoo.NAMES, figures)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune one network, export it, and time the contenders."""
    network, tuning = _network(name, threads, run)
    model = zoo.build(name)
    inputs = seeded_inputs(model)
    with tempfile.TemporaryDirectory(prefix="retune-export-") as folder:
        files = {SESSION: Path(folder) / "model.onnx", EXECUTOR: network.save(Path(folder) / "network.retune")}
        onnx.save_model(model, str(files[SESSION]))
        del model
        exported = export_network(network, Path(folder) / "exported.onnx")
        library_bytes = exported.library.stat().st_size
        del network
        files[EXPORTED] = files[BOUND] = exported.model
        with WorkerProcess() as worker:
            peers: list[NetworkPeer] = worker.call("benchmarks.network_peers:time_networks", files, inputs, threads)
    seconds = {peer.backend: peer.seconds for peer in peers}
    for peer in peers:
        details: dict[str, object] = {}
        if peer.backend in (EXPORTED, BOUND):
            others = {backend: seconds[backend] / peer.seconds for backend in (SESSION, EXECUTOR)}
            details = {
                **tuning,
                "library_bytes": library_bytes,
                "times_as_fast_as": {backend: round(ratio, 3) for backend, ratio in others.items()},
            }
        yield Figure(name, peer.backend, threads, "latency", peer.seconds * 1e3, "ms", None, peer.error, details)


def _network(name: str, threads: int, run: Run) -> tuple[CompiledNetwork, dict[str, object]]:
    """The tuned network, and what its line says of the tuning."""
    if run.texts["tuned"]:
        network = CompiledNetwork.load(Path(run.texts["tuned"]) / f"{name}.retune")
        if network.metadata["threads"] != threads:
            raise OptionError(f"{name}.retune is compiled for {network.metadata['threads']} threads, not {threads}")
        return network, {}
    extracted = zoo.extract(name, str(Target.host()), threads)
    with open_workers(threads, extracted.constant_bytes) as workers:
        tuned = tune(extracted, workers, run.seconds)
    network = compile_graph(extracted.graph, extracted.target, tuned.best, threads=threads, cut=extracted.partition)
    return network, {"trials": tuned.trials, "tuning_seconds": round(tuned.seconds, 1)}


if __name__ == "__main__":
    main()
