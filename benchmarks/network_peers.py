"""Times a network, compiled by us and by its peers: latency, errors, peak memory and first run.

All are interleaved in one process, on the same inputs; memory and first run are measured in a separate process for
each.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from numpy.typing import NDArray

from benchmarks import onnx_peers
from benchmarks.harness import interleaved
from retune.compiler.core.errors import MeasureError
from retune.compiler.driver.export import ONNX_RUNTIME, exported_files
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.openvino import OpenVino

try:
    import torch

    from benchmarks.torch_network import torch_network
except ImportError:  # a large package that nothing else here needs
    torch = None

SESSION, OPENVINO, EAGER, COMPILED = "onnxruntime", "openvino", "torch", "torch-compiled"
OPENVINO_DEFAULT = "openvino-default"
"""OpenVINO in the precision that it takes by itself, bfloat16 where the CPU has it; `OPENVINO` is float32."""
EXPORTED = "onnxruntime-retune"
"""A network that we have exported to ONNX Runtime."""

BOUND = "onnxruntime-retune-bound"
"""The same on tensors of ONNX Runtime, as programs in C or with an I/O binding run it: without NumPy's copies."""

_RUNS = 3
_RESET_PEAK = "5"
"""What Linux takes as the wish to forget the largest resident size so far."""

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[], object]
Answer = Callable[[], list[NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class NetworkPeer:
    """One way to run a network: seconds of a run, and the largest difference from ONNX Runtime's outputs, relative to
    the largest value of each. `failure` says why it has no time.
    """

    backend: str
    seconds: float
    error: float | None
    failure: str = ""


def has_torch() -> bool:
    """Whether PyTorch is installed."""
    return torch is not None


def seeded_inputs(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Normal for floats; ones for integers: legal indices everywhere, and a mask that leaves nothing out."""
    rng = np.random.default_rng(0)
    found: dict[str, NDArray[Any]] = {}
    for entry in model.graph.input:
        tensor = entry.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        found[entry.name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    return found


def export_torch(model: Path, path: Path) -> None:
    """Write the network of an ONNX file as PyTorch module."""
    torch.save(torch_network(onnx.load(str(model))), path)


def time_networks(files: Mapping[str, Path], inputs: Arrays, threads: int) -> list[NetworkPeer]:
    """Time each contender on its file: `SESSION`, OpenVINO and those of `onnx_peers` an ONNX file, `EXPORTED` and
    `BOUND` one with its library beside it, `EAGER` and `COMPILED` one of `export_torch`, all others compiled networks
    of ours.

    One of `onnx_peers` that does not take the file, or answers in other shapes, is left out with its failure.
    """
    runs: dict[str, Run] = {}
    answers: dict[str, list[NDArray[Any]]] = {}
    failures: list[NetworkPeer] = []
    for backend, path in files.items():
        try:
            run, answer = contender(backend, path, inputs, threads)
            answers[backend] = answer()
            if backend in onnx_peers.installed() and SESSION in answers:
                _check_shapes(answers[backend], answers[SESSION])
        except MeasureError as error:
            if backend not in onnx_peers.installed():
                raise
            answers.pop(backend, None)
            failures.append(NetworkPeer(backend, math.nan, None, str(error)))
        else:
            runs[backend] = run
    seconds = interleaved(runs)
    timed = [
        NetworkPeer(backend, seconds[backend], None if backend == SESSION else _error(answer, answers[SESSION]))
        for backend, answer in answers.items()
    ]
    return [*timed, *failures]


def load_cost(backend: str, path: Path, inputs: Arrays, threads: int) -> tuple[int, float]:
    """Bytes that this process, a fresh one, grows by at most while it loads a contender and runs it a few times, and
    seconds until the end of the first run. Packages have been imported before.
    """
    if torch is not None:
        torch.set_num_threads(threads)
    before = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    began = time.perf_counter()
    run, _ = contender(backend, path, inputs, threads)
    run()
    seconds = time.perf_counter() - began
    for _ in range(_RUNS - 1):
        run()
    (peak,) = (
        line.split()[1]
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmHWM:")
    )
    return int(peak) * 1024 - before, seconds


def contender(backend: str, path: Path, inputs: Arrays, threads: int) -> tuple[Run, Answer]:
    """What is timed, and the outputs."""
    if backend in (SESSION, EXPORTED, BOUND):
        libraries = [exported_files(path, ONNX_RUNTIME)[1]] if backend != SESSION else []
        session = OnnxRuntime(str(path), threads, libraries=libraries)
        if backend == BOUND:
            return session.bind(inputs), lambda: session.run(inputs)
        return lambda: session.run(inputs), lambda: session.run(inputs)
    if backend in (OPENVINO, OPENVINO_DEFAULT):
        peer = OpenVino(str(path), threads, is_float32=backend == OPENVINO)
        return lambda: peer.run(inputs), lambda: peer.run(inputs)
    if backend in onnx_peers.installed():
        other = onnx_peers.load(backend, path, inputs, threads)
        return lambda: other.run(inputs), lambda: other.run(inputs)
    if backend in (EAGER, COMPILED):
        return _torch_contender(path, inputs, threads, compiled=backend == COMPILED)
    executor = GraphExecutor(CompiledNetwork.load(path), threads)
    for name, array in inputs.items():
        executor.set_input(name, array)

    def outputs() -> list[NDArray[Any]]:
        executor.run()
        return [executor.get_output(index) for index in range(executor.get_num_outputs())]

    return executor.run, outputs


def _torch_contender(path: Path, inputs: Arrays, threads: int, *, compiled: bool) -> tuple[Run, Answer]:
    """PyTorch's compiler may take the weights as constants, as all others do; it then packs them."""
    torch.set_num_threads(threads)
    module = torch.load(path, weights_only=False)
    if compiled:
        module = torch.compile(module, options={"freezing": True})
    tensors = [torch.from_numpy(array.copy()) for array in inputs.values()]

    def run() -> Any:
        with torch.no_grad():
            return module(*tensors)

    return run, lambda: [np.array(output.numpy()) for output in run()]


def _check_shapes(answers: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    found, right = ([array.shape for array in arrays] for arrays in (answers, wanted))
    if found != right:
        raise MeasureError(f"the outputs have shapes {found}, not {right}")


def _error(answers: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> float:
    """The largest difference, relative to the largest value wanted of each output."""
    worst = 0.0
    for got, right in zip(answers, wanted, strict=True):
        wide = np.asarray(right, np.float64)
        scale = float(np.max(np.abs(wide))) or 1.0
        # Not `max`, which ignores a NaN.
        worst = float(np.maximum(worst, np.max(np.abs(np.asarray(got, np.float64) - wide)) / scale))
    return worst
