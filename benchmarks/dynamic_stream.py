"""Contenders of `benchmarks.dynamic` in their own processes: one in each, which loads a file and answers requests.

All functions run in a worker process. Nothing of the other contenders is imported, nor of our compiler.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

OURS, FIXED = "retune", "retune-fixed"
SESSION, OPENVINO, COMPILED = "onnxruntime", "openvino", "torch-compiled"
_MIB = 2.0**20
_MODULES = {
    OURS: "retune.network",
    FIXED: "retune.network",
    SESSION: "retune.compiler.tune.onnx_runtime",
    OPENVINO: "retune.compiler.tune.openvino",
    COMPILED: "torch",
}
_LATER = 3
"""Calls of a shape after its first."""

Arrays = Mapping[str, NDArray[Any]]
Answer = Callable[[Arrays], Sequence[NDArray[Any]]]
Timed = tuple[float, float | None, list[NDArray[Any]]]
"""Seconds of a request, the shortest of later ones of this shape where they were made, and the outputs."""

_answer: list[Answer] = []
"""The contender of this process."""


def start(backend: str, path: str, threads: int) -> tuple[float, float]:
    """Load a contender in this process; the seconds of its imports, and of loading."""
    began = time.perf_counter()
    import_module(_MODULES[backend])
    imported = time.perf_counter()
    _answer[:] = [load(backend, path, threads)]
    return imported - began, time.perf_counter() - imported


def answer(requests: Sequence[tuple[Arrays, bool]]) -> list[Timed]:
    """Answer requests, and again a few times those with a mark."""
    run, answers = _answer[0], []
    for inputs, again in requests:
        began = time.perf_counter()
        outputs = run(inputs)
        seconds = time.perf_counter() - began
        later = min(_seconds(run, inputs) for _ in range(_LATER)) if again else None
        # A copy: outputs may lie in memory that the next request overwrites.
        answers.append((seconds, later, [np.array(output) for output in outputs]))
    return answers


def memory() -> float:
    """MiB that this process has in memory."""
    return float(psutil.Process(os.getpid()).memory_info().rss / _MIB)


def _seconds(run: Answer, inputs: Arrays) -> float:
    began = time.perf_counter()
    run(inputs)
    return time.perf_counter() - began


def load(backend: str, path: str, threads: int) -> Answer:
    """A contender: our compiled network, ONNX Runtime's optimized graph, what OpenVINO has exported, or a module that
    PyTorch compiles for all shapes.
    """
    if backend in (OURS, FIXED):
        return _ours(path)
    if backend == SESSION:
        from retune.compiler.tune.onnx_runtime import OnnxRuntime

        return OnnxRuntime(path, threads, is_optimized=False).run
    if backend == OPENVINO:
        from retune.compiler.tune.openvino import OpenVino

        return OpenVino(Path(path).read_bytes(), threads, is_exported=True).run
    return _torch(path, threads)


def _ours(path: str) -> Answer:
    from retune.network import load

    network = load(path)

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        result = network(**inputs)
        return result if isinstance(result, tuple) else (result,)

    return run


def _torch(path: str, threads: int) -> Answer:
    import torch

    torch.set_num_threads(threads)
    module = torch.compile(torch.load(path, weights_only=False), dynamic=True)

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        with torch.no_grad():
            return [output.numpy() for output in module(*(torch.from_numpy(array) for array in inputs.values()))]

    return run
