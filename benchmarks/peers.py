"""Times a compiled operator and its peers on the same ONNX model: seconds and errors.

All are interleaved in one process, preferably a fresh one (see `retune.compiler.measure.processes.worker_process`).
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.harness import interleaved
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.tune.onnx_runtime import OnnxRuntime

KERNEL, EDGES, SESSION, NODE, NUMPY = "retune", "retune-network", "onnxruntime", "onnxruntime-node", "numpy"
"""Our kernel alone; our network of one operator, with the changes of layout at its edges; ONNX Runtime's session, with
its own changes of layout; the operator alone as ONNX Runtime's profiler sees it; NumPy.
"""

_PROFILED_RUNS = 60

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to compute an operator: seconds per call, and the error where the outputs were compared."""

    backend: str
    seconds: float
    error: float | None


def peer_environment(threads: int) -> dict[str, str]:
    """What the process that times peers must find in its environment."""
    found = {"OPENBLAS_NUM_THREADS": str(threads)}
    if hardware_of(Target.host(), threads).lane_masks:
        # Left alone, NumPy's OpenBLAS takes kernels with half-width vectors on AMD's CPUs with AVX-512.
        found["OPENBLAS_CORETYPE"] = "SkylakeX"
    return found


def time_operator(path: Path, kernel: str, model: bytes, threads: int, product: bool) -> list[Peer]:
    """Time kernel `kernel` of the compiled network at `path`, the network, ONNX Runtime on `model` and, for a matrix
    product, NumPy. Errors are against the reference of `_reference`.
    """
    network = CompiledNetwork.load(path)
    executor = GraphExecutor(network, threads)
    ((name, shape),) = executor.get_input_info()[0].items()
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    executor.run(**{name: x})
    session = OnnxRuntime(model, threads)
    inputs = {name: x}
    answers = {EDGES: executor.get_output(0), SESSION: session.run(inputs)[0]}
    runs: dict[str, Callable[[], object]] = {
        KERNEL: _bound(network, kernel, threads),
        EDGES: executor.run,
        SESSION: lambda: session.run(inputs),
    }
    if product:
        # Of the model's size: packed weights may be padded.
        columns = answers[SESSION].shape[-1]
        matrix = np.random.default_rng(1).standard_normal((shape[1], columns), dtype=np.float32)
        out = np.empty((shape[0], matrix.shape[1]), np.float32)
        runs[NUMPY] = lambda: np.matmul(x, matrix, out=out)
        runs[NUMPY]()
        answers[NUMPY] = out
    errors = {backend: relative_error(answer, answers[SESSION]) for backend, answer in answers.items()}
    errors[KERNEL] = errors[EDGES]
    del errors[SESSION]
    seconds = interleaved(runs)
    found = [Peer(backend, seconds[backend], errors.get(backend)) for backend in runs]
    node = _node_seconds(model, inputs, threads)
    return [*found, Peer(NODE, node, None)]


def relative_error(got: Floats, wanted: NDArray[np.floating[Any]]) -> float:
    """The largest difference, relative to the largest value wanted."""
    wide = wanted.astype(np.float64)
    return float(np.max(np.abs(got - wide)) / np.max(np.abs(wide)))


def _bound(network: CompiledNetwork, kernel: str, threads: int) -> BoundKernel:
    """One kernel of the network, on buffers of its own filled with random numbers."""
    (artifact,) = (one for one in network.kernels if one.name == kernel)
    rng = np.random.default_rng(0)
    buffers = [aligned_array(spec.buffer_shape, spec.dtype) for spec in artifact.args]
    for buffer in buffers:
        buffer[...] = rng.standard_normal(buffer.shape, dtype=np.float32)
    return load_kernels([artifact])[kernel].bind(buffers, threads)


def _node_seconds(model: bytes, inputs: dict[str, Floats], threads: int) -> float:
    """The median time of the slowest node alone, from ONNX Runtime's own profiler (in whole microseconds)."""
    with tempfile.TemporaryDirectory(prefix="retune-profile-") as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(_PROFILED_RUNS):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[str, list[int]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault(event["name"], []).append(event["dur"])
    return max((float(np.median(durations)) for durations in times.values()), default=float("nan")) / 1e6
