"""Latency of networks that ONNX Runtime's tool quantizes, untuned, beside ONNX Runtime, OpenVINO and float32.

    python -m benchmarks.quantized [--only REGEX] [--threads N] [--count N] [--seed N] [--tuned] [--seconds S]
        [--passes N] [--layers] [--target TEXT] [--out FILE]

Beside three networks of the zoo `--count` image networks are drawn by `--seed` from timm's, and a quarter as many
encoders of text from those of transformers, on seeded random weights. Each is quantized statically (QDQ, unsigned
activations, signed weights with a scale per channel, calibrated with seeded inputs) and dynamically (its matrix
products). All contenders of a network are interleaved in a process of its own. With `--tuned` the static form is also
tuned, for `--seconds`. A line per contender; `of_best_peer` is the fastest peer's time of the same file divided by
ours, `of_float32` that of our own float32; `unequal` is the share of the elements that differ by more than half a
quantum from ONNX Runtime's. What fails gets a line with the reason (`failure`). A network with lines in `--out` is left
out, so a run that was interrupted goes on.

With `--layers` single layers are timed in place of networks, our int8 beside our float32, for `--target` (such as
`llvm -mcpu=haswell`; default: this machine).
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)

import retune
from benchmarks.harness import Figure, interleaved, parse
from benchmarks.onnx_quantizer import Samples
from benchmarks.quantized_layers import LAYERS, layer_figure
from benchmarks.torch_models import SEED, declare_operators, make_timm
from benchmarks.tuning import open_workers, tune
from benchmarks.unseen import drawn
from retune.compiler.core.errors import MeasureError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.network import network_bytes
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.extract import extract_network
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.openvino import OpenVino, is_installed

ZOO = ("mlp", "mobilenet_v2", "resnet18")
CALIBRATION, TOKENS = 3, 64
TEXTS: Mapping[str, Mapping[str, int]] = {
    "distilbert": {"n_layers": 4},
    "bert": {"num_hidden_layers": 4, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "roberta": {"num_hidden_layers": 3},
    "electra": {"num_hidden_layers": 6},
    "mpnet": {"num_hidden_layers": 4},
    "albert": {"num_hidden_layers": 3, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
}
"""Architectures of encoders, and what is smaller in them than in the published ones."""
FORMS = ("float32", "static", "dynamic")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines of every network that was drawn."""
    options = {
        "count": (16, "how many image networks are drawn"),
        "seed": (0, "what they are drawn by"),
        "passes": (15, "timed passes of each contender"),
    }
    flags = {"tuned": "also tune the static form", "layers": "time single layers"}
    run = parse(
        __doc__,
        argv,
        seconds=60,
        seconds_help="seconds of tuning",
        threads=(1, 2),
        options=options,
        flags=flags,
        texts={"target": ("TEXT", "the target of single layers")},
    )
    if run.options["layers"]:
        target = Target(run.texts["target"]) if run.texts["target"] else Target.host()
        for threads in run.threads:
            for name in filter(run.wants, LAYERS):
                run.write(layer_figure(name, target, threads))
        return
    count, seed = run.options["count"], run.options["seed"]
    texts = Random(seed).sample(sorted(TEXTS), min(len(TEXTS), -(-count // 4)))
    images = [f"timm/{name}" for name in drawn(count, seed)] if count else []
    for threads in run.threads:
        done = _done(run.out, threads)
        for name in filter(run.wants, [*ZOO, *texts, *images]):
            if name in done:
                continue
            try:
                with WorkerProcess() as worker:
                    tuning = run.seconds if run.options["tuned"] else 0.0
                    arguments = name, threads, seed, tuning, run.options["passes"]
                    lines: list[Figure] = worker.call("benchmarks.quantized:measure", *arguments)
            except MeasureError as error:
                lines = [_failed(name, threads, error)]
            for line in lines:
                run.write(line)


def _done(out: Path | None, threads: int) -> set[str]:
    """The networks that a file of lines has."""
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {line["case"].partition(" ")[0] for line in lines if line["threads"] == threads}


def measure(name: str, threads: int, seed: int, tuning: float, passes: int) -> list[Figure]:
    """The lines of a network, whose static form is also tuned for `tuning` seconds where these are more than 0."""
    with tempfile.TemporaryDirectory(prefix="retune-quantized-") as folder:
        try:
            files, inputs = written(name, Path(folder))
        except Exception as error:  # a network that the tool does not take is a result
            return [_failed(name, threads, error)]
        return list(figures(name, files, inputs, threads, seed, tuning, passes))


def _failed(name: str, threads: int, error: Exception) -> Figure:
    failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Figure(name, "retune", threads, "latency", math.nan, "ms", details={"failure": failure})


def written(name: str, folder: Path) -> tuple[dict[str, Path], dict[str, Array]]:
    """The ONNX files of a network in all forms, and inputs that calibration has not seen."""
    files = {form: folder / f"{form}.onnx" for form in FORMS}
    exported, folded = folder / "exported.onnx", files["float32"]
    if name in ZOO:
        exported.write_bytes(network_bytes(name))
    else:
        _export(name, exported)
    # Only images have what is to be folded, and some encoders that the tool optimizes do not load any more.
    quant_pre_process(exported, folded, skip_symbolic_shape=name not in TEXTS, skip_optimization=name in TEXTS)
    (entry,) = onnx.load(folded).graph.input
    feeds = [{entry.name: _drawn(entry, seed)} for seed in range(CALIBRATION + 1)]
    quantize_static(
        folded,
        files["static"],
        Samples(feeds[1:]),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    products = ["MatMul", "Gemm"]
    quantize_dynamic(folded, files["dynamic"], weight_type=QuantType.QInt8, op_types_to_quantize=products)
    return files, feeds[0]


def _export(name: str, path: Path) -> None:
    import torch

    if name in TEXTS:
        module, args = _text(name)
    else:
        model = make_timm(name.removeprefix("timm/"))
        module, args = model.module, model.args
    torch.onnx.export(module, args, str(path), dynamo=False, opset_version=17)


def _text(name: str) -> tuple[Any, tuple[Any, ...]]:
    declare_operators()
    import torch
    import transformers

    torch.manual_seed(SEED)
    config = transformers.AutoConfig.for_model(name, **TEXTS[name])
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()

    class States(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(input_ids=ids).last_hidden_state

    return States(), (torch.randint(3, config.vocab_size, (1, TOKENS)),)


def _drawn(entry: onnx.ValueInfoProto, seed: int) -> Array:
    """Numbers of the type and shape of an input: normal floats, or words of a small vocabulary."""
    rng, tensor = np.random.default_rng(seed), entry.type.tensor_type
    shape = [dimension.dim_value for dimension in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else rng.integers(3, 1000, shape, dtype)


def figures(
    name: str, files: Mapping[str, Path], inputs: dict[str, Array], threads: int, seed: int, tuning: float, passes: int
) -> Iterator[Figure]:
    """Time all forms of a network, ours and the peers'."""
    runs: dict[str, Callable[[], object]] = {}
    details: dict[str, dict[str, object]] = {}
    for form, path in files.items():
        try:
            runs |= _contenders(form, path, inputs, threads, details)
        except Exception as error:  # what a contender does not take is a result, too
            yield _failed(f"{name} {form}", threads, error)
    runs |= _in_openvino(files, inputs, threads)
    if tuning and "retune-static" in runs:
        executor = tuned(files["static"], threads, tuning)
        for operand, array in inputs.items():
            executor.set_input(operand, array)
        runs["retune-static-tuned"] = executor.run
        details["retune-static-tuned"] = {"tuning_seconds": tuning}
    seconds = interleaved(runs, passes=passes)
    for form in FORMS:
        own = seconds.get(f"retune-{form}", math.nan)
        peers = [seconds[key] for key in (f"onnxruntime-{form}", f"openvino-{form}") if key in seconds]
        if peers and not math.isnan(own):
            details[f"retune-{form}"]["of_best_peer"] = round(min(peers) / own, 3)
        if form != "float32" and "retune-float32" in seconds:
            details.setdefault(f"retune-{form}", {})["of_float32"] = round(seconds["retune-float32"] / own, 3)
    for backend, value in seconds.items():
        own_details = {"seed": seed, **details.get(backend, {})}
        yield Figure(name, backend, threads, "latency", value * 1e3, "ms", details=own_details)


def _contenders(
    form: str, path: Path, inputs: dict[str, Array], threads: int, details: dict[str, dict[str, object]]
) -> dict[str, Callable[[], object]]:
    """The calls of one form; what is known of our result is added to `details`."""
    session = OnnxRuntime(path.read_bytes(), threads)
    ours = retune.compile(str(path), threads=threads)
    result, reference = np.asarray(ours(*inputs.values())), session.run(inputs)[0]
    details[f"retune-{form}"] = _difference(result, reference, path)
    return {
        f"onnxruntime-{form}": partial(session.run, inputs),
        f"retune-{form}": partial(ours, *inputs.values()),
    }


def _in_openvino(files: Mapping[str, Path], inputs: dict[str, Array], threads: int) -> dict[str, Callable[[], object]]:
    """The calls of the forms that OpenVINO takes."""
    runs: dict[str, Callable[[], object]] = {}
    with WorkerProcess() as worker:
        for form, path in files.items() if is_installed() else ():
            try:
                worker.call("benchmarks.onnx_peers:load_in_openvino", str(path), threads)
            except MeasureError:
                continue
            runs[f"openvino-{form}"] = partial(OpenVino(str(path), threads).run, inputs)
    return runs


def _difference(result: Array, reference: Array, path: Path) -> dict[str, object]:
    apart = np.abs(result.astype(np.float64) - reference) / _output_scale(path)
    return {"unequal": float((apart > 0.5).mean()), "most_quanta_apart": float(apart.max(initial=0.0))}


def tuned(path: Path, threads: int, seconds: float) -> GraphExecutor:
    """The network after `seconds` of tuning."""
    network = extract_network(str(path), str(Target.host()), threads)
    with open_workers(threads, network.constant_bytes) as workers:
        best = tune(network, workers, seconds).best
    compiled = compile_graph(network.graph, network.target, best, threads=threads, cut=network.partition)
    return GraphExecutor(compiled, threads)


def _output_scale(path: Path) -> float:
    """The scale of the last DequantizeLinear, in whose units outputs are compared; 1 where there is none."""
    model = onnx.load(path)
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    output = model.graph.output[0].name
    last = [node for node in model.graph.node if output in node.output and node.op_type == "DequantizeLinear"]
    return float(scales[last[0].input[1]].ravel()[0]) if last else 1.0


if __name__ == "__main__":
    main()
