"""A task is tuned from its definition to a kernel, with a machine that is simulated."""

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler import auto_scheduler
from retune.compiler.core import config
from retune.compiler.core.errors import DeviceError, MeasureError, NoRecordError, NotYetError, OptionError
from retune.compiler.measure.logs.log import read_log
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.fleet import FleetRunner
from retune.compiler.runtime.cuda.driver import why_not
from retune.compiler.schedule.steps import Split
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.protocol import EmptyPolicy as AskAndTell
from retune.compiler.tune.worker_service import DeviceFacts
from retune.compiler.tvm.auto_scheduler import (
    EmptyPolicy,
    LocalRPCMeasureContext,
    MeasureInput,
    MeasureResult,
    PreloadCustomSketchRule,
    PreloadMeasuredStates,
    ProgramMeasurer,
    RandomModel,
    RecordToFile,
    RPCRunner,
    SearchTask,
    SketchPolicy,
    State,
    TuningOptions,
    XGBModel,
    load_records,
    register_workload,
    save_records,
)
from retune.compiler.tvm.auto_scheduler.remote import check_target
from retune.compiler.tvm.auto_scheduler.search_policy import DEFAULT_PARAMS
from tests.support.tvm_scripts import Simulated, check, matmul, zero_rank_compute, zero_rank_reduce

SMALL = {"evolutionary_search_population": 64, "evolutionary_search_num_iters": 2}

for _function in (matmul, zero_rank_compute, zero_rank_reduce):
    register_workload(_function.__name__, _function, override=True)
register_workload("matmul_auto_scheduler_test_rename_1", matmul, override=True)


