"""Latency of 3x3 convolutions computed directly and by Winograd's minimal filtering.

    python -m benchmarks.winograd [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--plot FILE]

Every way is tuned alone for `--seconds`, then all are interleaved in one process. A layer is a 3x3 convolution of
stride 1 with bias, an added residual and relu, batch 1: shapes of ResNet and VGG. `value` is in milliseconds.
`peak_ratio` counts the operations of the direct convolution against the multiply-add peak of the same passes, so it may
exceed 1. Errors are relative to the largest result, in float64.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Figure, Run, interleaved, parse
from benchmarks.kernel_timing import bound_kernel
from benchmarks.tuning import Workers, search, write_tuned
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.partition.partition import Partition, partition, with_alternatives
from retune.compiler.graph.partition.winograd import WINOGRAD
from retune.compiler.measure.limit_kernels import peak_kernel
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.schedule.steps import load_steps
from retune.compiler.tune.winners import choose_best

LAYERS = {
    "conv3x3_56x56_64_64": (56, 64),
    "conv3x3_28x28_128_128": (28, 128),
    "conv3x3_14x14_256_256": (14, 256),
    "conv3x3_7x7_512_512": (7, 512),
    "conv3x3_112x112_128_128": (112, 128),
}
"""Height and width, and channels, by name."""

DIRECT, PEAK = "direct", "peak"
PASS_SECONDS = 0.02
_ATTRS: dict[str, Attribute] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "groups": 1,
    "layout": "NHWC",
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a layer: seconds of its fastest call, and the error of its result."""

    name: str
    seconds: float
    error: float


def main(argv: Sequence[str] | None = None) -> None:
    """Print a JSON line for every layer, way and thread count."""
    run = parse(__doc__, argv, seconds=60, seconds_help="seconds of tuning for each way", threads=(1, 2))
    write_tuned(run, LAYERS, figures)


def figures(name: str, threads: int, workers: Workers, run: Run) -> Iterator[Figure]:
    """Tune every way to compute one layer, and time them beside each other."""
    cut = _cut(_layer(*LAYERS[name]), threads)
    ((plain,), _) = cut.of_reductions().worth_tuning()
    programs, details = {}, {}
    for task, way in zip((plain, *(other.task for other in cut.alternatives)), _names(cut), strict=True):
        found, trials = search(task, workers, run.seconds)
        winner = choose_best(
            task, [record.program for record in found], workers.measurer.builder, workers.measurer.runner
        )
        programs[way] = winner.program.steps
        details[way] = {"trials": trials}
    with WorkerProcess() as worker:
        ways, peak = worker.call("benchmarks.winograd:time_ways", name, threads, programs)
    gflop = plain.flop_count / 1e9
    direct = next(way.seconds for way in ways if way.name == DIRECT)
    for way in ways:
        ratio = gflop / way.seconds / peak
        facts: dict[str, object] = {**details[way.name], "times_as_fast_as_direct": round(direct / way.seconds, 3)}
        yield Figure(name, f"retune {way.name}", threads, "latency", way.seconds * 1e3, "ms", ratio, way.error, facts)


def time_ways(name: str, threads: int, programs: Mapping[str, str]) -> tuple[list[Way], float]:
    """Time the programs of a layer, by way, in turn with the multiply-add peak; the peak is in GFLOP/s."""
    graph = _layer(*LAYERS[name])
    cut = _cut(graph, threads)
    image = np.random.default_rng(1).standard_normal(graph.inputs[0].shape).astype(np.float32)
    wide = {key: array.astype(np.float64) for key, array in graph.constants.items()}
    (wanted,) = evaluate(_in_float64(graph, wide), {"x": image.astype(np.float64)})
    peak_run, peak_work = peak_kernel(threads)
    runs: dict[str, Callable[[], object]] = {PEAK: peak_run}
    results = {}
    for number, way in enumerate(_names(cut)):
        rewritten, chosen = with_alternatives(graph, cut, cut.alternatives[number - 1 : number] if number else ())
        (call,) = chosen.kernels
        values = {**rewritten.constants, "x": image}
        arrays = {tensor.name: values[source] for tensor, source in zip(call.task.dag.inputs, call.inputs, strict=True)}
        runs[way], results[way] = bound_kernel(call.task, load_steps(programs[way]), arrays, threads)
    times = interleaved(runs, passes=25, pass_seconds=PASS_SECONDS, figure=min)
    scale = float(np.max(np.abs(wanted)))
    ways = [Way(way, times[way], float(np.max(np.abs(result - wanted))) / scale) for way, result in results.items()]
    return ways, peak_work / times[PEAK]


def _names(cut: Partition) -> list[str]:
    return [DIRECT, *(other.rewrite.name for other in cut.alternatives)]


def _cut(graph: Graph, threads: int) -> Partition:
    target = Target.host()
    return partition(graph, target, hardware_of(target, threads), WINOGRAD)


def _layer(size: int, channels: int) -> Graph:
    """conv(x) + bias + x, rectified, with seeded weights."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("layer", [Value("x", (1, size, size, channels))])
    weight = rng.standard_normal((3, 3, channels, channels), dtype=np.float32) / np.float32(3 * channels**0.5)
    made = builder.emit("conv2d", ("x", builder.constant(weight, "w")), _ATTRS)
    biased = builder.emit("add", (made, builder.constant(rng.standard_normal(channels, dtype=np.float32), "b")))
    return builder.finish({"y": builder.emit("relu", (builder.emit("add", (biased, "x")),))})


def _in_float64(graph: Graph, constants: Mapping[str, np.ndarray]) -> Graph:
    """The graph with another precision."""
    values = {name: Value(name, value.shape, "float64") for name, value in graph.values.items()}
    inputs = tuple(values[value.name] for value in graph.inputs)
    return Graph(graph.name, inputs, graph.outputs, graph.nodes, dict(constants), values)


if __name__ == "__main__":
    main()
