"""Runs an ONNX model with ONNX Runtime; the only module that imports `onnxruntime`, which is optional."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import MeasureError

try:
    import onnxruntime
except ImportError:  # the extra `report` brings it
    onnxruntime = None


def is_installed() -> bool:
    """Whether ONNX Runtime can be compared with."""
    return onnxruntime is not None


class OnnxRuntime:
    """A session of ONNX Runtime on `threads` threads."""

    def __init__(
        self, model: bytes | str, threads: int, *, is_optimized: bool = True, libraries: Sequence[Path] = ()
    ) -> None:
        """Load the model, an ONNX message or the path of a file; without optimization every node is run as it stands.
        `libraries` have custom operators. Raises: MeasureError when it cannot.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # One operator at a time, as we run: a second pool would compete for the same cores.
        options.inter_op_num_threads = 1
        # Errors alone; its warnings on stderr would look like ours.
        options.log_severity_level = 3
        if not is_optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            for library in libraries:
                options.register_custom_ops_library(str(library.absolute()))
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base of their own
            raise MeasureError(f"ONNX Runtime cannot load the model: {error}") from error

    def bind(self, inputs: Mapping[str, NDArray[np.generic]]) -> Callable[[], None]:
        """A function that runs the network on these inputs, which ONNX Runtime keeps in tensors of its own. Its outputs
        stay there, too: nothing is copied from or to NumPy.
        """
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        return lambda: self._session.run_with_iobinding(binding)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> list[NDArray[np.generic]]:
        """The network's outputs, in its order. Raises: MeasureError when it cannot run."""
        try:
            return [np.asarray(output) for output in self._session.run(None, dict(inputs))]
        except Exception as error:  # as above
            raise MeasureError(f"ONNX Runtime cannot run the model: {error}") from error
