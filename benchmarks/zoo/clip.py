"""CLIP's image tower, a vision transformer that projects images to vectors shared with texts, as an ONNX model."""

import onnx

from benchmarks.zoo.attention import pre_norm_layer, quick_gelu
from benchmarks.zoo.layers import LayerWriter
from benchmarks.zoo.vit import patches_after_class_token
from retune.compiler.frontend.zoo.attention import Sizes


def clip_vit_b32(
    *,
    batch: int = 1,
    image: int = 224,
    patch: int = 32,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    hidden: int = 3072,
    shared: int = 512,
    seed: int = 0,
) -> onnx.ModelProto:
    """Input (batch, 3, image, image), output `image_embeds` (batch, shared); `image` is a multiple of `patch`.

    Configuration of openai/clip-vit-base-patch32 (Radford et al., arXiv 2103.00020).
    """
    write = LayerWriter("clip_vit_b32", (batch, 3, image, image), seed)
    tokens = (image // patch) ** 2 + 1
    x = patches_after_class_token(write, (batch, tokens, width), patch, bias=False)
    x = write.layer_norm(x, width, "pre_norm")
    sizes = Sizes(batch, tokens, width, heads, hidden)
    for layer in range(layers):
        x = pre_norm_layer(write, x, sizes, f"layer{layer}", activation=quick_gelu)
    first = write.node("Gather", [x, write.integers((0,), "first_token")], "first", axis=1)
    pooled = write.layer_norm(write.node("Flatten", [first], "features", axis=1), width, "post_norm")
    return write.finish(write.linear(pooled, (width, shared), "image_embeds", bias=False), (batch, shared))
