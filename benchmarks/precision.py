"""Latency and error of networks in float32, bfloat16, int8 and `auto`, next to ONNX Runtime and OpenVINO.

    python -m benchmarks.precision [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--packages FOLDER]

Every form is compiled untuned, and with `--seconds` tuned for so long (0 by default). Forms are `float32`, `bfloat16`,
`int8`, and `auto` at 0.5% and 1% of the largest output. Peers are ONNX Runtime in float32, OpenVINO as it comes
(bfloat16 where the CPU has it), and both on the QDQ file that ONNX Runtime's quantizer makes of the same samples
(unsigned activations, a scale per channel of the signed weights). All run interleaved in one process. The error is the
largest difference from ONNX Runtime in float32 on held-out samples, relative to the largest output, `mean_error` the
mean difference relative to the mean output.

Networks with random weights have easy ranges. In transformers one column in 128 of every matrix of weights is larger,
by a seeded factor between 4 and 16. `--packages` names the folder of `benchmarks.packaged_models`: trained networks in
packages are measured on smooth images with rectangles.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

import retune
from benchmarks import zoo
from benchmarks.harness import Figure, Run, interleaved, parse
from retune.compiler.core.errors import MeasureError, RetuneError
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.library import Library
from retune.compiler.tune import openvino
from retune.compiler.tune.onnx_runtime import OnnxRuntime

IMAGES = ("resnet50", "mobilenet_v2", "efficientnet_b0", "yolov8n", "unet")
TRANSFORMERS = ("bert_base", "minilm_l6", "vit_small", "swin_tiny", "whisper_tiny_encoder")
PACKAGED: Mapping[str, tuple[str, Mapping[str, tuple[int, ...]]]] = {
    "ocr_detector": ("rapidocr-onnxruntime/**/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "ocr_recognizer": ("rapidocr-onnxruntime/**/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "nude_detector": ("nudenet/**/320n.onnx", {"images": (1, 3, 320, 320)}),
}
"""Files in packages, and the shapes of their inputs."""

FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": "bfloat16"},
    "int8": {"precision": "int8"},
    "auto-0.5%": {"precision": "auto", "tolerance": 0.005},
    "auto-1%": {"precision": "auto", "tolerance": 0.01},
}
CALIBRATION, HELD_OUT = 12, 4
_TOKENS = 1000
_LARGER, _EVERY = (2.0, 4.0), 128
"""Powers of two between which the factors of columns lie, and the columns for each larger column."""

Arrays = Mapping[str, NDArray[Any]]
Answer = Callable[[Arrays], Sequence[NDArray[Any]]]


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each form of each network and each peer."""
    texts = {"packages": ("FOLDER", "packages with trained networks, see benchmarks.packaged_models")}
    run = parse(
        __doc__, argv, seconds=1e-9, seconds_help="seconds of tuning for each form; less than 1: none", threads=(1, 2),
        texts=texts,
    )  # fmt: skip
    for threads in run.threads:
        for name in filter(run.wants, (*IMAGES, *TRANSFORMERS, *(PACKAGED if run.texts["packages"] else ()))):
            for figure in figures(name, threads, run):
                run.write(figure)


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Compile and time all forms of one network, and its peers."""
    with tempfile.TemporaryDirectory(prefix="retune-precision-") as text:
        folder = Path(text)
        model, shapes = _model(name, run.texts["packages"])
        path = folder / f"{name}.onnx"
        onnx.save(model, path)
        samples = [_sample(model, shapes, seed) for seed in range(CALIBRATION + HELD_OUT)]
        known, held_out = samples[:CALIBRATION], samples[CALIBRATION:]
        runs: dict[str, Callable[[], object]] = {}
        answers: dict[str, list[Sequence[NDArray[Any]]]] = {}
        details: dict[str, dict[str, object]] = {}
        contenders = {**_ours(path, shapes, threads, run, known), **_peers(path, folder, threads, known)}
        for backend, make in contenders.items():
            try:
                answer, call, told = make()
                answers[backend] = [[array.copy() for array in answer(sample)] for sample in held_out]
                runs[backend], details[backend] = partial(call, held_out[0]), told
            except (MeasureError, RetuneError) as error:
                yield Figure(name, backend, threads, "latency", float("nan"), "ms", details={"failure": str(error)})
        seconds = interleaved(runs)
        for backend, value in seconds.items():
            largest, mean = _errors(answers[backend], answers["onnxruntime"])
            told = {"mean_error": float(f"{mean:.4g}"), "tuning_seconds": run.seconds if run.seconds >= 1 else 0}
            yield Figure(
                name, backend, threads, "latency", value * 1e3, "ms", None, largest, {**told, **details[backend]}
            )


Contender = Callable[[], tuple[Answer, Callable[[Arrays], object], dict[str, object]]]
"""Makes what answers a sample, what runs once on the inputs set last, and details for the line."""


def _ours(
    path: Path, shapes: Mapping[str, tuple[int, ...]], threads: int, run: Run, samples: Sequence[Arrays]
) -> dict[str, Contender]:
    def make(form: str, tuned: bool) -> tuple[Answer, Callable[[Arrays], object], dict[str, object]]:
        options = {**FORMS[form], **({"calibrate": list(samples)} if FORMS[form] else {})}
        with tempfile.TemporaryDirectory() as store:
            if tuned:
                network = retune.tune(
                    path, minutes=run.seconds / 60, shapes=shapes, store=store, progress=False,
                    options={"threads": threads}, **options,
                )  # fmt: skip
            else:
                network = retune.compile(path, shapes=shapes, threads=threads, store=store, **options)
            file = network.save(Path(store) / "network.retune")
            executor = executor_of(Library.load(file).network, threads)

        def answer(sample: Arrays) -> list[NDArray[Any]]:
            executor.run(**sample)
            return [executor.get_output(index) for index in range(executor.get_num_outputs())]

        choice = network.precision
        told: dict[str, object] = {}
        if choice is not None:
            counts: dict[str, int] = {}
            for layer in choice.layers:
                counts[layer.precision] = counts.get(layer.precision, 0) + 1
            told = {"layers": counts, "note": choice.note, "chosen_error": choice.error}
        return answer, lambda _: executor.run(), told

    forms: dict[str, Contender] = {f"retune-{form}": partial(make, form, False) for form in FORMS}
    if run.seconds >= 1:
        forms |= {f"retune-{form}-tuned": partial(make, form, True) for form in FORMS}
    return forms


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
        peers["openvino-default"] = partial(compiled, lambda: path)
        peers["openvino-qdq"] = partial(compiled, quantized)
    return {**peers, "onnxruntime-qdq": partial(session, quantized)}


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Samples for ONNX Runtime's quantizer."""

    def __init__(self, samples: Sequence[Arrays]) -> None:
        self._left = iter([dict(sample) for sample in samples])

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """The next sample, None after the last."""
        return next(self._left, None)


