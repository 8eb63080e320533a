"""Networks of the zoo have the parameters of the same architectures in torchvision and transformers. Needs both."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest

from benchmarks import zoo
from benchmarks.torch_models import declare_operators

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # the libraries' own


def _torchvision(name: str) -> Any:
    return pytest.importorskip("torchvision").models.get_model(name, weights=None)


def _llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        rope_theta=1e5,
    )
    return transformers.LlamaForCausalLM(config)


def _minilm() -> Any:
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def _whisper(part: str) -> Any:
    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    return getattr(transformers.WhisperModel(config), part)


PUBLISHED: dict[str, tuple[Callable[[], Any], int]] = {
    "clip_vit_b32": (lambda: transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig()), 0),
    "minilm_l6": (_minilm, 0),
    "sam2_tiny_encoder": (lambda: transformers.Sam2VisionModel(transformers.Sam2VisionConfig()), 0),
    "smollm2_135m": (_llama, 0),
    "swin_tiny": (lambda: _torchvision("swin_t"), 0),
    "whisper_tiny_encoder": (lambda: _whisper("encoder"), 0),
    "whisper_tiny_step": (lambda: _whisper("decoder"), 4 * (2 * 384 * 384 + 384)),
}
"""How to make the model, and its parameters that the network leaves out: layers that run once before all steps."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_library(name: str) -> None:
    make, left_out = PUBLISHED[name]
    declare_operators()
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in make().parameters())
    weights = [tensor for tensor in zoo.build(name).graph.initializer if not _is_table(tensor.name)]
    own = sum(prod(tensor.dims) for tensor in weights if tensor.data_type == 1 and len(tensor.dims) > 0)
    assert own == expected - left_out


def _is_table(name: str) -> bool:
    """Whether a constant is computed, not learned: masks, the rates of rotary places, factors of a size."""
    return name.endswith("_mask") or name in ("later_tokens", "rotary_rates", "twice")
