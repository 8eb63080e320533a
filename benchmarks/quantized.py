"""Latency of networks in float32 and in int8, ours and ONNX Runtime's.

    python -m benchmarks.quantized [--only REGEX] [--threads N] [--seconds S] [--out FILE]

A network of the zoo is quantized by ONNX Runtime's tool (QDQ, unsigned activations, signed weights with a scale per
channel, calibrated with seeded noise); both forms are tuned from scratch, for `--seconds` each. Then the four are
interleaved in one process. `times_as_fast_as` of our int8 network names the three others; `unequal` is the fraction of
the output's elements that differ by more than half a quantum from ONNX Runtime's.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

from benchmarks.harness import Figure, Run, interleaved, parse
from benchmarks.tuning import open_workers, tune
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.model_file import read_model
from retune.compiler.frontend.network import network_bytes
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.extract import extract_network
from retune.compiler.tune.onnx_runtime import OnnxRuntime

NETWORKS = ("mlp", "mobilenet_v2", "resnet18")
IMAGES = 4


def main(argv: Sequence[str] | None = None) -> None:
    """Print four JSON lines a network and thread count."""
    run = parse(__doc__, argv, seconds=120, seconds_help="seconds of tuning for each form", threads=(1, 2))
    for threads in run.threads:
        for name in filter(run.wants, NETWORKS):
            for figure in figures(name, threads, run):
                run.write(figure)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune both forms of one network and time them beside ONNX Runtime."""
    with tempfile.TemporaryDirectory(prefix="retune-quantized-") as folder:
        paths = {form: Path(folder) / f"{name}-{form}.onnx" for form in ("float", "bytes")}
        paths["float"].write_bytes(network_bytes(name))
        shape, feed = quantize(paths["float"], paths["bytes"])
        runs: dict[str, Callable[[], object]] = {}
        outputs: dict[str, Array] = {}
        for form, path in paths.items():
            ours = tuned(path, threads, run.seconds)
            image = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            ours.set_input(feed, image)
            ours.run()
            session = OnnxRuntime(path.read_bytes(), threads)
            outputs[form], outputs[f"{form} theirs"] = ours.get_output(0).copy(), session.run({feed: image})[0]
            runs[f"retune-{form}"] = ours.run
            runs[f"onnxruntime-{form}"] = partial(session.run, {feed: image})
        seconds = interleaved(runs)
        quantum = _output_scale(paths["bytes"])
        apart = np.abs(outputs["bytes"] - outputs["bytes theirs"]) / quantum
    best = seconds["retune-bytes"]
    details: dict[str, object] = {
        "times_as_fast_as": {key: round(value / best, 3) for key, value in seconds.items() if key != "retune-bytes"},
        "unequal": float((apart > 0.5).mean()),
        "most_quanta_apart": float(apart.max()),
        "tuning_seconds": run.seconds,
    }
    for backend, value in seconds.items():
        yield Figure(name, backend, threads, "latency", value * 1e3, "ms", details=details if value == best else {})


class _Noise(CalibrationDataReader):  # type: ignore[misc]
    """Seeded images."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(1)
        self._left = iter([{name: rng.standard_normal(shape, dtype=np.float32)} for _ in range(IMAGES)])

    def get_next(self) -> dict[str, Array] | None:
        """The next one, None after the last."""
        return next(self._left, None)


def quantize(source: Path, target: Path) -> tuple[tuple[int, ...], str]:
    """Write the QDQ form of a model of one input; the shape and name of that."""
    model = read_model(source)
    (entry,) = model.graph.input
    shape = tuple(dimension.dim_value for dimension in entry.type.tensor_type.shape.dim)
    folded = source.with_suffix(".folded.onnx")
    quant_pre_process(source, folded, skip_symbolic_shape=True)
    quantize_static(
        folded,
        target,
        _Noise(entry.name, shape),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return shape, entry.name


def tuned(path: Path, threads: int, seconds: float) -> GraphExecutor:
    """The network after `seconds` of tuning."""
    network = extract_network(str(path), str(Target.host()), threads)
    with open_workers(threads, network.constant_bytes) as workers:
        best = tune(network, workers, seconds).best
    compiled = compile_graph(network.graph, network.target, best, threads=threads, cut=network.partition)
    return GraphExecutor(compiled, threads)


def _output_scale(path: Path) -> float:
    """The scale of the last DequantizeLinear, in whose units outputs are compared; 1 where there is none."""
    model = read_model(path)
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    output = model.graph.output[0].name
    last = [node for node in model.graph.node if output in node.output and node.op_type == "DequantizeLinear"]
    return float(scales[last[0].input[1]].ravel()[0]) if last else 1.0


if __name__ == "__main__":
    main()
