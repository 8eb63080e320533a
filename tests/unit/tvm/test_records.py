"""Measurements of a script go into a log and come back."""

# mypy: disable-error-code="arg-type,union-attr"
# scripts see one kind of task; which one a record brings depends on how it is read

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LogFormatError, OptionError, UnknownWorkloadError
from retune.compiler.tvm.auto_scheduler import (
    ApplyHistoryBest,
    ApplyHistoryBestOrSample,
    ComputeDAG,
    DispatchContext,
    LayoutRewriteOption,
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    RecordReader,
    RecordToFile,
    SearchTask,
    State,
    Target,
    XGBModel,
    calc_workload_dis_factor,
    distill_record_file,
    dump_record_to_string,
    load_best_record,
    load_record_from_string,
    load_records,
    recover_measure_input,
    register_workload,
    save_records,
)
from retune.compiler.tvm.auto_scheduler.feature import (
    get_per_store_feature_names,
    get_per_store_features_from_measure_pairs,
    get_per_store_features_from_states,
)
from retune.compiler.tvm.auto_scheduler.measure_record import main
from tests.support.tvm_scripts import matmul

for _name in ("matmul", "matmul_of_records"):
    register_workload(_name, matmul, override=True)


def task(size: int = 32, **more: object) -> SearchTask:
    return SearchTask(func="matmul_of_records", args=(size, size, size), **{"target": "llvm", **more})


def measured(one: SearchTask, factor: int = 4, seconds: float | None = 1e-3) -> tuple[MeasureInput, MeasureResult]:
    state = one.compute_dag.get_init_state()
    state.split("C", "i", [factor])
    failed = MeasureErrorNo.RUN_TIMEOUT
    if seconds is None:
        return MeasureInput(one, state), MeasureResult((), failed, "it took too long", 10.5, 1700000000)
    return MeasureInput(one, state), MeasureResult((seconds, 2 * seconds), MeasureErrorNo.NO_ERROR, "", 0.5, 1700000000)


def logged(path: Path, *pairs: tuple[MeasureInput, MeasureResult]) -> Path:
    save_records(path, [inp for inp, _ in pairs], [result for _, result in pairs])
    return path


def test_a_record_restores_its_graph_and_loops(tmp_path: Path) -> None:
    inp, result = measured(task())
    log = logged(tmp_path / "deep" / "log.json", (inp, result))
    ((light, back),) = load_records(log)
    assert back == result
    assert light.task.compute_dag is None
    assert light.state.steps == inp.state.steps
    assert str(recover_measure_input(light).task.compute_dag) == str(task().compute_dag)
    whole = recover_measure_input(light, rebuild_state=True)
    assert str(whole.state) == str(task().compute_dag.infer_bound_from_state(inp.state))
    assert whole.state != task().compute_dag.get_init_state()
    assert dump_record_to_string(whole, back) == dump_record_to_string(inp, result)


def test_the_host_of_a_target_survives_a_record() -> None:
    inp, result = measured(task(target_host="llvm -mtriple=aarch64-linux-gnu"))
    light, _ = load_record_from_string(dump_record_to_string(inp, result))
    assert light.task.target_host == Target("llvm -mtriple=aarch64-linux-gnu")
    assert recover_measure_input(light).task.target_host == light.task.target_host


@pytest.mark.parametrize("names", [(), ("A",), ("B", "A")])
def test_all_of_a_task_survives_a_record(names: tuple[str, ...]) -> None:
    arrays = {name: np.zeros((24, 24), np.float32) for name in names}
    one = SearchTask(
        func="matmul_of_records",
        args=(24, 24, 24),
        target="llvm -mcpu=znver4",
        target_host="llvm",
        layout_rewrite_option=LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
        task_inputs=arrays,
    )
    assert one.task_input_names == names
    text = dump_record_to_string(*measured(one))
    light, _ = load_record_from_string(text)
    for back in (light.task, recover_measure_input(light).task):
        assert back.workload_key == one.workload_key
        assert (back.target, back.target_host) == (one.target, one.target_host)
        assert back.layout_rewrite_option is one.layout_rewrite_option
        assert back.task_input_names == names
        assert back.hardware_params is not None
        assert back.hardware_params.to_row() == one.hardware_params.to_row()


