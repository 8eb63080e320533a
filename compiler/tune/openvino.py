"""Runs an ONNX model with OpenVINO; the only module that imports `openvino`, which is optional."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import MeasureError

try:
    import openvino
except ImportError:  # the extra `report` brings it
    openvino = None


def is_installed() -> bool:
    """Whether OpenVINO can be compared with."""
    return openvino is not None


class OpenVino:
    """A model that OpenVINO has compiled for `threads` threads of the CPU, for latency or for several `instances` that
    run at a time: in float32, or in the precision that is its default, bfloat16 where the CPU has instructions for it.
    """

    def __init__(
        self,
        model: bytes | str,
        threads: int,
        instances: int = 1,
        *,
        is_float32: bool = True,
        is_exported: bool = False,
    ) -> None:
        """Compile the model, an ONNX message or the path of a file, or load the bytes of one that was exported.

        Raises: MeasureError when it cannot.
        """
        settings = {
            **({"INFERENCE_PRECISION_HINT": "f32"} if is_float32 else {}),
            "PERFORMANCE_HINT": "LATENCY" if instances == 1 else "THROUGHPUT",
            "INFERENCE_NUM_THREADS": str(threads * instances),
            **({} if instances == 1 else {"NUM_STREAMS": str(instances)}),
        }
        try:
            core = _core()
            self._compiled = (
                core.import_model(model, "CPU", settings)
                if is_exported
                else core.compile_model(core.read_model(model), "CPU", settings)
            )
            self._requests = [self._compiled.create_infer_request() for _ in range(instances)]
        except Exception as error:  # RuntimeError and others, with many lines
            raise MeasureError(f"OpenVINO cannot load the model: {_last_line(error)}") from error

    def export(self) -> bytes:
        """The compiled model in OpenVINO's own format."""
        exported: bytes = self._compiled.export_model().getvalue()
        return exported

    @property
    def precision(self) -> str:
        """The element type in which it computes floats, such as "bf16"."""
        return str(self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string())

    def run(self, inputs: Mapping[str, NDArray[np.generic]], instance: int = 0) -> list[NDArray[np.generic]]:
        """The network's outputs, in its order. Raises: MeasureError when it cannot run."""
        try:
            # Without copies of the inputs, as our executors run.
            results = self._requests[instance].infer(dict(inputs), share_inputs=True)
            return [_numbers(results[output], output.element_type.to_string()) for output in self._compiled.outputs]
        except Exception as error:  # as above
            raise MeasureError(f"OpenVINO cannot run the model: {_last_line(error)}") from error


@cache
def _core() -> Any:
    """The OpenVINO of this process, never released: a plugin that another thread destroys leaves the thread that loaded
    it with a signal stack in unmapped memory, and the next signal ends the process.
    """
    return openvino.Core()


def _numbers(result: NDArray[np.generic], element: str) -> NDArray[np.generic]:
    """The elements of an output: OpenVINO calls those of bfloat16 float16."""
    return np.asarray(result).view(BFLOAT16) if element == "bf16" else np.asarray(result)


def _last_line(error: Exception) -> str:
    """What went wrong: the lines before name places in OpenVINO's source."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
