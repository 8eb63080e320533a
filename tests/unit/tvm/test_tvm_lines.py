"""Lines of TVM scripts about records, graphs and sketches, as literal as the import line allows."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler import auto_scheduler, te
from retune.compiler.core.errors import DefinitionError, OptionError
from retune.compiler.tvm.auto_scheduler import ApplyHistoryBest, MeasureErrorNo, MeasureResult, SearchTask
from retune.compiler.tvm.auto_scheduler.workload_registry import make_workload_key
from tests.support.tvm_scripts import Simulated, matmul, zero_rank_reduce


def _task() -> SearchTask:
    auto_scheduler.register_workload("lines_of_scripts", matmul, override=True)
    return SearchTask(func="lines_of_scripts", args=(32, 32, 32), target="llvm")


def _tuned(task: SearchTask, log: Path) -> None:
    task.tune(
        auto_scheduler.TuningOptions(
            num_measure_trials=4, runner=Simulated(), measure_callbacks=[auto_scheduler.RecordToFile(log)], verbose=0
        )
    )


def test_python_code_is_printed_of_a_state_object_and_of_a_dispatched_state(tmp_path: Path) -> None:
    task, log = _task(), tmp_path / "matmul.json"
    _tuned(task, log)
    state, _ = task.apply_best(log, auto_scheduler.LayoutRewriteOption.NO_REWRITE)
    code = task.compute_dag.print_python_code_from_state(state)
    assert code == task.compute_dag.print_python_code_from_state(state.state_object)
    found = ApplyHistoryBest(log).query(task.target, task.workload_key, True, task.compute_dag)
    assert found is not None
    assert code == task.compute_dag.print_python_code_from_state(found)


def test_load_records_is_a_list_that_a_loop_may_append_to(tmp_path: Path) -> None:
    log = tmp_path / "matmul.json"
    _tuned(_task(), log)
    records = auto_scheduler.load_records(log)
    for inp, res in auto_scheduler.load_records(log):
        auto_scheduler.save_records(log, [inp], [res])
    assert len(auto_scheduler.load_records(log)) == 2 * len(records) > 0
    for inp, res in auto_scheduler.RecordReader(log):
        auto_scheduler.save_records(log, [inp], [res])
    assert len(auto_scheduler.load_records(log)) == 4 * len(records)
    assert records[0][0].task.workload_key == _task().workload_key


def test_save_records_takes_numbers_of_numpy_and_refuses_a_missing_result(tmp_path: Path) -> None:
    task, log = _task(), tmp_path / "matmul.json"
    inp = auto_scheduler.MeasureInput(task, task.compute_dag.get_init_state())
    res = MeasureResult((np.float32(0.5),), MeasureErrorNo.OK, "", np.float32(0.25), np.float64(1.0))  # type: ignore[arg-type]
    auto_scheduler.save_records(log, [inp], [res])
    [(_, found)] = auto_scheduler.load_records(log)
    assert (found.costs, found.all_cost) == ((0.5,), 0.25)
    with pytest.raises(OptionError, match="2 inputs and 1 results"):
        auto_scheduler.save_records(log, [inp, inp], [res])


def test_a_graph_is_made_by_the_name_of_tvms_parameter() -> None:
    tensors = matmul(4, 4, 4)
    assert auto_scheduler.ComputeDAG(compute_or_sche=tensors).tensors == tensors
    with pytest.warns(DeprecationWarning, match="compute_or_sche"):
        assert auto_scheduler.ComputeDAG(compute=tensors).tensors == tensors


def test_sketches_are_printed_for_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    sketches = auto_scheduler.SketchPolicy(_task()).generate_sketches(print_for_debug=True)
    assert capsys.readouterr().out.count("sketch ") == len(sketches)


def test_a_sketch_rule_that_gives_no_pairs_is_named() -> None:
    rule = auto_scheduler.PreloadCustomSketchRule

    def apply(policy: Any, state: auto_scheduler.State, stage: int) -> Any:  # noqa: ARG001
        return [state, -1]

    callback = rule(lambda *_: rule.APPLY_AND_SKIP_REST, apply, "mine")
    with pytest.raises(OptionError, match=r"mine: apply_func gives pairs \[state, stage\]"):
        auto_scheduler.SketchPolicy(_task(), init_search_callbacks=[callback]).generate_sketches()


def test_round_robin_begins_and_goes_on_in_the_order_of_the_tasks() -> None:
    rounds: list[int] = []

    class Note(auto_scheduler.TaskSchedulerCallback):
        def pre_tune(self, task_scheduler: Any, task_id: int) -> None:  # noqa: ARG002
            rounds.append(task_id)

    auto_scheduler.register_workload("lines_of_scripts", matmul, override=True)
    tasks = [SearchTask(func="lines_of_scripts", args=(n, n, n), target="llvm") for n in (8, 32, 16)]
    scheduler = auto_scheduler.TaskScheduler(tasks, strategy="round-robin", callbacks=[Note()])
    options = auto_scheduler.TuningOptions(12, num_measures_per_round=2, runner=Simulated(), verbose=0)
    scheduler.tune(options, search_policy="sketch.random")
    assert rounds == [0, 1, 2, 0, 1, 2]


def test_argmax_of_a_value_without_its_index_is_a_definition_error() -> None:
    a, k = te.placeholder((4, 4), name="a"), te.reduce_axis((0, 4), name="k")
    with pytest.raises(DefinitionError, match="argmax cannot reduce one value"):
        te.compute((4,), lambda i: te.argmax(a[i, k], k))


def test_the_registry_and_the_parameters_are_where_tvm_has_them() -> None:
    registry = auto_scheduler.workload_registry
    registry.register_workload("reduce_of_lines", zero_rank_reduce, override=True)
    assert registry.make_workload_key("reduce_of_lines", (8,)) == '["reduce_of_lines", 8]'
    assert make_workload_key("reduce_of_lines", (8,)) == '["reduce_of_lines", 8]'
    params = {**auto_scheduler.SketchPolicy.DEFAULT_PARAMS, "evolutionary_search_population": 64}
    assert auto_scheduler.SketchPolicy(_task(), params=params).generate_sketches()


def test_an_expression_is_converted_by_astype() -> None:
    a = te.placeholder((4,), "float32", name="a")
    assert str(a[0].astype("int32")) == str(te.cast("int32", a[0]))
    with pytest.raises(DefinitionError, match="'int99' is no element type"):
        a[0].astype("int99")


def test_the_current_context_is_an_attribute(tmp_path: Path) -> None:
    task, log = _task(), tmp_path / "matmul.json"
    _tuned(task, log)
    outer: auto_scheduler.DispatchContext = auto_scheduler.DispatchContext.current
    with auto_scheduler.ApplyHistoryBest(log) as best:
        assert auto_scheduler.DispatchContext.current is best
    assert auto_scheduler.DispatchContext.current is outer


@pytest.mark.parametrize(("verbose_eval", "lines"), [(25, 4), (50, 2), (0, 0)])
def test_a_training_logs_its_error_every_so_many_trees(
    verbose_eval: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    task = _task()
    states = auto_scheduler.SketchPolicy(task).sample_initial_population()[:8]
    model = auto_scheduler.XGBModel(verbose_eval, num_warmup_sample=4)
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states]
    results = [MeasureResult((0.001 * place,), MeasureErrorNo.OK, "", 0.1, 1.0) for place in range(1, len(states) + 1)]
    with caplog.at_level(logging.DEBUG, logger="retune.compiler.model"):
        model.update(inputs, results)
    found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("XGB iter:")]
    assert len(found) == lines
    assert all("tr-rmse: 0." in line for line in found)
