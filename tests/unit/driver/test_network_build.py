"""Networks compiled with what dispatch contexts know, and what is said of those kernels that have no record."""

import json
import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import zoo
from retune import compiler
from retune.compiler.core.errors import ModelFormatError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.driver.network_build import build_network
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.logs.log import append_log
from retune.compiler.runtime.kernel_row import CoverageReport, ProgramOrigin
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from tests.support.tiers import long_except
from tests.support.trials import split_by_one
from tests.support.zoo_sizes import SMALL

TARGET = Target.host()
WARNING = "retune.compiler.driver.compile_network"


def _tasks() -> tuple[SearchTask, ...]:
    cut = partition(optimize(load_network("mlp")), TARGET, hardware_of(TARGET, 1))
    return cut.worth_tuning()[0]


def test_kernels_without_a_record_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, *others = _tasks()
    append_log(tmp_path / "a.json", [split_by_one(first)])
    (tmp_path / "notes.txt").write_text("this is no log")
    with caplog.at_level(logging.WARNING), ApplyHistoryBest(tmp_path):
        library = build_network("mlp", TARGET)
    report = CoverageReport.of(library.network.coverage)
    assert [kernel.name for kernel in report.fallbacks] == [task.name for task in others]
    assert len(report.tunable) == 1 + len(others)
    (record,) = caplog.records
    assert record.getMessage() == f"mlp: {report.fallback_text()}"
    assert report.fallback_text().startswith(f"{len(others)} of {len(report.tunable)} kernels worth tuning")
    assert all(task.name in record.getMessage() for task in others)


def test_no_warning_if_every_kernel_has_a_record_or_none_was_wanted(caplog: pytest.LogCaptureFixture) -> None:
    trials = [split_by_one(task) for task in _tasks()]
    with caplog.at_level(logging.WARNING):
        with ApplyHistoryBest(trials):
            served = CoverageReport.of(build_network("mlp", TARGET).network.coverage)
        untuned = CoverageReport.of(build_network("mlp", TARGET).network.coverage)
    assert served.fallbacks == ()
    assert served.fallback_text() == ""
    assert untuned.fallbacks == untuned.tunable
    assert not caplog.records


def test_contexts_nest_and_an_option_turns_all_of_them_off(caplog: pytest.LogCaptureFixture) -> None:
    first, second, *_ = _tasks()

    def served() -> set[str]:
        coverage = build_network("mlp", TARGET).network.coverage
        return {kernel.task_key for kernel in coverage if kernel.origin == ProgramOrigin.CONTEXT}

    with ApplyHistoryBest([split_by_one(first)]):
        with ApplyHistoryBest([split_by_one(second)]):
            assert served() == {first.workload_key, second.workload_key}
            with PassContext(config={"use_auto_scheduler": False}):
                assert served() == set()
        assert served() == {first.workload_key}
    caplog.clear()
    with PassContext(config={"use_auto_scheduler": True}):
        assert served() == set()
    (record,) = caplog.records
    assert f"{len(_tasks())} of {len(_tasks())} kernels" in record.getMessage()


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", long_except(["mlp", "dcgan"], ["mlp", "resnet18", "dcgan"]))
def test_optimized_and_imported_graphs_compute_the_same(name: str, level: int) -> None:
    model = zoo.build(name, **SMALL[name])
    with PassContext(level):
        library = compiler.build_network(model, "llvm")
    module = GraphModule(library["default"](cpu()))
    shapes, dtypes = module.get_input_info()
    rng = np.random.default_rng(0)
    inputs = {each: rng.random(shape).astype(dtypes[each]) for each, shape in shapes.items()}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, inputs)
    module.run(**inputs)
    found = module.get_output(0)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_parameters_become_constants() -> None:
    node = onnx.helper.make_node("Add", ["x", "b"], ["y"])
    value = onnx.helper.make_tensor_value_info
    entries = [value(name, onnx.TensorProto.FLOAT, (3,)) for name in ("x", "b")]
    graph = onnx.helper.make_graph([node], "net", entries, [value("y", onnx.TensorProto.FLOAT, (3,))])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    library = build_network(model, params={"b": np.array([1, 2, 3], np.float32)})
    module = GraphModule(library["default"](cpu()))
    assert list(module.get_input_info()[0]) == ["x"]
    module.run(x=np.ones(3, np.float32))
    np.testing.assert_array_equal(module.get_output(0), [2, 3, 4])
    with pytest.raises(ModelFormatError, match=r"the value of input 'b' is float32\[4\]; the model says float\[3\]"):
        build_network(model, params={"b": np.zeros(4, np.float32)})
    assert json.loads(library.get_graph_json())["arg_nodes"]
