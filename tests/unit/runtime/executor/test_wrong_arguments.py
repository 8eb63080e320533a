"""Whatever a script passes to the names that run networks, it is taken or refused in one sentence."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler import debug_executor, graph_executor
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.host_memory import HostMemory
from retune.compiler.runtime.timing import TimeEvaluator
from retune.compiler.tvm.graph_executor import GraphModule, Library, cpu, create, save_param_dict
from tests.support.doubling_network import SHAPE, doubling_network
from tests.support.gpu_network import network_with_gpu
from tests.support.graphs import ARITHMETIC, one_call, weighted
from tests.support.wrong_arguments import refusals

BLOB = save_param_dict({"w": np.ones(4, "float32")})

GOOD: dict[str, Any] = {
    "graph_json_str": one_call().dumps(),
    "libmod": ARITHMETIC,
    "device": cpu(),
    "dev": None,
    "devices": cpu(),
    "dump_root": None,
    "module": None,
    "network": doubling_network(),
    "threads": 1,
    "kernels": None,
    "functions": None,
    "path": "nowhere",
    "key": 0,
    "value": np.ones(4, "float32"),
    "index": 0,
    "name": "x",
    "out": None,
    "out_ind": 0,
    "node": 0,
    "params_bytes": BLOB,
    "data": BLOB,
    "params": {"w": np.ones(4, "float32")},
    "collectors": None,
    "inputs": None,
    "func_name": "run",
    "function": "run",
    "evaluator": TimeEvaluator(),
    "number": 1,
    "repeat": 1,
    "min_repeat_ms": 0,
    "end_to_end": False,
    "sort_by_time": True,
    "limit_zero_time_iterations": 1,
    "cooldown_interval_ms": 0,
    "repeats_to_cooldown": 1,
    "cache_flush_bytes": 0,
    "f_preproc": "",
    "shape": SHAPE,
    "dtype": "float32",
    "kind": "cpu",
    "device_type": 1,
    "device_id": 0,
    "results": (1.0,),
    "copy": True,
    "graphs": False,
    "memories": (),
}
"""What fits a parameter of this name, of whichever function."""


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """All that a script can call, by what it is called in this test."""
    weights = create(weighted().dumps(), ARITHMETIC, cpu())
    library = Library(doubling_network())
    debugging = debug_executor.create(one_call().dumps(), ARITHMETIC, cpu())
    GOOD["module"], GOOD["other"] = weights.module, weights
    for name in graph_executor.__all__:
        if name != "BenchmarkResult":
            yield name, getattr(graph_executor, name)
    yield "debug_executor.create", debug_executor.create
    yield "executor", GraphExecutor
    yield "default", library["default"]
    network, gpus = network_with_gpu()
    GOOD["driver"] = gpus
    yield "CudaMemory", CudaMemory
    yield "HostMemory", HostMemory
    on_gpu = GraphExecutor(network, memories=[CudaMemory(gpus)])
    for one in (weights, weights.module, library, debugging, on_gpu, GraphModule(on_gpu)):
        GOOD["other"] = one if isinstance(one, GraphModule) else on_gpu
        for name, _ in inspect.getmembers(type(one), inspect.isfunction):
            if name == "__getitem__" or not name.startswith("_"):
                yield f"{type(one).__name__}.{name}", getattr(one, name)
    debugging.exit()


def test_wrong_arguments_are_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused, raw = refusals(_functions(), GOOD, _is_fine)
    assert raw == [], "\n".join(raw)
    assert refused > 1000


def _is_fine(error: Exception) -> bool:
    """What TVM's names raise where ours say why."""
    ours = "has no function" in str(error) or "debug_executor" in str(error)
    return isinstance(error, AttributeError | NotImplementedError) and ours
