"""Files of the contenders of `benchmarks.dynamic`, and their steady times. All functions run in worker processes."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import onnx

import retune
from benchmarks.dynamic_stream import COMPILED, OPENVINO, SESSION, Arrays, load
from benchmarks.harness import interleaved
from retune.compiler.core.errors import MeasureError
from retune.compiler.tune.openvino import OpenVino


def installed() -> tuple[str, ...]:
    """The peers that can be used here."""
    packages = {SESSION: "onnxruntime", OPENVINO: "openvino", COMPILED: "torch"}
    return tuple(peer for peer, package in packages.items() if find_spec(package) is not None)


def compile_ours(
    model: str, shapes: Mapping[str, tuple[int, ...]] | None, threads: int, seconds: float, out: str
) -> float:
    """Compile an ONNX file, for all shapes or for these, and save it. With `seconds` of at least 1 one for fixed shapes
    is tuned. Returns the seconds that the compilation took, imports and tuning aside.
    """
    folder = Path(out).parent
    if seconds >= 1 and shapes is not None:
        retune.tune(
            model,
            minutes=seconds / 60,
            shapes=shapes,
            store=folder / "store",
            progress=False,
            options={"threads": threads},
        )
    began = time.perf_counter()
    network = retune.compile(model, dynamic=shapes is None, shapes=shapes, threads=threads, store=folder / "store")
    network.save(out)
    return time.perf_counter() - began


def prepare(backend: str, model: str, folder: str, threads: int, samples: Sequence[Arrays]) -> str:
    """Write what a peer loads fastest, and return its path: the graph that ONNX Runtime has optimized, OpenVINO's own
    format, PyTorch's module (with its compiler's cache, which `samples` fill). Raises: MeasureError.
    """
    path = Path(folder) / f"{backend}.{'pt' if backend == COMPILED else 'onnx' if backend == SESSION else 'blob'}"
    try:
        if backend == SESSION:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(path)
            options.log_severity_level = 3
            onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        elif backend == OPENVINO:
            path.write_bytes(OpenVino(model, threads).export())
        else:
            import torch

            from benchmarks.torch_network import torch_network

            torch.save(torch_network(onnx.load(model)), path)
            answer = load(backend, str(path), threads)
            for sample in samples:
                answer(sample)
    except MeasureError:
        raise
    except Exception as error:  # of the peers, which may raise anything
        raise MeasureError(f"{backend} does not take the model: {' '.join(str(error).split())[:200]}") from error
    return str(path)


def steady(files: Mapping[str, str], inputs: Arrays, threads: int, passes: int) -> dict[str, float]:
    """Seconds of a call of each contender on one shape, interleaved."""
    return interleaved(
        {backend: partial(load(backend, path, threads), inputs) for backend, path in files.items()}, passes=passes
    )
