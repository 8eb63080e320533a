"""The networks of the zoo in small sizes, as ONNX Runtime's tools quantize them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)

from benchmarks import zoo
from benchmarks.onnx_quantizer import Samples, rename_weights
from retune.compiler.core.dtype import Array
from tests.support.zoo_sizes import SMALL

_BY_CHANNEL = {"weight_type": QuantType.QInt8, "per_channel": True}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "u8s8": {**_BY_CHANNEL, "activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QDQ},
    "s8s8": {**_BY_CHANNEL, "activation_type": QuantType.QInt8, "quant_format": QuantFormat.QDQ},
    "operators": {**_BY_CHANNEL, "activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QOperator},
    "dynamic": _BY_CHANNEL,
}
"""Static quantization between operators (QDQ), into operators (QLinearConv and its kin), and dynamic quantization."""


def inputs_of(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Normal floats, and ones for integers, which are legal indices everywhere."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for entry in model.graph.input:
        shape = [dimension.dim_value for dimension in entry.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        inputs[entry.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    return inputs


def quantized(name: str, form: str, folder: Path) -> onnx.ModelProto:
    """A network of the zoo in a form of `FORMS`; `folder` takes the tool's files."""
    model = rename_weights(zoo.build(name, **SMALL[name]))
    source, folded, target = (folder / f"{stage}.onnx" for stage in ("source", "folded", "quantized"))
    onnx.save(onnx.shape_inference.infer_shapes(model), source)
    quant_pre_process(source, folded, skip_symbolic_shape=True)
    if form == "dynamic":
        quantize_dynamic(folded, target, **FORMS[form])
        return onnx.load(target)
    try:
        quantize_static(folded, target, Samples(inputs_of(model, seed) for seed in (1, 2)), **FORMS[form])
    except ValueError:  # of the tool: a dense layer that was folded has its channels along another axis than its bias
        quantize_static(source, target, Samples(inputs_of(model, seed) for seed in (1, 2)), **FORMS[form])
    return onnx.load(target)
