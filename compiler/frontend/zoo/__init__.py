"""Builders of well-known networks as ONNX models with seeded weights; nothing is downloaded.

The same name and options give the same bytes on every machine.
"""

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from retune.compiler.errors import ModelFormatError, OptionError
from retune.compiler.frontend.onnx.model_file import check_model
from retune.compiler.frontend.zoo.bert import bert_base, minilm_l6
from retune.compiler.frontend.zoo.clip import clip_vit_b32
from retune.compiler.frontend.zoo.convnext import convnext_tiny
from retune.compiler.frontend.zoo.dcgan import dcgan
from retune.compiler.frontend.zoo.diffusion import ddpm_unet
from retune.compiler.frontend.zoo.gpt2 import gpt2_block, gpt2_greedy
from retune.compiler.frontend.zoo.hifi_gan import hifi_gan
from retune.compiler.frontend.zoo.inverted_residuals import efficientnet_b0, mobilenet_v2
from retune.compiler.frontend.zoo.mlp import mlp
from retune.compiler.frontend.zoo.resnet import r3d_18, resnet18, resnet50
from retune.compiler.frontend.zoo.sam2 import sam2_tiny_encoder
from retune.compiler.frontend.zoo.segformer import segformer_b0
from retune.compiler.frontend.zoo.smollm2 import smollm2_135m, smollm2_135m_step
from retune.compiler.frontend.zoo.swin import swin_tiny
from retune.compiler.frontend.zoo.unet import unet
from retune.compiler.frontend.zoo.vit import vit_small
from retune.compiler.frontend.zoo.whisper import whisper_tiny_encoder, whisper_tiny_step
from retune.compiler.frontend.zoo.yolo import yolov8n

_NETWORKS: Mapping[str, Callable[..., onnx.ModelProto]] = {
    "bert_base": bert_base,
    "clip_vit_b32": clip_vit_b32,
    "convnext_tiny": convnext_tiny,
    "dcgan": dcgan,
    "ddpm_unet": ddpm_unet,
    "efficientnet_b0": efficientnet_b0,
    "gpt2_block": gpt2_block,
    "hifi_gan": hifi_gan,
    "minilm_l6": minilm_l6,
    "mlp": mlp,
    "mobilenet_v2": mobilenet_v2,
    "r3d_18": r3d_18,
    "resnet18": resnet18,
    "resnet50": resnet50,
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

NAMES: tuple[str, ...] = tuple(sorted(_NETWORKS))
"""Networks of static shapes, which can be tuned."""
PROGRAM_NAMES: tuple[str, ...] = tuple(sorted(_PROGRAMS))
"""Those with loops and shapes that are known when they run: `retune.compiler.frontend.onnx.program` imports them."""


def build(name: str, **options: Any) -> onnx.ModelProto:
    """Build a network of the zoo. Options are the keyword arguments of its function, such as `batch` or `image`.

    Raises: ModelFormatError when the zoo has no such network, OptionError when it has no such option.
    """
    known = {**_NETWORKS, **_PROGRAMS}
    if name not in known:
        raise ModelFormatError(f"no network {name!r} in the zoo; it has {', '.join((*NAMES, *PROGRAM_NAMES))}")
    try:
        model = known[name](**options)
    except TypeError as error:
        raise OptionError(f"network {name}: {error}") from None
    check_model(model)
    return model
