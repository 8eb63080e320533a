"""Latency and error of networks in float32, bfloat16, int8 and `auto`, next to ONNX Runtime and OpenVINO.

    python -m benchmarks.precision [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--packages FOLDER]
        [--passes N]

Every form is compiled untuned, and with `--seconds` tuned for so long (0 by default). Forms are `float32`, `bfloat16`,
`int8`, and `auto` at 0.5% and 1% of the largest output; the untuned ones share kernels and what `auto` measures. Peers
are ONNX Runtime in float32, OpenVINO as it comes (bfloat16 where the CPU has it), and both on the QDQ file that ONNX
Runtime's quantizer makes of the same samples (unsigned activations, a scale per channel of the signed weights). Each
network has a process of its own, in which all run interleaved. The error is the largest difference from ONNX Runtime in
float32 on held-out samples, relative to the largest output, `mean_error` the mean difference relative to the mean
output; `make_seconds` is how long a form or peer took to make. A network whose lines are all in `--out` is left out, so
a run that was interrupted goes on.

Networks with random weights have easy ranges. In transformers one column in 128 of every matrix of weights is larger,
by a seeded factor between 4 and 16. `--packages` names the folder of `benchmarks.packaged_models`: trained networks in
packages are measured on smooth images with rectangles.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter
from onnxruntime.quantization import QuantFormat, QuantType, quant_pre_process, quantize_static

import retune
from benchmarks.harness import Figure, interleaved, parse
from benchmarks.onnx_quantizer import Samples, rename_weights
from benchmarks.precision_networks import IMAGES, PACKAGED, TRANSFORMERS, Shapes, build, draw
from retune.compiler.core.errors import MeasureError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.tune import openvino
from retune.compiler.tune.extract import ImportedNetwork
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.precision.bench import Bench
from retune.compiler.tune.precision.choose import choose, costs_of
from retune.compiler.tune.precision.costs import Costs
from retune.compiler.tune.precision.request import PrecisionChoice, PrecisionRequest

FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "int8": {"precision": "int8"},
    "auto-0.5%": {"precision": "auto", "tolerance": 0.005},
    "auto-1%": {"precision": "auto", "tolerance": 0.01},
}
_OPENVINO = ("openvino-default", "openvino-qdq")
CALIBRATION, HELD_OUT = 12, 4
_PER_AXIS = 13
"""The first opset whose DequantizeLinear has an axis."""
Arrays = Mapping[str, NDArray[Any]]
Answer = Callable[[Arrays], Sequence[NDArray[Any]]]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each form of each network and each peer."""
    texts = {"packages": ("FOLDER", "packages with trained networks, see benchmarks.packaged_models")}
    run = parse(
        __doc__,
        argv,
        seconds=1e-9,
        seconds_help="seconds of tuning for each form; less than 1: none",
        threads=(1, 2),
        texts=texts,
        options={"passes": (15, "timed passes of each contender")},
    )
    seconds, packages = run.seconds if run.seconds >= 1 else 0.0, run.texts["packages"]
    for threads in run.threads:
        for name in filter(run.wants, (*IMAGES, *TRANSFORMERS, *(PACKAGED if packages else ()))):
            if backends(seconds) <= _done(run.out, name, threads, seconds):
                continue
            try:
                with WorkerProcess() as worker:
                    arguments = name, threads, seconds, packages, run.options["passes"]
                    lines: list[Figure] = worker.call("benchmarks.precision:figures", *arguments)
            except (MeasureError, RetuneError) as error:
                lines = [_failure(name, "all", threads, error)]
            for line in lines:
                run.write(line)


def backends(seconds: float) -> set[str]:
    """The names of all forms, tuned ones too where `seconds` are more than 0, and of the peers."""
    ours = {f"retune-{form}{suffix}" for form in FORMS for suffix in ("", *(["-tuned"] if seconds else []))}
    return {*ours, "onnxruntime", "onnxruntime-qdq", *(_OPENVINO if openvino.is_installed() else ())}


def _done(out: Path | None, name: str, threads: int, seconds: float) -> set[str]:
    """The backends that a file of lines has for a network."""
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {
        line["backend"]
        for line in lines
        if (line["case"], line["threads"], line.get("tuning_seconds")) == (name, threads, seconds)
    }


def _failure(name: str, backend: str, threads: int, error: Exception, seconds: float = 0.0) -> Figure:
    details = {"failure": " ".join(str(error).split()), "tuning_seconds": seconds}
    return Figure(name, backend, threads, "latency", float("nan"), "ms", details=details)


def figures(name: str, threads: int, seconds: float, packages: str, passes: int) -> list[Figure]:
    """Compile and time all forms of one network, tuned for `seconds` too where these are more than 0, and its peers."""
    lines = []
    with tempfile.TemporaryDirectory(prefix="retune-precision-") as text:
        folder = Path(text)
        model, shapes = build(name, packages)
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        samples = [draw(name, model, shapes, seed) for seed in range(CALIBRATION + HELD_OUT)]
        known, held_out = samples[:CALIBRATION], samples[CALIBRATION:]
        runs: dict[str, Callable[[], object]] = {}
        answers: dict[str, list[Sequence[NDArray[Any]]]] = {}
        details: dict[str, dict[str, object]] = {}
        ours = {
            **_untuned(path, shapes, threads, known),
            **(_tuned(path, shapes, threads, seconds, known) if seconds else {}),
        }
        for backend, make in {**ours, **_peers(path, folder, threads, known)}.items():
            began = time.perf_counter()
            try:
                answer, call, told = make()
                answers[backend] = [[array.copy() for array in answer(sample)] for sample in held_out]
                runs[backend] = partial(call, held_out[0])
                details[backend] = {**told, "make_seconds": round(time.perf_counter() - began, 2)}
            except (MeasureError, RetuneError) as error:
                lines.append(_failure(name, backend, threads, error, seconds))
        for backend, value in interleaved(runs, passes=passes).items():
            largest, mean = _errors(answers[backend], answers["onnxruntime"])
            about = {"mean_error": float(f"{mean:.4g}"), "tuning_seconds": seconds, **details[backend]}
            lines.append(Figure(name, backend, threads, "latency", value * 1e3, "ms", None, largest, about))
    return lines


