"""A network compiled with the fastest way to compute each layer, by what was measured."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnxruntime
import pytest

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.compile_network import compile_graph, fastest_alternatives
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.zoo import build
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Array
from retune.compiler.graph.partition.partition import Partition, partition
from retune.compiler.graph.partition.winograd import WINOGRAD
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial
from retune.compiler.measure.record import Measurement, MeasureStatus, TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.runtime.executor import CompiledNetwork, GraphExecutor
from retune.compiler.runtime.kernel_row import ProgramOrigin
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.tuning import default_program
from retune.compiler.tune.winners import Confirmation
from tests.support.cases import check_case
from tests.support.winograd_network import network

TARGET = Target.host()
OPTIONS = SearchOptions(population=16, generations=0, max_location_variants=1)
GRAPH = network(14)
PARTS = partition(GRAPH, TARGET, HardwareParams(num_cores=2), WINOGRAD)


@lru_cache
def guess(task: SearchTask) -> str:
    return SketchPolicy(task, RandomModel(0), OPTIONS).ask(1, 0)[0].steps


def known(parts: Partition, seconds: Mapping[str, float]) -> dict[str, TaskProgram]:
    """A guessed program for every way that `seconds` names by the beginning of its name."""
    found = {}
    for layer in parts.layers():
        for task in layer.tasks:
            kind = task.name.partition("_")[0]
            if kind in seconds:
                found[task.workload_key] = TaskProgram(task.workload_key, guess(task), seconds[kind], "record")
    return found


def outputs(compiled: CompiledNetwork, inputs: Mapping[str, Array]) -> list[Array]:
    executor = GraphExecutor(compiled, 2)
    for name, array in inputs.items():
        executor.set_input(name, array)
    executor.run()
    return [executor.get_output(index) for index in range(executor.get_num_outputs())]


@pytest.mark.parametrize(
    ("seconds", "kinds"),
    [
        ({}, {"conv2d"}),
        ({"conv2d": 1e-3}, {"conv2d"}),
        ({"conv2d": 1e-3, "winograd4": 2e-3, "winograd2": 3e-3}, {"conv2d"}),
        ({"conv2d": 2e-3, "winograd4": 1e-3, "winograd2": 3e-3}, {"winograd4"}),
        ({"conv2d": 2e-3, "winograd2": 1e-3}, {"winograd2"}),
        ({"winograd4": 1e-3}, {"winograd4"}),
        ({"winograd4": math.inf}, {"conv2d"}),
    ],
)
def test_the_fastest_way_serves_and_the_direct_one_when_nothing_is_known(
    seconds: dict[str, float], kinds: set[str]
) -> None:
    chosen = fastest_alternatives(PARTS, known(PARTS, seconds))
    assert {one.task.name.partition("_")[0] for one in chosen} == kinds - {"conv2d"}
    assert len(chosen) == (0 if kinds == {"conv2d"} else 2)


def test_a_network_with_alternatives_is_consistent_and_right() -> None:
    graph = GRAPH
    best = known(PARTS, {"conv2d": 2e-3, "winograd4": 1e-3, "winograd2": 3e-3})
    compiled = compile_graph(graph, TARGET, best, threads=2, cut=PARTS)
    assert {call.kernel.partition("_")[0] for call in compiled.plan.calls} == {"winograd4"}
    assert {entry.name for entry in compiled.coverage} == {kernel.name for kernel in compiled.kernels}
    assert {entry.task_key for entry in compiled.coverage} <= set(best)
    assert all(entry.record_id == "record" for entry in compiled.coverage)
    inputs = {"x": np.random.default_rng(0).standard_normal(graph.inputs[0].shape).astype(np.float32)}
    (found,), (wanted,) = outputs(compiled, inputs), evaluate(graph, inputs)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


def test_a_program_that_does_not_fit_makes_no_way_the_fastest() -> None:
    best = known(PARTS, {"conv2d": 2e-3, "winograd2": 1e-3})
    assert len(fastest_alternatives(PARTS, best)) == 2
    broken = {key: replace(one, steps="?") if one.seconds < 2e-3 else one for key, one in best.items()}
    assert fastest_alternatives(PARTS, broken) == ()


def test_a_way_that_is_predicted_to_be_much_faster_serves_unmeasured() -> None:
    large = partition(network(28, 128), TARGET, HardwareParams(num_cores=1, vector_unit_bytes=32), WINOGRAD)
    (chosen,) = {one.rewrite for one in fastest_alternatives(large, {})}
    assert chosen == WINOGRAD[0]
    assert all(one.speedup < 1.25 for one in PARTS.alternatives)  # few channels: the transforms are most of the work


def test_a_measured_program_goes_before_a_prediction() -> None:
    large = partition(network(28, 128), TARGET, HardwareParams(num_cores=1, vector_unit_bytes=32), WINOGRAD)
    for kind in ("conv2d", "winograd4"):
        assert fastest_alternatives(large, known(large, {kind: math.inf})) == ()


def test_the_way_that_would_serve_unmeasured_is_tried_first_and_its_default_schedule_may_win() -> None:
    large = partition(network(28, 128), TARGET, HardwareParams(num_cores=1, vector_unit_bytes=32), WINOGRAD)
    for layer in large.layers():
        first, *others = (task.name.partition("_")[0] for task in layer.tasks)
        assert (first, "conv2d" in others) == ("winograd4", True)
    found = []
    for place in range(2):
        best = {}
        for layer in large.layers():
            task = layer.tasks[place]
            best[task.workload_key] = Confirmation(task, (default_program(task),), (Measurement((1.0,)),)).program
        compiled = compile_graph(network(28, 128), TARGET, best, cut=large)
        assert {entry.origin for entry in compiled.coverage} == {ProgramOrigin.DEFAULT}
        found.append({call.kernel.partition("_")[0] for call in compiled.plan.calls})
    assert found == [{"winograd4"}, {large.layers()[0].tasks[1].name.partition("_")[0]}]


def test_records_of_a_dispatch_context_decide_too() -> None:
    trials = [
        LoggedTrial(LoggedTask(key, str(TARGET)), load_steps(one.steps), (one.seconds,), MeasureStatus.OK, 1.0, 1)
        for key, one in known(PARTS, {"conv2d": 2e-3, "winograd4": 1e-3}).items()
    ]
    with ApplyHistoryBest(trials):
        compiled = compile_graph(GRAPH, TARGET, threads=2)
        assert fastest_alternatives(partition(GRAPH, TARGET, HardwareParams(num_cores=2)), {}) == ()
    assert {call.kernel.partition("_")[0] for call in compiled.plan.calls} == {"winograd4"}
    assert fastest_alternatives(PARTS, {}) == ()


def test_a_program_of_a_dispatch_context_without_a_time_goes_before_a_prediction() -> None:
    large = partition(network(28, 128), TARGET, HardwareParams(num_cores=1, vector_unit_bytes=32), WINOGRAD)
    told, *others = (one.of for one in fastest_alternatives(large, {}))
    (task,) = (one for one in large.tasks if one.workload_key == told)
    with ApplyHistoryBest([]) as context:
        context.update(TARGET, told, replay(task.dag, default_steps_of(task)))
        assert [one.of for one in fastest_alternatives(large, {})] == others
    assert [one.of for one in fastest_alternatives(large, {})] == [told, *others]


def test_the_plan_is_that_of_its_case(update_golden: bool) -> None:
    task = PARTS.layers()[1].tasks[1]
    best = {task.workload_key: TaskProgram(task.workload_key, guess(task), 1.0, "record")}
    compiled = compile_graph(GRAPH, TARGET, best, threads=2, cut=PARTS)
    check_case("plans", "winograd", {"partition": str(PARTS), "plan": str(compiled.plan)}, update_golden)


@pytest.mark.long
def test_resnet18_in_transformed_space_equals_onnx_runtime() -> None:
    """Images of 24 x 24 in tiles of 4 x 4 results, those of 12 x 12 in tiles of 2 x 2, as they are offered."""
    model = build("resnet18", image=96, width=16, classes=10)
    graph = optimize(load_model(model))
    parts = partition(graph, TARGET, HardwareParams(num_cores=2), WINOGRAD)
    best = known(parts, {"winograd4": 1e-3, "winograd2": 2e-3})
    compiled = compile_graph(graph, TARGET, best, threads=2, cut=parts)
    kinds = [call.kernel.partition("_")[0] for call in compiled.plan.calls]
    assert (kinds.count("winograd4"), kinds.count("winograd2")) == (4, 3)
    image = np.random.default_rng(5).standard_normal(graph.inputs[0].shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {graph.inputs[0].name: image})
    (found,) = outputs(compiled, {graph.inputs[0].name: image})
    assert float(np.abs(found - wanted).max()) <= 1e-4 * float(np.abs(wanted).max())
