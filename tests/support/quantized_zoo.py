"""The networks of the zoo in small sizes, as ONNX Runtime's tools quantize them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)

from benchmarks import zoo
from tests.support.zoo_sizes import SMALL

Array = NDArray[Any]
_BY_CHANNEL = {"weight_type": QuantType.QInt8, "per_channel": True}
FORMS: Mapping[str, Mapping[str, Any]] = {
    "u8s8": {**_BY_CHANNEL, "activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QDQ},
    "s8s8": {**_BY_CHANNEL, "activation_type": QuantType.QInt8, "quant_format": QuantFormat.QDQ},
    "operators": {**_BY_CHANNEL, "activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QOperator},
    "dynamic": _BY_CHANNEL,
}
"""Static quantization between operators (QDQ), into operators (QLinearConv and its kin), and dynamic quantization."""


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Seeded inputs to calibrate with."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._left: Iterator[dict[str, Array]] = iter([inputs_of(model, seed) for seed in (1, 2)])

    def get_next(self) -> dict[str, Array] | None:
        """The next input, None after the last."""
        return next(self._left, None)


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
    model = _with_distinct_names(zoo.build(name, **SMALL[name]))
    source, folded, target = (folder / f"{stage}.onnx" for stage in ("source", "folded", "quantized"))
    onnx.save(onnx.shape_inference.infer_shapes(model), source)
    quant_pre_process(source, folded, skip_symbolic_shape=True)
    if form == "dynamic":
        quantize_dynamic(folded, target, **FORMS[form])
        return onnx.load(target)
    try:
        quantize_static(folded, target, _Samples(model), **FORMS[form])
    except ValueError:  # of the tool: a dense layer that was folded has its channels along another axis than its bias
        quantize_static(source, target, _Samples(model), **FORMS[form])
    return onnx.load(target)


def _with_distinct_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with other names of weights: the tool calls the scale of NAME "NAME_scale", as norms of the zoo do."""
    names = {tensor.name: f"weight.{tensor.name}" for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model
