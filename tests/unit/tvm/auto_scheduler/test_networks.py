"""Tasks of networks, and networks compiled with the records of a script."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.errors import ModelFormatError, OptionError
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend import zoo
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Value
from retune.compiler.graph.pipeline import optimize
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.primitives import split
from retune.compiler.schedule.state import State as Immutable
from retune.compiler.schedule.state import replay
from retune.compiler.tvm.auto_scheduler import (
    ApplyHistoryBest,
    HardwareParams,
    LayoutRewriteOption,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    State,
    create_task,
    extract_tasks,
    is_auto_scheduler_enabled,
    register_workload,
)
from tests.support.tvm_scripts import matmul


def test_the_tasks_of_a_network_in_any_of_its_forms() -> None:
    tasks, weights = extract_tasks("mlp", None, "llvm", "llvm", HardwareParams(num_cores=3))
    assert len(tasks) == len(weights) > 0
    assert all(task.layout is LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED for task in tasks)
    assert {task.hardware_params.num_cores for task in tasks} == {3}
    assert str(tasks[0].target_host) == "llvm"
    keys = [task.workload_key for task in tasks]
    for form in (zoo.build("mlp"), load_network("mlp")):
        assert [task.workload_key for task in extract_tasks(form, {}, "llvm")[0]] == keys
    assert len(extract_tasks("mlp", None, "llvm", include_simple_tasks=True)[0]) >= len(tasks)


def _convolutions(*channels: int) -> Graph:
    """One 3 x 3 convolution behind the other; the numbers are their channels, from those of the input on."""
    builder = GraphBuilder("net", [Value("x", (1, channels[0], 8, 8))])
    x = "x"
    for taken, made in pairwise(channels):
        weight = builder.constant(np.random.default_rng(made).standard_normal((made, taken, 3, 3), dtype=np.float32))
        attrs: dict[str, Attribute] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        x = builder.emit("conv2d", [x, weight], {**attrs, "layout": "NCHW"})
    return builder.finish({"y": x})


def _moved() -> Graph:
    builder = GraphBuilder("net", [Value("x", (4, 6))])
    return builder.finish({"y": builder.emit("transpose", ["x"], {"perm": (1, 0)})})


@pytest.mark.parametrize(
    ("graph", "simple", "weights"),
    [
        (_convolutions(4, 8, 16), False, [1, 1]),
        (_convolutions(8, 8, 8), False, [2]),
        (_moved(), False, []),
        (_moved(), True, [1]),
    ],
    ids=["two", "alike", "no reuse", "no reuse, simple ones too"],
)
def test_cpu_networks_have_as_many_tasks_as_in_tvm(graph: Graph, simple: bool, weights: list[int]) -> None:
    tasks, found = extract_tasks(graph, None, "llvm", include_simple_tasks=simple)
    assert found == weights
    texts = {task.workload_key: str(task.compute_dag) for task in tasks}
    assert len(texts) == len(tasks), "a key has one graph"


def test_the_graphs_of_all_tasks_are_dumped_by_key(tmp_path: Path) -> None:
    log = tmp_path / "graphs.json"
    tasks, _ = extract_tasks("mlp", None, "llvm", include_simple_tasks=True, dump_workload_to_dag_log=log)
    assert json.loads(log.read_text()) == {task.workload_key: str(task.compute_dag) for task in tasks}
    with pytest.raises(OptionError, match="cannot write"):
        extract_tasks("mlp", None, "llvm", dump_workload_to_dag_log=tmp_path / "no" / "folder")


def test_tasks_of_a_graph_that_is_hardly_optimized() -> None:
    builder = GraphBuilder("net", [Value("x", (4, 6))])
    results = {name: builder.emit("softmax", ["x"], {"axis": 1}) for name in ("y", "z")}
    graph = builder.finish(results)
    assert [extract_tasks(graph, None, "llvm", opt_level=level)[1] for level in (3, 0)] == [[1], [2]]


def test_parameters_become_constants() -> None:
    graph = load_network("mlp")
    (value,) = graph.inputs
    with pytest.raises(ModelFormatError, match="no input weights"):
        extract_tasks(graph, {"weights": np.zeros(3)}, "llvm")
    with pytest.raises(ModelFormatError, match="which its parameter is not"):
        extract_tasks(graph, {value.name: np.zeros(3, np.float32)}, "llvm")
    assert extract_tasks(graph, {value.name: np.zeros(value.shape, np.float32)}, "llvm")[0] == []


def test_a_network_is_compiled_with_the_programs_of_a_context() -> None:
    tasks, _ = extract_tasks("mlp", None, "llvm", hardware_params=HardwareParams(num_cores=1))
    task = tasks[0]
    steps = split(Immutable.initial(task.dag), len(task.dag.ops) - 1, 0, [1])[0].steps
    state = replay(task.dag, steps)
    pair = MeasureInput(task, State(state)), MeasureResult((1e-6,), MeasureErrorNo.NO_ERROR, "", 0.1, 0)
    graph = optimize(load_network("mlp"))
    assert not is_auto_scheduler_enabled()
    with ApplyHistoryBest([pair]):
        assert is_auto_scheduler_enabled()
        network = compile_graph(graph, task.target)
    notes = {each.task_key: str(each.origin) for each in network.coverage}
    assert notes.pop(task.workload_key) == "context"
    assert set(notes.values()) == {"default"}
    assert not any(each.note for each in compile_graph(graph, task.target).coverage)
    assert default_steps(task.dag) != steps


def test_create_task_is_an_old_name() -> None:
    register_workload("matmul", matmul, override=True)
    with pytest.warns(DeprecationWarning, match="SearchTask"):
        task = create_task("matmul", (8, 8, 8), "llvm")
    assert task.workload_key == '["matmul", 8, 8, 8]'
