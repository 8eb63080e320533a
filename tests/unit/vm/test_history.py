"""Executables compiled with what was measured, and what is said of kernels that have no record."""

import logging
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import vm
from retune.compiler.core.errors import MachineError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.driver.network_build import build_network
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.frontend.network import load_network
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.logs.log import append_log
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tvm.graph_executor import GraphModule, cpu
from retune.compiler.vm.compiler import VMCompiler
from tests.support.trials import split_by_one

TARGET = Target.host()


def _tasks() -> tuple[SearchTask, ...]:
    return partition(optimize(load_network("mlp")), TARGET, hardware_of(TARGET, 1)).worth_tuning()[0]


def _compiled() -> VMCompiler:
    compiler = VMCompiler()
    compiler.lower("mlp", TARGET)
    compiler.codegen()
    return compiler


def test_records_serve_and_what_has_none_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tasks = _tasks()
    append_log(tmp_path / "log.json", [split_by_one(tasks[0])])
    with caplog.at_level(logging.WARNING), ApplyHistoryBest(tmp_path):
        compiler = _compiled()
    report = compiler.coverage
    served = {kernel.task_key: str(kernel.origin) for kernel in report.tunable}
    assert served[tasks[0].workload_key] == "record"
    assert {key for key, origin in served.items() if origin == "default"} == {
        kernel.task_key for kernel in report.fallbacks
    }
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ([f"mlp: {report.fallback_text()}"] if report.fallbacks else [])
    x = np.random.default_rng(0).random((1, 784), np.float32)
    plain = GraphModule(build_network("mlp", TARGET)["default"](cpu()))
    (name,) = plain.get_input_info()[0]
    plain.run(**{name: x})
    found = vm.VirtualMachine(compiler.get_exec(), cpu()).run(x)
    np.testing.assert_allclose(found, plain.get_output(0), rtol=1e-4, atol=1e-6)


def test_an_option_turns_records_off_or_asks_for_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    trials = [split_by_one(task) for task in _tasks()]
    with caplog.at_level(logging.WARNING):
        with ApplyHistoryBest(trials), PassContext(config={"use_auto_scheduler": False}):
            assert _compiled().coverage.fallbacks == _compiled().coverage.tunable
        assert not caplog.records
        with PassContext(config={"use_auto_scheduler": True}):
            report = _compiled().coverage
    assert [record.getMessage() for record in caplog.records] == [f"mlp: {report.fallback_text()}"]
    with pytest.raises(MachineError, match="nothing is compiled yet"):
        assert VMCompiler().coverage
