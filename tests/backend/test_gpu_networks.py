"""Networks on a GPU that is not there: untuned and as the search draws programs, executed thread by thread, against
ONNX Runtime, the CPU, and ONNX's own tests of operators.
"""

import unittest
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest

from benchmarks import zoo
from benchmarks.network_peers import seeded_inputs
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.gpu_network import compiled_for_gpu, run_on_gpu
from tests.support.onnx_backend import CATEGORIES, recorded
from tests.support.quantized_models import FORMS, MODELS, inputs, quantized
from tests.support.zoo_sizes import SMALL

Array = NDArray[Any]
GPU = Target("cuda")
TENSOR_CORES = Target("cuda -arch=sm_80 -math=tf32")
TOLERANCE = {GPU: 1e-4, TENSOR_CORES: 3e-2}
QUICK = ("bert_base", "gpt2_block", "mlp")
SIZES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in zoo.NAMES]


def drawn(graph: Graph, target: Target, seed: int) -> dict[str, TaskProgram]:
    """For every kernel a program that the search draws, if it has any."""
    rng = np.random.default_rng(seed)
    found: dict[str, TaskProgram] = {}
    for task in partition(graph, target, hardware_of(target, 1)).tasks:
        spaces = build_spaces(task, SearchOptions())
        for place in rng.permutation(len(spaces)):
            space = spaces[place]
            rows = [row for _, group in space.groups(space.sample(rng, 16)) for row in group.rows[space.legal(group)]]
            if rows:
                text = dump_steps(space.steps(rows[rng.integers(len(rows))]))
                found[task.workload_key] = TaskProgram(task.workload_key, text)
                break
    return found


def assert_right(name: str, target: Target, seed: int | None) -> None:
    """A network of the zoo computes what ONNX Runtime does, untuned or, with a `seed`, as the search draws programs."""
    model = zoo.build(name, **SMALL[name])
    given = seeded_inputs(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    graph = optimize(load_model(model))
    network, driver = compiled_for_gpu(graph, target, None if seed is None else drawn(graph, target, seed))
    assert {call.device for call in network.plan.calls} == {1}
    for ours, theirs in zip(run_on_gpu(network, driver, given), session.run(None, dict(given)), strict=True):
        assert ours.shape == np.shape(theirs)
        assert np.abs(ours - theirs).max() <= TOLERANCE[target] * np.abs(theirs).max()


@pytest.mark.parametrize("name", SIZES)
def test_untuned_networks_on_simulated_gpu_match_reference(name: str) -> None:
    assert_right(name, GPU, None)


def test_a_network_as_the_search_draws_programs() -> None:
    assert_right("gpt2_block", GPU, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", [GPU, TENSOR_CORES], ids=str)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_networks_as_the_search_draws_programs(name: str, target: Target) -> None:
    for seed in range(2):
        assert_right(name, target, seed)


@pytest.mark.parametrize("name", MODELS)
def test_quantized_networks_are_those_of_the_cpu_bit_by_bit(name: str, tmp_path: Path) -> None:
    graph = optimize(load_model(quantized(name, FORMS[0], tmp_path)))
    (x,) = inputs(MODELS[name][1], 1)
    plain = GraphExecutor(compile_graph(graph, Target.host()))
    plain.run(x=x)
    network, driver = compiled_for_gpu(graph, GPU)
    np.testing.assert_array_equal(run_on_gpu(network, driver, {"x": x})[0], plain.get_output(0))


class GpuModel(BackendRep):
    """A model of static shapes on the GPU that is not there, untuned or with programs that are drawn."""

    def __init__(self, model: onnx.ModelProto, seed: int | None) -> None:
        weights = {tensor.name for tensor in model.graph.initializer}
        self._names = [entry.name for entry in model.graph.input if entry.name not in weights]
        graph = optimize(load_model(model))
        self._read = {value.name for value in graph.inputs}
        best = None if seed is None else drawn(graph, GPU, seed)
        self._network, self._driver = compiled_for_gpu(graph, GPU, best)

    def run(self, inputs: Sequence[Array] | Mapping[str, Array], **_: Any) -> tuple[Array, ...]:
        """The outputs for arrays of the inputs."""
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(self._names, inputs, strict=True)
        named = {name: np.asarray(array) for name, array in pairs if name in self._read}
        return tuple(run_on_gpu(self._network, self._driver, named))


def failing(names: Sequence[str], seed: int | None) -> dict[str, str]:
    """Which of ONNX's tests fail on the GPU, and how."""

    class OnGpu(Backend):
        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> GpuModel:
            del device
            return GpuModel(model, seed)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device == "CPU"

    failed = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = BackendTest(OnGpu, __name__).test_cases
        cases = {
            name.removesuffix("_cpu"): groups[f"OnnxBackend{category}ModelTest"](name)
            for category in CATEGORIES
            for name in unittest.defaultTestLoader.getTestCaseNames(groups[f"OnnxBackend{category}ModelTest"])
        }
        for name in names:
            try:
                cases[name].debug()
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {error}"
    return failed


COMPILED = [name for name, outcome in recorded().items() if outcome == "compiled"]
"""ONNX's tests of static shapes."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [None, 0])
def test_every_operator_on_simulated_gpu_matches_reference(seed: int | None) -> None:
    assert failing(COMPILED, seed) == {}
