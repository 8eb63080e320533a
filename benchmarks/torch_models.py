"""Architectures of torchvision, timm and transformers with seeded random weights, for `benchmarks.torch_suite`.

No weights are downloaded: models are made from their configuration. Images are small, transformers have few layers, so
that a model of each architecture compiles within seconds. PyTorch must be installed, and the library of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIBRARIES = ("torchvision", "timm", "transformers")

SEED = 0
BATCH, TOKENS, VOCABULARY = 2, 16, 128

_DECLARED = ("nms", "qnms")
"""Operators that torchvision describes to PyTorch on import, even where its binary does not load."""


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A model in inference mode and the arguments of one call of it."""

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None

    def __call__(self, module: Any) -> Any:
        """What the module, or a compiled form of it, returns for the arguments."""
        return module(*self.args, **(self.kwargs or {}))


def versions() -> dict[str, str]:
    """The versions of PyTorch and of the libraries of models that are installed."""
    found = {}
    for name in ("torch", *LIBRARIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def make(name: str) -> TorchModel:
    """The model called `name`, such as `timm/deit_tiny_patch16_224`. Its weights follow from the seed."""
    return _made(ARCHITECTURES[name])


def make_timm(name: str) -> TorchModel:
    """Any model of timm, for one image of its own size. Its weights follow from the seed."""
    return _made(partial(_timm, name))


def _made(architecture: Callable[[], TorchModel]) -> TorchModel:
    import torch

    declare_operators()
    torch.manual_seed(SEED)
    made = architecture()
    made.module.eval().requires_grad_(False)
    _vary_constants(made.module)
    return made


@cache
def declare_operators() -> Any:
    """Let torchvision, which the other libraries import too, be imported where its binary does not load. The result
    keeps the declarations alive.
    """
    import torch

    found = find_spec("torchvision")
    try:
        for place in found.submodule_search_locations or () if found else ():
            for binary in Path(place).glob("_C*.so"):
                torch.ops.load_library(binary)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _DECLARED:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


def _vary_constants(module: Any) -> None:
    """Give the parameters that are made as zeros, ones or tiny scales, and the statistics of norms, random values: a
    network of which a branch is scaled by zero would hide what is wrong in that branch.
    """
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if (
                parameter.is_floating_point()
                and parameter.numel() > 1
                and bool((parameter == parameter.flatten()[0]).all())
            ):
                value = float(parameter.flatten()[0])
                if abs(value) > 0.1:
                    parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.2))
                else:
                    parameter.copy_(torch.empty_like(parameter).normal_(0.0, 0.05))
        for part in module.modules():
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.running_var is not None:
                part.running_var.uniform_(0.7, 1.4)
                part.running_mean.normal_(0.0, 0.1)


def _torchvision(model: str, *shape: int, **options: Any) -> TorchModel:
    import torch
    import torchvision

    is_dense = model.startswith(("deeplab", "fcn", "lraspp"))
    weights = {"weights": None} | ({"weights_backbone": None} if is_dense else {})
    module = torchvision.models.get_model(model, **weights, **options)
    return TorchModel(module, (torch.randn(shape or (BATCH, 3, 96, 96)),))


def _timm(model: str, size: int = 0, **options: Any) -> TorchModel:
    import timm
    import torch

    module = timm.create_model(model, pretrained=False, **options)
    extent = size or module.pretrained_cfg["input_size"][-1]
    return TorchModel(module, (torch.randn(1, 3, extent, extent),))


_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "pad_token_id": 0,
}  # fmt: skip
_WITH_GROUPS = {**_SMALL, "num_key_value_heads": 2, "head_dim": 16}