def test_a_task_of_an_older_log_is_read() -> None:
    line = json.loads(dump_record_to_string(*measured(task())))
    line["i"][0] = line["i"][0][:5]
    line["v"] = "v0.5"
    light, result = load_record_from_string(json.dumps(line))
    assert light.task.task_input_names == ()
    assert result.seconds == 1e-3
    assert recover_measure_input(light).task.workload_key == task().workload_key


def test_the_layout_option_of_the_task_is_written() -> None:
    for option in LayoutRewriteOption:
        text = dump_record_to_string(*measured(task(layout_rewrite_option=option)))
        assert json.loads(text)["i"][0][4] == option
    assert json.loads(dump_record_to_string(*measured(task())))["i"][0][4] == 1


def test_times_of_another_layout_option_count_only_when_there_are_no_others(tmp_path: Path) -> None:
    inserted = task()
    before = task(layout_rewrite_option=LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED)
    log = logged(tmp_path / "log.json", measured(before, 2, 1e-6), measured(inserted, 8, 1e-3))
    assert inserted.best_of(log)["C"].iters[1].extent == 8
    assert before.best_of(log)["C"].iters[1].extent == 2
    plain = task(layout_rewrite_option=LayoutRewriteOption.NO_REWRITE)
    assert plain.best_of(log)["C"].iters[1].extent == 2
    _, result = load_best_record(log, layout_rewrite_option=1)
    assert result is not None
    assert result.seconds == 1e-3


def test_the_best_record_and_what_fits_it(tmp_path: Path) -> None:
    failed, slow, fast, small = measured(task(), 2, None), measured(task(), 4, 2e-3), measured(task(), 8), task(16)
    log = logged(tmp_path / "log.json", failed, slow, fast, measured(small, 2, 1e-5))
    inp, result = load_best_record(log, task().workload_key)
    assert inp is not None
    assert inp.state.steps == fast[0].state.steps
    assert result == fast[1]
    assert load_best_record(log)[1] == measured(small, 2, 1e-5)[1]
    assert load_best_record(log, task(64).workload_key) == (None, None)
    assert load_best_record(log, task().workload_key, "cuda") == (None, None)
    compatible, _ = load_best_record(log, task().workload_key, "llvm", include_compatible=True)
    assert compatible is not None
    assert compatible.task.workload_key == small.workload_key
    assert calc_workload_dis_factor(task().workload_key, small.workload_key) == 8
    assert task(64).apply_best(log, include_compatible=True)[0].steps


def test_record_reader_skips_bad_lines_and_missing_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logged(tmp_path / "log.json", *(measured(task(), factor) for factor in (1, 2, 4)))
    inp, result = measured(task(), 8)
    RecordToFile(log).callback(None, [inp], [result])
    inputs, results = RecordReader(log).read_lines(max_lines=2, skip_lines=1)
    assert [inp.state.steps for inp in inputs] == [measured(task(), factor)[0].state.steps for factor in (2, 4)]
    assert len(results) == 2
    assert len(list(RecordReader(log))) == 4
    assert RecordReader(tmp_path / "none.json").read_lines() == ([], [])
    assert "there is no log" in caplog.text
    with pytest.raises(LogFormatError, match="cannot read the log"):
        list(load_records(tmp_path / "none.json"))
    for lines in ({"max_lines": -1}, {"skip_lines": -1}):
        with pytest.raises(OptionError, match="fewer than no lines"):
            RecordReader(log).read_lines(**lines)


def test_distilling_from_the_command_line(tmp_path: Path) -> None:
    log = logged(tmp_path / "log.json", measured(task(), 2, None), measured(task(), 4, 2e-3), measured(task(), 8))
    assert main(["--mode", "distill", "-i", str(log)]) == 0
    assert [inp.state.steps for inp, _ in load_records(f"{log}.best.json")] == [measured(task(), 8)[0].state.steps]
    assert distill_record_file(log, f"{log}.best.json") == 1
    with pytest.raises(SystemExit):
        main(["--mode", "distill", "-i", str(tmp_path / "none.json")])


