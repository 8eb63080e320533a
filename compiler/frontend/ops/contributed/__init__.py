"""Converters of the operators that ONNX Runtime adds to ONNX's, as compositions of standard operators."""

from collections.abc import Mapping

from retune.compiler.frontend.model_file import CONTRIBUTED_DOMAIN
from retune.compiler.frontend.ops.contributed import (
    arrays,
    attention,
    few_bits,
    fused,
    grouped_attention,
    nchwc,
    normalization,
    quantized,
)
from retune.compiler.frontend.ops.elementwise import Converter

THEMES: Mapping[str, Mapping[str, Converter]] = {
    "attention": {**attention.CONVERTERS, **grouped_attention.CONVERTERS},
    "normalization": normalization.CONVERTERS,
    "fused products and activations": fused.CONVERTERS,
    "quantized": quantized.CONVERTERS,
    "weights of a few bits": few_bits.CONVERTERS,
    "arrays": arrays.CONVERTERS,
}

CONVERTERS: Mapping[str, Converter] = {
    **{f"{CONTRIBUTED_DOMAIN}.{name}": convert for theme in THEMES.values() for name, convert in theme.items()},
    **{f"{CONTRIBUTED_DOMAIN}.nchwc.{name}": convert for name, convert in nchwc.CONVERTERS.items()},
}
