"""What every use of ONNX Runtime's quantizer needs: samples to calibrate with, and names that it does not confuse."""

from collections.abc import Iterable, Mapping

import onnx
from onnxruntime.quantization import CalibrationDataReader

from retune.compiler.core.dtype import Array


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """Inputs to calibrate with, in order."""

    def __init__(self, samples: Iterable[Mapping[str, Array]]) -> None:
        self._left = iter([dict(sample) for sample in samples])

    def get_next(self) -> dict[str, Array] | None:
        """The next sample, None after the last."""
        return next(self._left, None)


def rename_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rename the weights of `model`, and return it: the quantizer takes a weight NAME_scale for the scale of NAME."""
    new = {tensor.name: f"weight_{tensor.name}" for tensor in model.graph.initializer}
    for tensor in (*model.graph.initializer, *model.graph.input):
        tensor.name = new.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
    return model