def _text(kind: str, auto: str = "AutoModel", inputs: str = "text", **options: Any) -> TorchModel:
    """A model of transformers. `inputs` says what it reads: text, text with a mask and types, both sides of an encoder
    and a decoder, images, sounds.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(kind, **options)
    config.use_cache = False
    module = getattr(transformers, auto).from_config(config)
    ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS))
    mask = torch.ones_like(ids)
    mask[1, TOKENS - 4 :] = 0
    size = options.get("image_size", 64)
    pixels = torch.randn(BATCH, 3, size, size)
    given = {
        "text": {"input_ids": ids},
        "masked": {"input_ids": ids, "attention_mask": mask},
        "pair": {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :7]},
        "image": {"pixel_values": pixels},
        "image_text": {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels},
        "sound": {"input_values": torch.randn(BATCH, 3200)},
        "spectrum": {"input_features": torch.randn(BATCH, 80, 60), "decoder_input_ids": ids[:, :7]},
    }
    return TorchModel(module, kwargs=given[inputs])


_HALF = {"d_model": 64, "vocab_size": VOCABULARY, "pad_token_id": 0}
_SIDES = {
    **_HALF, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
_IMAGE = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
    "patch_size": 16,
}  # fmt: skip
_SOUND = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "conv_dim": (32, 32, 32), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 8), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip

_TORCHVISION: Mapping[str, tuple[tuple[int, ...], Mapping[str, Any]]] = {
    "alexnet": ((), {}),
    "convnext_tiny": ((), {}),
    "deeplabv3_mobilenet_v3_large": ((), {}),
    "densenet121": ((), {}),
    "efficientnet_b0": ((), {}),
    "efficientnet_v2_s": ((), {}),
    "fcn_resnet50": ((), {}),
    "googlenet": ((), {"init_weights": False}),
    "inception_v3": ((1, 3, 128, 128), {"init_weights": False}),
    "lraspp_mobilenet_v3_large": ((), {}),
    "maxvit_t": ((1, 3, 224, 224), {}),
    "mc3_18": ((1, 3, 4, 48, 48), {}),
    "mnasnet1_0": ((), {}),
    "mobilenet_v2": ((), {}),
    "mobilenet_v3_small": ((), {}),
    "mvit_v2_s": ((1, 3, 16, 224, 224), {}),
    "r2plus1d_18": ((1, 3, 4, 48, 48), {}),
    "r3d_18": ((1, 3, 4, 48, 48), {}),
    "regnet_x_400mf": ((), {}),
    "regnet_y_400mf": ((), {}),
    "resnet18": ((), {}),
    "resnet50": ((), {}),
    "resnext50_32x4d": ((), {}),
    "s3d": ((1, 3, 14, 224, 224), {}),
    "shufflenet_v2_x1_0": ((), {}),
    "squeezenet1_1": ((), {}),
    "swin3d_t": ((1, 3, 4, 64, 64), {}),
    "swin_t": ((), {}),
    "swin_v2_t": ((), {}),
    "vgg11_bn": ((), {}),
    "vit_b_32": ((1, 3, 96, 96), {"image_size": 96}),
}

_TIMM: Mapping[str, Mapping[str, Any]] = {
    "beit_base_patch16_224": {"depth": 2},
    "botnet26t_256": {},
    "cait_xxs24_224": {"depth": 2},
    "coat_tiny": {},
    "coatnet_0_rw_224": {},
    "convit_tiny": {"depth": 3, "local_up_to_layer": 2},
    "convmixer_768_32": {"size": 56},
    "convnextv2_atto": {"size": 96},
    "crossvit_tiny_240": {},
    "cspresnet50": {"size": 96},
    "davit_tiny": {"size": 96},
    "deit_tiny_patch16_224": {"depth": 2},
    "dla34": {"size": 96},
    "dpn48b": {"size": 96},
    "edgenext_xx_small": {"size": 96},
    "efficientformer_l1": {},
    "efficientvit_b0": {"size": 96},
    "efficientvit_m0": {},
    "eva02_tiny_patch14_224": {"depth": 2},
    "fasternet_t0": {"size": 96},
    "fastvit_t8": {"size": 128},
    "focalnet_tiny_srf": {"size": 96},
    "gcvit_xxtiny": {},
    "ghostnet_100": {"size": 96},
    "hiera_tiny_224": {},
    "hrnet_w18_small": {"size": 96},
    "inception_next_atto": {"size": 96},
    "lcnet_050": {"size": 96},
    "levit_128s": {},
    "mambaout_femto": {"size": 96},
    "mixer_s32_224": {},
    "mobilenetv4_conv_small": {"size": 96},
    "mobilevit_xxs": {"size": 128},
    "mobilevitv2_050": {"size": 128},
    "mvitv2_tiny": {},
    "nest_tiny": {},
    "nf_resnet26": {"size": 96},
    "pit_ti_224": {},
    "poolformer_s12": {"size": 96},
    "pvt_v2_b0": {"size": 96},
    "repvgg_a0": {"size": 96},
    "repvit_m0_9": {"size": 96},
    "res2net50d": {"size": 96},
    "resmlp_12_224": {},
    "resnest14d": {"size": 96},
    "rexnet_100": {"size": 96},
    "selecsls42": {"size": 96},
    "sequencer2d_s": {"layers": (1, 1, 1, 1)},
    "shvit_s1": {"size": 128},
    "skresnet18": {"size": 96},
    "starnet_s050": {"size": 96},
    "swinv2_cr_tiny_224": {},
    "tiny_vit_5m_224": {},
    "tnt_s_legacy_patch16_224": {"depth": 2},
    "tresnet_m": {"size": 96},
    "twins_svt_small": {},
    "visformer_tiny": {},
    "vit_relpos_small_patch16_224": {"depth": 2},
    "volo_d1_224": {},
    "vovnet39a": {"size": 96},
    "xception41": {"size": 96},
    "xcit_nano_12_p16_224": {"depth": 2},
}

_TRANSFORMERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "albert": ("masked", {**_SMALL, "embedding_size": 32}),
    "bart": ("pair", _SIDES),
    "bert": ("masked", _SMALL),
    "bloom": ("masked", {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "clip_vision_model": ("image", _IMAGE),
    "convbert": ("masked", {**_SMALL, "embedding_size": 64}),
    "deberta-v2": ("masked", {**_SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                              "type_vocab_size": 0}),
    "dinov2": ("image", {key: value for key, value in _IMAGE.items() if key != "intermediate_size"}),
    "distilbert": ("masked", {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}),
    "electra": ("masked", {**_SMALL, "embedding_size": 32}),
    "falcon": ("masked", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2,
                          "num_attention_heads": 4}),
    "fnet": ("text", {key: value for key, value in _SMALL.items() if key != "num_attention_heads"}),
    "gemma2": ("masked", _WITH_GROUPS),
    "gpt2": ("masked", {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "gpt_neo": ("masked", {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
    }),
    "gpt_neox": ("masked", _SMALL),
    "gptj": ("masked", {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8}),
    "llama": ("masked", _WITH_GROUPS),
    "mamba": ("text", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}),
    "mistral": ("masked", _WITH_GROUPS),
    "mixtral": ("masked", {**_WITH_GROUPS, "num_local_experts": 4}),
    "mobilebert": ("masked", {**_SMALL, "embedding_size": 32, "intra_bottleneck_size": 32}),
    "modernbert": ("masked", {**_SMALL, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}),
    "mpnet": ("masked", _SMALL),
    "olmo2": ("masked", {key: value for key, value in _WITH_GROUPS.items() if key != "head_dim"}),
    "opt": ("masked", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "ffn_dim": 128, "word_embed_proj_dim": 64, "pad_token_id": 1}),
    "phi": ("masked", _SMALL),
    "phi3": ("masked", _SMALL),
    "qwen2": ("masked", {key: value for key, value in _WITH_GROUPS.items() if key != "head_dim"}),
    "qwen3": ("masked", _WITH_GROUPS),
    "roberta": ("masked", {**_SMALL, "pad_token_id": 1}),
    "roformer": ("masked", {**_SMALL, "embedding_size": 64}),
    "segformer": ("image", {"hidden_sizes": (16, 32, 64, 64), "depths": (1, 1, 1, 1)}),
    "siglip_vision_model": ("image", _IMAGE),
    "squeezebert": ("masked", {**_SMALL, "embedding_size": 64}),
    "stablelm": ("masked", {key: value for key, value in _WITH_GROUPS.items() if key != "head_dim"}),
    "t5": ("pair", {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
                    "decoder_start_token_id": 0}),
    "vit": ("image", _IMAGE),
    "wav2vec2": ("sound", _SOUND),
    "whisper": ("spectrum", {**_SIDES, "max_source_positions": 30, "decoder_start_token_id": 1}),
    "xlnet": ("masked", {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128}),
}  # fmt: skip

ARCHITECTURES: Mapping[str, Callable[[], TorchModel]] = {
    **{
        f"torchvision/{name}": partial(_torchvision, name, *shape, **more)
        for name, (shape, more) in _TORCHVISION.items()
    },
    **{f"timm/{name}": partial(_timm, name, **more) for name, more in _TIMM.items()},
    **{
        f"transformers/{name}": partial(_text, name, inputs=inputs, **more)
        for name, (inputs, more) in _TRANSFORMERS.items()
    },
}
"""How to make each model, by its name."""