class Checking:
    """A callback that looks at what it is given."""

    calls = 0

    def callback(self, policy: Any, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Only measurements of one task come."""
        self.calls += 1
        assert hasattr(policy, "search_task")
        assert len(inputs) == len(results) > 0
        assert all(isinstance(inp, MeasureInput) and isinstance(inp.state, State) for inp in inputs)
        assert all(isinstance(result, MeasureResult) for result in results)


def tuned(task: SearchTask, policy: Any, log: Path, trials: int = 100, **options: Any) -> Checking:
    """Tune with a few trials a round into a log, and ensure that the best program is right."""
    checking = Checking()
    recording: list[Any] = [RecordToFile(log), checking]
    given = {"early_stopping": 1, "num_measures_per_round": 2, "runner": Simulated(), **options}
    task.tune(TuningOptions(trials, measure_callbacks=recording, **given), search_policy=policy)
    check(task, task.apply_best(log))
    return checking


@pytest.mark.parametrize("workload", [matmul, "matmul", "matmul_auto_scheduler_test_rename_1"])
def test_the_empty_policy_measures_the_program_without_steps(workload: Any, tmp_path: Path) -> None:
    task = SearchTask(func=workload, args=(64, 64, 64), target="llvm")
    log = tmp_path / "log.json"
    assert tuned(task, EmptyPolicy(task), log, trials=2).calls == 1
    assert [trial.steps for trial in read_log(log)] == [()]


@pytest.mark.parametrize("model", [RandomModel, XGBModel])
def test_sketches_are_tuned_with_a_random_or_a_trained_model(model: Any, tmp_path: Path) -> None:
    task, log = SearchTask(func="matmul", args=(64, 64, 64), target="llvm"), tmp_path / "log.json"
    policy = SketchPolicy(task, model(), SMALL, init_search_callbacks=[PreloadMeasuredStates(log)])
    assert tuned(task, policy, log).calls >= 2
    measured = len(list(load_records(log)))
    again = SketchPolicy(task, model(), SMALL, init_search_callbacks=[PreloadMeasuredStates(log)])
    machine = Simulated()
    task.tune(TuningOptions(4, None, 2, runner=machine, measure_callbacks=[RecordToFile(log)]), again)
    programs = [inp.state.steps for inp, _ in load_records(log)]
    assert len(programs) == measured + 4
    assert len(set(programs)) == len(programs)  # nothing is measured twice


def test_programs_for_a_gpu_are_searched_for_and_measured_where_there_is_one(tmp_path: Path) -> None:
    task = SearchTask(func="matmul", args=(128, 128, 128), target="cuda -arch=sm_90")
    policy = SketchPolicy(task, RandomModel(), SMALL)
    (first,) = policy.propose(1)
    assert "blockIdx.x" in str(first.state)
    if missing := why_not():
        with pytest.raises(DeviceError, match=re.escape(missing[:20])):
            task.tune(TuningOptions(2), policy)
        with LocalRPCMeasureContext() as context, pytest.raises(DeviceError, match=re.escape(missing[:20])):
            task.tune(TuningOptions(2, runner=context.runner), policy)
    log = tmp_path / "log.json"
    save_records(log, [first], [MeasureResult((1.0,), MeasureStatus.OK, "", 1.0, 0.0)])
    text = task.print_best(log, "cuda")
    assert text == task.print_best(log, "ptx")
    assert ".shared " in text
    assert "bar.sync" in text


@pytest.mark.parametrize("workload", [zero_rank_compute, zero_rank_reduce])
def test_results_of_rank_zero_are_tuned(workload: Any, tmp_path: Path) -> None:
    task = SearchTask(func=workload, args=(10,), target="llvm")
    tuned(task, SketchPolicy(task, RandomModel(), SMALL), tmp_path / "log.json")
    gpu = SearchTask(func=workload, args=(10,), target="cuda -arch=sm_90")
    assert SketchPolicy(gpu, RandomModel(), SMALL).propose(1)


def test_a_custom_sketch_rule_is_used(tmp_path: Path) -> None:
    """Written as scripts for TVM are."""
    seen = []

    def meet_condition(search_policy: Any, state: Any, stage_id: int) -> int:
        state = State(state, search_policy.search_task.compute_dag)
        is_product = state.stages[stage_id].op.name == "C"
        return PreloadCustomSketchRule.APPLY_AND_SKIP_REST if is_product else PreloadCustomSketchRule.PASS

    def apply(search_policy: Any, state: Any, stage_id: int) -> Iterable[Any]:
        seen.append(stage_id)
        unchanged = State(state, search_policy.search_task.compute_dag)
        split = unchanged.copy()
        split.split("C", split["C"].iters[0], [8])
        return [[unchanged.state_object, -1], [split, -1]]

    task = SearchTask(func="matmul", args=(64, 64, 64), target="llvm")
    rule = PreloadCustomSketchRule(meet_condition, apply)
    policy = SketchPolicy(task, XGBModel(), SMALL, init_search_callbacks=[rule])
    assert seen == [2]
    assert [state.steps for state in policy.generate_sketches()] == [(), (Split(2, 0, 64, (8,), True),)]
    tuned(task, policy, tmp_path / "log.json")


def test_the_programs_of_a_search_follow_from_its_seed() -> None:
    task = SearchTask(func="matmul", args=(64, 64, 64), target="llvm")

    def programs(seed: int | None) -> list[tuple[str, str]]:
        machine = Simulated()
        policy = SketchPolicy(task, XGBModel(num_warmup_sample=2), SMALL, seed)
        task.tune(TuningOptions(6, None, 2, runner=machine), policy)
        return machine.seen

    assert programs(0) == programs(0) == programs(None) != programs(7)


def test_without_trials_nothing_is_measured_and_one_trial_is_one(tmp_path: Path) -> None:
    task, machine = SearchTask(func="matmul", args=(32, 32, 32), target="llvm"), Simulated()
    policy = SketchPolicy(task, RandomModel(), SMALL)
    with pytest.warns(DeprecationWarning, match=r"task\.tune"):
        check(task, auto_scheduler.auto_schedule(task, policy, TuningOptions(runner=machine)))
    assert machine.seen == []
    task.tune(TuningOptions(1, runner=machine, measure_callbacks=[RecordToFile(tmp_path / "log.json")]), policy)
    assert len(machine.seen) == 1
    assert len(list(load_records(tmp_path / "log.json"))) == 1


def test_failures_keep_their_message_and_end_the_search(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    task, log = SearchTask(func="matmul", args=(32, 32, 32), target="llvm"), tmp_path / "log.json"
    policy = SketchPolicy(task, RandomModel(), SMALL)
    with ProgramMeasurer(runner=Simulated(failing=True), max_continuous_error=5) as measurer:
        _, results = policy.continue_search_one_round(2, measurer)
        assert policy.search(100, None, 4, measurer) is None
        assert measurer.trials == 6
    assert (results[0].costs, len(results[0].error_msg)) == ((), 2000)
    assert "6 programs in a row failed" in caplog.text
    fresh = SketchPolicy(task, RandomModel(), SMALL)
    recording = [RecordToFile(log)]
    task.tune(TuningOptions(2, runner=Simulated(failing=True), measure_callbacks=recording, verbose=0), fresh)
    assert "the untuned one serves" in caplog.text
    with pytest.raises(NoRecordError, match="no successful record") as caught:
        task.apply_best(log)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("costs", [(), (0.0,), (float("nan"),), (1e-3, 1e11)])
def test_success_without_a_time_is_logged_as_unknown(costs: tuple[float, ...], tmp_path: Path) -> None:
    class Claiming(Simulated):
        def measure(self, *given: Any) -> list[Measurement]:
            return [replace(one, costs=costs) for one in super().measure(*given)]

    class Silent(Simulated):
        def measure(self, *given: Any) -> list[Measurement]:
            return super().measure(*given)[1:]

    task, log = SearchTask(func="matmul", args=(32, 32, 32), target="llvm"), tmp_path / "log.json"
    recording = [RecordToFile(log)]
    task.tune(TuningOptions(2, runner=Claiming(), measure_callbacks=recording), SketchPolicy(task, params=SMALL))
    assert [trial.status for trial in read_log(log)] == [MeasureStatus.UNKNOWN] * 2
    with pytest.raises(MeasureError, match="answered for 1 of 2 programs"):
        task.tune(TuningOptions(2, runner=Silent()), SketchPolicy(task, params=SMALL))


def test_the_best_program_is_known_when_operations_cannot_be_counted(tmp_path: Path) -> None:
    task = SearchTask(func="zero_rank_compute", args=(10,), target="llvm")
    assert task.compute_dag.flop_ct <= 0
    policy = SketchPolicy(task, RandomModel(), SMALL)
    with ProgramMeasurer(runner=Simulated()) as measurer:
        assert policy.search(2, None, 2, measurer) is not None
    del tmp_path


def test_tuning_takes_any_policy_with_ask_and_tell(tmp_path: Path) -> None:
    task = SearchTask(func="matmul", args=(16, 16, 16), target="llvm")
    tuned(task, AskAndTell(task), tmp_path / "log.json")
    with pytest.raises(OptionError, match="methods ask and tell"):
        task.tune(TuningOptions(2, runner=Simulated()), search_policy="sketch")


def test_search_reports_trials_used(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SketchPolicy(SearchTask(func=matmul, args=(16, 16, 16), target="llvm"), RandomModel(), verbose=0)
    ask, seen = policy.policy.ask, []

    def watched(count: int, round_index: int, spent: float) -> Any:
        seen.append(spent)
        return ask(count, round_index, spent)  # type: ignore[call-arg]

    monkeypatch.setattr(policy.policy, "ask", watched)
    with ProgramMeasurer(runner=Simulated()) as measurer:
        policy.search(8, None, 2, measurer)
    assert seen == [0.0, 0.25, 0.5, 0.75]


class Narrow(auto_scheduler.PythonBasedModel):
    """A custom model: it likes narrow vectors, and counts what it is taught."""

    taught = 0

    def update(self, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
        """Count."""
        self.taught += len(inputs)
        assert all(result.error_no is MeasureStatus.OK for result in results)

    def predict(self, search_task: Any, states: Sequence[State]) -> Any:
        """Prefer programs with a short text."""
        assert search_task.workload_key
        return np.array([-len(str(state)) for state in states], dtype=float)


def test_custom_cost_model_receives_programs() -> None:
    task, model = SearchTask(func="matmul", args=(8, 8, 8), target="llvm"), Narrow()
    params = {"evolutionary_search_population": 16, "evolutionary_search_num_iters": 1}
    task.tune(TuningOptions(4, None, 2, runner=Simulated()), SketchPolicy(task, model, params))
    assert model.taught == 4


def test_layouts_are_applied_as_asked_and_no_rewrite_is_an_option(tmp_path: Path) -> None:
    task, log = SearchTask(func="matmul", args=(64, 64, 64), target="llvm"), tmp_path / "log.json"
    tuned(task, SketchPolicy(task, RandomModel(), SMALL), log)
    option = auto_scheduler.LayoutRewriteOption
    plain, args = task.apply_best(log, option.NO_REWRITE)
    assert [op.name for op in plain.stage_ops if "transform" in op.name] == []
    check(task, (plain, args))
    laid, _ = task.apply_best(log)
    (transform,) = [op for op in laid.stage_ops if "layout_transform" in op.name]
    expected, (_, packed, _) = task.apply_best(log, option.REWRITE_FOR_PRE_TRANSFORMED)
    assert all("layout_transform" not in op.name for op in expected.stage_ops)
    assert packed.shape == transform.shape


def test_print_best_gives_calls_that_make_the_program(tmp_path: Path) -> None:
    task, log = SearchTask(func="matmul", args=(64, 64, 64), target="llvm"), tmp_path / "log.json"
    tuned(task, SketchPolicy(task, RandomModel(), SMALL), log)
    scope: dict[str, Any] = {"dag": task.compute_dag}
    exec(task.print_best(log), scope)
    assert str(scope["state"]) == str(task.best_of(log))
    for mode, said in (("cuda", "has no stage 'ptx'"), ("c", "must be 'schedule' or 'ptx'")):
        with pytest.raises(OptionError, match=said):
            task.print_best(log, mode)


def test_a_wrong_task_input_is_an_error_before_the_build() -> None:
    task = SearchTask(func="matmul", args=(12, 12, 12), target="llvm", task_inputs={"A": np.zeros(5, np.float32)})
    machine = Simulated()
    with pytest.raises(OptionError, match=r"input A is float32\[12, 12\], the array given for it is float32\[5\]"):
        task.tune(TuningOptions(2, runner=machine))
    assert machine.seen == []


@pytest.mark.parametrize(
    ("target", "has", "words"),
    [
        ("cuda", "llvm -mcpu=znver5", "is for a GPU, and board is a CPU: .*'llvm -mcpu=znver5'"),
        ("llvm", "cuda -arch=sm_90", "is for a CPU, and board is a GPU: .*'cuda -arch=sm_90'"),
        ("cuda", "cuda -arch=sm_90", "is for this machine, and board is another one: .*'cuda -arch=sm_90'"),
        ("llvm", "llvm -mcpu=znver5", "is for this machine, and board is another one: .*'llvm -mcpu=znver5'"),
        ("cuda -arch=sm_90", "cuda -arch=sm_90", ""),
        ("llvm -mcpu=znver5", "llvm -mcpu=znver5", ""),
    ],
)
def test_a_device_of_a_fleet_times_what_is_for_it(target: str, has: str, words: str) -> None:
    task, facts = SearchTask(func="matmul", args=(12, 12, 12), target=target), DeviceFacts("there", has, 4, 1 << 20)
    with pytest.raises(OptionError, match=words) if words else nullcontext():
        check_target(task, facts, "board")


def test_missing_fleet_is_an_error_and_local_context_has_a_runner() -> None:
    with pytest.raises(OptionError, match=r"no scheduler of Dask answers at tcp://127\.0\.0\.1:9|distributed"):
        RPCRunner("board", "127.0.0.1", 9)
    with pytest.raises(OptionError, match="n_parallel"):
        RPCRunner("board", "127.0.0.1", 9, n_parallel=0)
    for remote in (lambda: RPCRunner("board", "127.0.0.1", 9, device=1), lambda: LocalRPCMeasureContext(device=1)):
        with pytest.raises(NotYetError, match="device 1"):
            remote()
    with pytest.raises(OptionError, match="n_parallel"):
        LocalRPCMeasureContext(n_parallel=0)
    with LocalRPCMeasureContext(repeat=2, n_parallel=3, timeout=7, cooldown_interval=0.1) as context:
        runner = context.runner
        assert isinstance(runner, FleetRunner)
        assert (runner.options.repeat, runner.options.min_repeat_ms, runner.in_flight) == (2, 0, 3)
        assert (runner.options.run_timeout_s, runner.options.cooldown_interval) == (7, 0.1)
        assert runner.options.threads == config.usable_cores()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_measure_trials": -1}, "num_measure_trials must be"),
        ({"num_measures_per_round": 0}, "num_measures_per_round must be"),
        ({"early_stopping": 0}, "early_stopping must be"),
        ({"builder": "remote"}, "builder must be"),
        ({"runner": "remote"}, "runner must be"),
        ({"measure_callbacks": [5]}, "needs a method called callback"),
        ({"measure_callbacks": RecordToFile("log.json")}, "measure_callbacks must be a list"),
    ],
)
def test_invalid_tuning_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TuningOptions(**options)


def test_the_parameters_of_the_policy_are_those_of_our_search() -> None:
    assert SearchOptions.of_params(DEFAULT_PARAMS) == SearchOptions()
    task = SearchTask(func="matmul", args=(8, 8, 8), target="llvm")
    with pytest.raises(OptionError, match="no parameter 'populations'"):
        SketchPolicy(task, params={"populations": 3})
    with pytest.raises(OptionError, match="methods update and predict"):
        SketchPolicy(task, program_cost_model="xgb")  # type: ignore[arg-type]
    wrong = {"eps_greedy": "a", "cpu_multi_level_tiling_structure": 5, "retry_search_one_round_on_empty": -1}
    for name, value in wrong.items():
        with pytest.raises(OptionError):
            SketchPolicy(task, params={name: value})
    for seed in (-1, 1.5, "7", True):
        for made in (lambda seed: SketchPolicy(task, seed=seed), lambda seed: XGBModel(seed=seed)):
            with pytest.raises(OptionError, match="a seed must be an integer"):
                made(seed)


def test_the_steps_of_a_search_can_be_called_alone(capsys: pytest.CaptureFixture[str]) -> None:
    task = SearchTask(func="matmul", args=(64, 64, 64), target="llvm")
    policy = SketchPolicy(task, RandomModel(), SMALL)
    assert all(not sketch.concrete for sketch in policy.generate_sketches(print_for_debug=True)[:1])
    assert "sketch 0 of" in capsys.readouterr().out
    population = policy.sample_initial_population()
    assert population
    assert all(state.concrete for state in population)
    assert len(policy.evolutionary_search(population, 5)) == 5
