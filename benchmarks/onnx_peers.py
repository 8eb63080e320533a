"""Runs ONNX models with IREE, MNN and ncnn, which are optional: each is converted with its own tools, in float32.

`pip install iree-base-compiler[onnx] iree-base-runtime MNN ncnn pnnx` installs them. IREE and MNN take a model as it
is; ncnn has one size of batch, 1, and no integers.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from retune.compiler.core.errors import MeasureError
from retune.compiler.tune.openvino import OpenVino

IREE, MNN, NCNN = "iree", "mnn", "ncnn"

_SECONDS = 600.0
"""In which a model must be converted."""
_ERROR = 300
"""Letters of a reason."""

Array = NDArray[Any]
Arrays = Mapping[str, Array]


class OnnxPeer(Protocol):
    """A model that is ready to run."""

    def run(self, inputs: Arrays) -> list[Array]:
        """The outputs, in the model's order."""


def installed() -> tuple[str, ...]:
    """The peers that can be used here."""
    return tuple(name for name, modules in _MODULES.items() if all(map(_is_found, modules)))


def load_in_openvino(path: str, threads: int) -> None:
    """Load a file in OpenVINO, which ends the process by a signal for some: call it in a worker process."""
    OpenVino(path, threads)


def load(backend: str, path: Path, inputs: Arrays, threads: int) -> OnnxPeer:
    """The model of an ONNX file, for inputs of these shapes. Raises: MeasureError when the peer does not take it."""
    with tempfile.TemporaryDirectory(prefix=f"retune-{backend}-") as folder:
        try:
            return _LOADERS[backend](path, inputs, threads, Path(folder))
        except Exception as error:  # of other packages, which may raise anything
            raise MeasureError(f"{backend} does not take the model: {_reason(error)}") from error


class _Iree:
    def __init__(self, path: Path, inputs: Arrays, threads: int, folder: Path) -> None:
        from iree import runtime
        from iree.compiler import tools

        text, program = folder / "model.mlir", folder / "model.vmfb"
        _execute([sys.executable, "-m", "iree.compiler.tools.import_onnx", str(path), "-o", str(text)], folder)
        tools.compile_file(
            str(text),
            output_file=str(program),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O3"],
        )
        runtime.flags.parse_flags(f"--task_topology_max_group_count={threads}")
        config = runtime.Config("local-task")
        module = runtime.VmModule.copy_buffer(config.vm_instance, program.read_bytes())
        (name,) = (name for name in module.function_names if not name.endswith("$async") and not name.startswith("__"))
        self._function = runtime.load_vm_module(module, config)[name]
        self._order = tuple(inputs)

    def run(self, inputs: Arrays) -> list[Array]:
        found = self._function(*(inputs[name] for name in self._order))
        return [np.asarray(one) for one in (found if isinstance(found, tuple | list) else (found,))]


class _Mnn:
    def __init__(self, path: Path, inputs: Arrays, threads: int, folder: Path) -> None:
        import MNN

        self._values, made = MNN.expr, folder / "model.mnn"
        # The converter itself: the package's command of that name installs packages and reports to a server.
        code = f"import MNN, _tools; _tools.mnnconvert({['', *_MNN_OPTIONS, str(path), '--MNNModel', str(made)]!r})"
        _execute([sys.executable, "-c", code], folder)
        if not made.exists():
            raise MeasureError("the converter wrote no model")
        manager = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
        outputs = [entry.name for entry in onnx.load(str(path), load_external_data=False).graph.output]
        self._net = MNN.nn.load_module_from_file(str(made), list(inputs), outputs, runtime_manager=manager)
        self._order = tuple(inputs)

    def run(self, inputs: Arrays) -> list[Array]:
        values, given = self._values, []
        for array in map(inputs.__getitem__, self._order):
            is_float = array.dtype.kind == "f"
            dense = np.ascontiguousarray(array if is_float else array.astype(np.int32))
            given.append(values.const(dense, list(array.shape), values.NCHW, values.float if is_float else values.int))
        found = self._net.forward(given)
        made = found if isinstance(found, tuple | list) else (found,)
        return [np.array(values.convert(one, values.NCHW).read()) for one in made]


class _Ncnn:
    def __init__(self, path: Path, inputs: Arrays, threads: int, folder: Path) -> None:
        import ncnn

        if any(array.shape[:1] != (1,) or array.dtype != np.float32 for array in inputs.values()):
            raise MeasureError("it takes float32 inputs of batch 1 alone")
        (folder / "model.onnx").symlink_to(path.resolve())
        shapes = ",".join("[" + ",".join(map(str, array.shape)) + "]f32" for array in inputs.values())
        command = str(Path(sys.executable).with_name("pnnx"))
        _execute([command, "model.onnx", f"inputshape={shapes}", "fp16=0"], folder)
        self._matrix, self._net = ncnn.Mat, ncnn.Net()
        options = self._net.opt
        options.num_threads = threads
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        options.use_bf16_storage = False
        if self._net.load_param(str(folder / "model.ncnn.param")) or self._net.load_model(
            str(folder / "model.ncnn.bin")
        ):
            raise MeasureError("it cannot load what pnnx made of the model")
        self._shapes = [
            [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
            for entry in onnx.load(str(path), load_external_data=False).graph.output
        ]

    def run(self, inputs: Arrays) -> list[Array]:
        extractor = self._net.create_extractor()
        for number, array in enumerate(inputs.values()):
            extractor.input(f"in{number}", self._matrix(np.ascontiguousarray(array[0])))
        found = []
        for number, shape in enumerate(self._shapes):
            code, matrix = extractor.extract(f"out{number}")
            if code:
                raise MeasureError(f"ncnn cannot compute output {number}: code {code}")
            found.append(np.array(matrix).reshape(shape))
        return found


_MNN_OPTIONS = ("-f", "ONNX", "--bizCode", "retune", "--modelFile")
_MODULES: Mapping[str, Sequence[str]] = {
    IREE: ("iree.compiler", "iree.runtime"),
    MNN: ("MNN", "_tools"),
    NCNN: ("ncnn", "pnnx"),
}
_LOADERS: Mapping[str, Callable[[Path, Arrays, int, Path], OnnxPeer]] = {IREE: _Iree, MNN: _Mnn, NCNN: _Ncnn}


def _is_found(module: str) -> bool:
    parent = module.rpartition(".")[0]
    return (not parent or find_spec(parent) is not None) and find_spec(module) is not None


def _execute(command: Sequence[str], folder: Path) -> None:
    """Run a converter. Raises: MeasureError with the end of what it printed, when it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise MeasureError(" ".join((done.stderr or done.stdout).split())[-_ERROR:] or f"code {done.returncode}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_ERROR] or type(error).__name__