def test_an_input_travels_to_another_process() -> None:
    inp, _ = measured(task())
    back = MeasureInput.deserialize(pickle.loads(pickle.dumps(inp.serialize())))
    assert back.task.workload_key == inp.task.workload_key
    whole = recover_measure_input(back, rebuild_state=True)
    assert str(whole.state) == str(task().compute_dag.infer_bound_from_state(inp.state))


def test_records_of_a_graph_without_a_function_are_recovered_too() -> None:
    x = te.placeholder((32,), name="X")
    one = SearchTask(compute_dag=ComputeDAG([x, te.compute((32,), lambda i: x[i] + 2.5, "C")]), target="llvm")
    light, result = load_record_from_string(dump_record_to_string(*measured(one)))
    assert str(recover_measure_input(light).task.compute_dag) == str(one.compute_dag)
    unknown = dump_record_to_string(light, result).replace(json.loads(one.workload_key)[0], "0" * 32)
    with pytest.raises(UnknownWorkloadError):
        recover_measure_input(load_record_from_string(unknown)[0])


def test_contexts_take_pairs_and_sample_what_no_record_knows(tmp_path: Path) -> None:
    one, log = task(), tmp_path / "log.json"
    with ApplyHistoryBest([measured(one, 8)]):
        found = DispatchContext.current.query(one.target, one.workload_key, True, one.dag)
        assert found is not None
        assert one.compute_dag.apply_steps_from_state(State(found), 0)[0]["C"].iters[1].extent == 8
    with pytest.raises(OptionError, match="a record is"):
        ApplyHistoryBest([5])
    logged(log, measured(task(16), 8))
    with ApplyHistoryBestOrSample(log):
        context = DispatchContext.current
        smaller = context.query(one.target, one.workload_key, True, one.dag)
        assert smaller is not None
        assert smaller.steps == measured(task(16), 8)[0].state.steps
        fresh = SearchTask(func="matmul", args=(20, 20, 20), target="llvm")
        assert context.query(one.target, fresh.workload_key, False, fresh.dag) is None
        sampled = context.query(one.target, fresh.workload_key, True, fresh.dag)
        assert sampled is not None
        assert context.query(one.target, fresh.workload_key, False, fresh.dag) == sampled


def test_a_model_learns_from_records_and_scores_statements(tmp_path: Path) -> None:
    one, saved = task(64), tmp_path / "model"
    pairs = [measured(one, factor, 1e-3 * factor) for factor in (1, 2, 4, 8, 16, 32)]
    model = XGBModel(num_warmup_sample=4, seed=1, model_file=saved)
    states = [State(inp.state) for inp, _ in pairs if isinstance(inp.state, State)]
    assert list(model.predict_stages(one, states)[6:]) == [0.0] * 6
    model.update([inp for inp, _ in pairs], [result for _, result in pairs])
    scores = model.predict(one, states)
    assert scores[0] == max(scores)
    flat = model.predict_stages(one, states)
    assert list(flat[:6]) == list(scores)
    assert list(flat[6::2]) == [1.0] * 6  # one statement each
    assert flat[7::2] == pytest.approx(scores)
    again = XGBModel()
    again.load(saved)
    assert list(again.predict(one, states)) == list(scores)
    with pytest.raises(OptionError, match="num_warmup_sample"):
        XGBModel(num_warmup_sample=-2)


def test_features_of_programs_and_their_labels() -> None:
    pairs = [measured(task(), 4, 1e-3), measured(task(), 8, 2e-3), measured(task(), 2, None)]
    features, labels = get_per_store_features_from_measure_pairs([inp for inp, _ in pairs], [res for _, res in pairs])
    assert list(labels) == [1.0, 0.5, 0.0]
    assert [block.shape for block in features] == [(1, len(get_per_store_feature_names()))] * 3
    state = pairs[0][0].state
    assert isinstance(state, State)
    assert np.array_equal(get_per_store_features_from_states([state], task())[0], features[0])


def test_the_names_of_special_inputs_keep_their_order() -> None:
    arrays = {name: np.zeros(3, np.float32) for name in ("index", "A", "mask")}
    named = SearchTask(func="matmul_of_records", args=(28, 28, 28), target="llvm", task_inputs=arrays)
    assert named.task_input_names == ("index", "A", "mask")