Contender = Callable[[], tuple[Answer, Callable[[Arrays], object], dict[str, object]]]
"""Makes what answers a sample, what runs once on the inputs set last, and details for the line."""


def _untuned(path: Path, shapes: Shapes, threads: int, samples: Sequence[Arrays]) -> dict[str, Contender]:
    """The forms as `retune.compile` makes them, on one bench."""
    texts = [f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items()]

    @cache
    def bench() -> Bench:
        return Bench(ImportedNetwork(str(path), texts).prepared(), Target.host(), threads)

    @cache
    def costs() -> Costs:
        return costs_of(bench(), PrecisionRequest("auto", calibrate=list(samples)))

    def make(form: str) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
        if not FORMS[form]:
            return _running(bench().float32(), None)
        choice = choose(bench(), PrecisionRequest(**FORMS[form], calibrate=list(samples)), costs=costs())
        return _running(bench().compile_form(choice.assignment), choice)

    return {f"retune-{form}": partial(make, form) for form in FORMS}


def _tuned(path: Path, shapes: Shapes, threads: int, seconds: float, samples: Sequence[Arrays]) -> dict[str, Contender]:
    def make(form: str) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
        options = {**FORMS[form], **({"calibrate": list(samples)} if FORMS[form] else {})}
        with tempfile.TemporaryDirectory() as store:
            network = retune.tune(
                path,
                minutes=seconds / 60,
                shapes=shapes,
                store=store,
                progress=False,
                options={"threads": threads},
                **options,
            )
            file = network.save(Path(store) / "network.retune")
            return _running(executor_of(Library.load(file).network, threads), network.precision)

    return {f"retune-{form}-tuned": partial(make, form) for form in FORMS}


def _running(
    executor: GraphExecutor, choice: PrecisionChoice | None
) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
    def answer(sample: Arrays) -> list[NDArray[Any]]:
        executor.run(**sample)
        return [executor.get_output(index) for index in range(executor.get_num_outputs())]

    told: dict[str, object] = {}
    if choice is not None:
        layers = dict(Counter(layer.precision for layer in choice.layers))
        told = {"layers": layers, "note": choice.note, "chosen_error": choice.error}
    return answer, lambda _: executor.run(), told


def _peers(path: Path, folder: Path, threads: int, samples: Sequence[Arrays]) -> dict[str, Contender]:
    def session(file: Callable[[], Path]) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
        made = OnnxRuntime(str(file()), threads)
        return made.run, made.run, {}

    def compiled(file: Callable[[], Path]) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
        made = openvino.OpenVino(str(file()), threads, is_float32=False)
        return made.run, made.run, {"computes_in": made.precision}

    quantized = partial(_quantized, path, folder, samples)
    peers: dict[str, Contender] = {"onnxruntime": partial(session, lambda: path)}
    if openvino.is_installed():
        peers |= dict(zip(_OPENVINO, (partial(compiled, lambda: path), partial(compiled, quantized)), strict=True))
    return {**peers, "onnxruntime-qdq": partial(session, quantized)}


def _quantized(path: Path, folder: Path, samples: Sequence[Arrays]) -> Path:
    """The QDQ file of a model, made once. Raises: MeasureError when the quantizer fails."""
    target, folded = folder / "qdq.onnx", folder / "folded.onnx"
    if not target.exists():
        try:
            model = onnx.load(str(path))
            if max(entry.version for entry in model.opset_import if not entry.domain) < _PER_AXIS:
                model = version_converter.convert_version(model, _PER_AXIS)
            onnx.save(rename_weights(model), folder / "renamed.onnx")
            quant_pre_process(folder / "renamed.onnx", folded, skip_symbolic_shape=True)
            quantize_static(
                folded,
                target,
                Samples(samples),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=_types(path),
            )
        except Exception as error:  # of the quantizer, which may raise anything
            raise MeasureError(
                f"ONNX Runtime cannot quantize the model: {' '.join(str(error).split())[:200]}"
            ) from error
    return target


def _types(path: Path) -> list[str] | None:
    """The operators to quantize: all that the quantizer knows; of transformers products and convolutions alone, so
    that norms and softmax stay in float32.
    """
    ops = [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]
    is_transformer = ops.count("MatMul") + ops.count("Gemm") > ops.count("Conv")
    return ["Conv", "MatMul", "Gemm"] if is_transformer else None


def _errors(made: Sequence[Sequence[NDArray[Any]]], wanted: Sequence[Sequence[NDArray[Any]]]) -> tuple[float, float]:
    """The largest and the mean difference, each relative, the worst of all samples and outputs."""
    largest = mean = 0.0
    for outputs, exact in zip(made, wanted, strict=True):
        for one, other in zip(outputs, exact, strict=True):
            difference = np.abs(one.astype(np.float64) - other)
            largest = max(largest, float(difference.max(initial=0) / (np.abs(other).max(initial=0) + 1e-30)))
            mean = max(mean, float(difference.sum() / (np.abs(other).sum() + 1e-30)))
    return largest, mean


if __name__ == "__main__":
    main()
