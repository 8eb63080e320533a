"""The networks that benchmarks and tests run: those of the product's zoo, and more, with seeded weights as there."""

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from benchmarks.zoo.clip import clip_vit_b32
from benchmarks.zoo.convnext import convnext_tiny
from benchmarks.zoo.dcgan import dcgan
from benchmarks.zoo.diffusion import ddpm_unet
from benchmarks.zoo.efficientnet import efficientnet_b0
from benchmarks.zoo.gpt2 import gpt2_block, gpt2_greedy
from benchmarks.zoo.hifi_gan import hifi_gan
from benchmarks.zoo.minilm import minilm_l6
from benchmarks.zoo.r3d import r3d_18
from benchmarks.zoo.recurrent import crnn, gru, lstm, vad
from benchmarks.zoo.sam2 import sam2_tiny_encoder
from benchmarks.zoo.segformer import segformer_b0
from benchmarks.zoo.smollm2 import smollm2_135m, smollm2_135m_step
from benchmarks.zoo.swin import swin_tiny
from benchmarks.zoo.unet import unet
from benchmarks.zoo.vit import vit_small
from benchmarks.zoo.whisper import whisper_tiny_encoder, whisper_tiny_step
from benchmarks.zoo.yolo import yolov8n
from retune.compiler.core.target import Target
from retune.compiler.frontend import zoo
from retune.compiler.frontend.importer import load_model
from retune.compiler.tune.extract import ExtractedNetwork, extract_part

_NETWORKS: Mapping[str, Callable[..., onnx.ModelProto]] = {
    **zoo.NETWORKS,
    "clip_vit_b32": clip_vit_b32,
    "convnext_tiny": convnext_tiny,
    "dcgan": dcgan,
    "ddpm_unet": ddpm_unet,
    "efficientnet_b0": efficientnet_b0,
    "gpt2_block": gpt2_block,
    "hifi_gan": hifi_gan,
    "minilm_l6": minilm_l6,
    "r3d_18": r3d_18,
    "sam2_tiny_encoder": sam2_tiny_encoder,
    "segformer_b0": segformer_b0,
    "smollm2_135m": smollm2_135m,
    "smollm2_135m_step": smollm2_135m_step,
    "swin_tiny": swin_tiny,
    "unet": unet,
    "vit_small": vit_small,
    "whisper_tiny_encoder": whisper_tiny_encoder,
    "whisper_tiny_step": whisper_tiny_step,
    "yolov8n": yolov8n,
}
_PROGRAMS: Mapping[str, Callable[..., onnx.ModelProto]] = {"gpt2_greedy": gpt2_greedy}
_RECURRENT: Mapping[str, Callable[..., onnx.ModelProto]] = {"crnn": crnn, "gru": gru, "lstm": lstm, "vad": vad}

NAMES: tuple[str, ...] = tuple(sorted(_NETWORKS))
"""Networks of static shapes, which can be tuned."""
PROGRAM_NAMES: tuple[str, ...] = tuple(_PROGRAMS)
"""Networks with a loop, for the virtual machine."""


def build(name: str, **options: Any) -> onnx.ModelProto:
    """Build a network; `options` are the keyword arguments of its function, such as `batch` or `image`.

    Raises: as `retune.compiler.frontend.zoo.build`.
    """
    return zoo.build(name, {**_NETWORKS, **_PROGRAMS, **_RECURRENT}, **options)


def extract(name: str, target: str, threads: int, *, winograd: bool = True) -> ExtractedNetwork:
    """The network `name` as `extract_network` returns a network of the product's zoo."""
    return extract_part(name, load_model(build(name), name=name), Target(target), threads, winograd)