def _quantized(path: Path, folder: Path, samples: Sequence[Arrays]) -> Path:
    """The QDQ file of a model, made once. Raises: MeasureError when the quantizer fails."""
    target, folded = folder / "qdq.onnx", folder / "folded.onnx"
    if not target.exists():
        try:
            quant_pre_process(path, folded, skip_symbolic_shape=True)
            quantize_static(
                folded, target, _Samples(samples), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, op_types_to_quantize=_types(path),
            )  # fmt: skip
        except Exception as error:  # of the quantizer, which may raise anything
            raise MeasureError(
                f"ONNX Runtime cannot quantize the model: {' '.join(str(error).split())[:200]}"
            ) from error
    return target


def _types(path: Path) -> list[str] | None:
    """The operators to quantize: all that the quantizer knows; of transformers products and convolutions alone, since
    it fails at the scales of norms.
    """
    ops = [node.op_type for node in onnx.load(str(path), load_external_data=False).graph.node]
    is_transformer = ops.count("MatMul") + ops.count("Gemm") > ops.count("Conv")
    return ["Conv", "MatMul", "Gemm"] if is_transformer else None


def _model(name: str, packages: str) -> tuple[onnx.ModelProto, Mapping[str, tuple[int, ...]]]:
    """A network and the shapes of its inputs, as far as they are not in the model."""
    if name in PACKAGED:
        pattern, shapes = PACKAGED[name]
        file = next(iter(sorted(Path(packages).glob(pattern))), None)
        if file is None:
            raise SystemExit(f"{packages} has no {pattern}: see benchmarks.packaged_models")
        return onnx.load(str(file)), shapes
    model = zoo.build(name)
    if name in TRANSFORMERS:
        _add_heavy_tail(model)
    return model, {}


def _add_heavy_tail(model: onnx.ModelProto) -> None:
    """Enlarge some columns of every matrix of weights."""
    read = {node.input[1] for node in model.graph.node if node.op_type in ("MatMul", "Gemm") and len(node.input) > 1}
    for number, tensor in enumerate(model.graph.initializer):
        if tensor.name not in read or len(tensor.dims) != 2:
            continue
        random, weight = np.random.default_rng(number), numpy_helper.to_array(tensor).copy()
        chosen = random.choice(weight.shape[1], max(1, weight.shape[1] // _EVERY), replace=False)
        weight[:, chosen] *= np.exp2(random.uniform(*_LARGER, chosen.size)).astype(weight.dtype)
        tensor.CopyFrom(numpy_helper.from_array(weight, tensor.name))


def _sample(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[Any]]:
    """Inputs of a model: tokens, masks of ones, or images; noise for all other floats."""
    random, weights = np.random.default_rng(seed), {tensor.name for tensor in model.graph.initializer}
    arrays: dict[str, NDArray[Any]] = {}
    for entry in model.graph.input:
        if entry.name in weights:
            continue
        tensor = entry.type.tensor_type
        shape = shapes.get(entry.name) or tuple(dim.dim_value for dim in tensor.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind != "f":
            tokens = random.integers(0, 2 if "type" in entry.name else _TOKENS, shape)
            arrays[entry.name] = (np.ones(shape) if "mask" in entry.name else tokens).astype(dtype)
        elif len(shape) == 4 and shape[1] == 3:
            arrays[entry.name] = _image(random, shape).astype(dtype)
        else:
            arrays[entry.name] = random.standard_normal(shape).astype(dtype)
    return arrays


def _image(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A smooth image with rectangles and a little noise, values about between -1 and 1, as detectors see pages."""
    count, channels, height, width = shape
    coarse = random.uniform(-1, 1, (count, channels, 5, 5))
    rows, columns = (np.linspace(0, 4, extent).round().astype(int) for extent in (height, width))
    image = coarse[:, :, rows][:, :, :, columns]
    for _ in range(12):
        top, left = random.integers(0, height), random.integers(0, width)
        box = np.s_[
            :, :, top : top + int(random.integers(2, height // 3)), left : left + int(random.integers(2, width // 2))
        ]
        image[box] = random.uniform(-1, 1, (1, channels, 1, 1))
    return np.asarray(image + 0.05 * random.standard_normal(shape))


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
