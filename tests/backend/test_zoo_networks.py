"""Networks of the zoo at full size and as the search schedules them, against ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import zoo
from benchmarks.network_peers import seeded_inputs
from benchmarks.tuning import open_workers, tune
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.extract import ExtractedNetwork, extract_network
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from retune.compiler.tune.winners import untested_candidates
from tests.support.zoo_sizes import SMALL

TOLERANCE = 1e-4
THREADS = 2
SECONDS = 20.0
"""Tuning of each network: enough for a round or two of its largest tasks."""


def _answers(
    network: ExtractedNetwork, best: Mapping[str, TaskProgram], inputs: Mapping[str, NDArray[Any]]
) -> list[NDArray[Any]]:
    compiled = compile_graph(network.graph, network.target, best, threads=THREADS, cut=network.partition)
    executor = GraphExecutor(compiled, THREADS)
    executor.run(**inputs)
    return [executor.get_output(place) for place in range(executor.get_num_outputs())]


def _assert_equal(found: list[NDArray[Any]], wanted: list[NDArray[Any]]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max()


@pytest.mark.long
@pytest.mark.parametrize("name", ["dcgan", "gpt2_block"])
def test_small_networks_as_the_search_schedules_them(name: str, tmp_path: Path) -> None:
    model = zoo.build(name, **SMALL[name])
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    inputs = seeded_inputs(model)
    network = extract_network(str(path), str(Target.host()), THREADS)
    best = {task.workload_key: untested_candidates(task)[0] for task in network.tasks}
    wanted = OnnxRuntime(str(path), THREADS).run(inputs)
    _assert_equal(_answers(network, best, inputs), wanted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", zoo.NAMES)
def test_full_size_before_and_after_tuning(name: str) -> None:
    model = zoo.build(name)
    inputs = seeded_inputs(model)
    wanted = OnnxRuntime(model.SerializeToString(), THREADS).run(inputs)
    network = zoo.extract(name, str(Target.host()), THREADS)
    _assert_equal(_answers(network, {}, inputs), wanted)
    with open_workers(THREADS, network.constant_bytes) as workers:
        tuned = tune(network, workers, SECONDS)
    assert tuned.best
    _assert_equal(_answers(network, tuned.best, inputs), wanted)
