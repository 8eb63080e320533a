"""Several tasks are tuned together, with a machine that is simulated."""

import io
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import OptionError, StoreError
from retune.compiler.search import policy as search
from retune.compiler.search.mutation import NEIGHBOR
from retune.compiler.search.protocol import EmptyPolicy
from retune.compiler.tvm.auto_scheduler import (
    ComputeDAG,
    LogEstimatedLatency,
    PrintTableInfo,
    RecordToFile,
    SearchTask,
    SketchPolicy,
    TaskScheduler,
    TaskSchedulerCallback,
    TuningOptions,
    XGBModel,
    load_records,
    register_workload,
)
from tests.support.tvm_scripts import Simulated, matmul

SMALL = {"evolutionary_search_population": 64, "evolutionary_search_num_iters": 2}

register_workload("matmul", matmul, override=True)


def tasks(*sizes: int) -> list[SearchTask]:
    return [SearchTask(func="matmul", args=(size, size, size), target="llvm") for size in sizes]


def options(trials: int, log: Path | None = None, machine: Simulated | None = None, **more: Any) -> TuningOptions:
    callbacks = [] if log is None else [RecordToFile(log)]
    given = {"num_measures_per_round": 1, **more}
    return TuningOptions(trials, runner=machine or Simulated(), measure_callbacks=callbacks, **given)


def counts(log: Path, of: list[SearchTask]) -> list[int]:
    keys = [inp.task.workload_key for inp, _ in load_records(log)]
    return [keys.count(task.workload_key) for task in of]


@pytest.mark.parametrize("policy", ["sketch.random", "default"])
def test_round_robin_deals_evenly_and_goes_on_from_a_log(policy: str, tmp_path: Path) -> None:
    mine, log = tasks(2, 4, 8), tmp_path / "log.json"
    scheduler = TaskScheduler(mine, strategy="round-robin", callbacks=[])
    scheduler.tune(options(6, log), policy, SMALL)
    assert counts(log, mine) == [2, 2, 2]
    again = TaskScheduler(mine, strategy="round-robin", load_log_file=log, callbacks=[])
    again.tune(options(3, log), policy, SMALL)
    assert counts(log, mine) == [3, 3, 3]
    assert again.task_cts == [3, 3, 3]
    assert all(len(state.history) == 3 for state in again.states)  # all of it, round by round
    assert again.states[0].history[:2] == scheduler.states[0].history
    programs = [(inp.task.workload_key, inp.state.steps) for inp, _ in load_records(log)]
    assert len(set(programs)) == len(programs)


def test_a_custom_objective_decides_which_task_is_next(tmp_path: Path) -> None:
    mine, log = tasks(2, 4), tmp_path / "log.json"
    scheduler = TaskScheduler(mine, objective_func=lambda costs: 1e5 * costs[0], callbacks=[])
    scheduler.best_costs = [1e2, 1e-8]
    scheduler.tune(options(5, log), "sketch.random", SMALL)
    assert counts(log, mine) == [4, 1]
    assert scheduler.best_costs[1] == 1e-8
    assert scheduler.cur_score == pytest.approx(1e5 * scheduler.best_costs[0])


def test_records_of_another_target_are_not_taken_for_progress(tmp_path: Path) -> None:
    log, mine = tmp_path / "log.json", tasks(4)
    other = [SearchTask(func="matmul", args=(4, 4, 4), target="llvm -mcpu=znver3")]
    TaskScheduler(mine, callbacks=[]).tune(options(2, log), "sketch.random", SMALL)
    scheduler = TaskScheduler([*other, *mine], load_log_file=log, callbacks=[])
    scheduler._restore(log)
    assert scheduler.task_cts == [0, 2]


def test_exhausted_task_does_not_end_the_others() -> None:
    mine = tasks(4, 8)
    policies = [EmptyPolicy(mine[0]), SketchPolicy(mine[1], params=SMALL)]
    machine = Simulated()
    scheduler = TaskScheduler(mine, strategy="round-robin", callbacks=[])
    scheduler.tune(options(8, machine=machine), policies)
    assert scheduler.dead_tasks == {0}
    assert scheduler.ct == 8
    assert [key for key, _ in machine.seen].count(mine[0].workload_key) == 1


def test_a_task_none_of_whose_programs_is_valid_does_not_end_the_run() -> None:
    scheduler = TaskScheduler(tasks(4, 8), callbacks=[])
    scheduler.tune(options(6, machine=Simulated(failing=True)), "sketch.random", SMALL)
    assert scheduler.ct == 6
    assert scheduler.dead_ends()
    assert list(scheduler.best_costs) == [1e10, 1e10]


def test_same_seed_gives_the_same_run() -> None:
    def seen(seed: int) -> list[tuple[str, str]]:
        machine = Simulated()
        TaskScheduler(tasks(16, 32), callbacks=[], seed=seed).tune(options(6, machine=machine), "default", SMALL)
        return machine.seen

    assert seen(1) == seen(1) != seen(2)


def test_early_stopping_of_a_task_and_of_all() -> None:
    mine = tasks(8, 16)
    scheduler = TaskScheduler(mine, callbacks=[])
    scheduler.tune(options(200), "sketch.random", SMALL, per_task_early_stopping=3)
    assert scheduler.dead_tasks == {0, 1}
    assert scheduler.ct < 200
    scheduler = TaskScheduler(mine, callbacks=[])
    scheduler.tune(options(200, early_stopping=4), "sketch.random", SMALL)
    assert scheduler.ct < 200


def test_the_table_and_the_file_of_latencies(tmp_path: Path) -> None:
    shown, told = io.StringIO(), tmp_path / "runs" / "latency.tsv"
    told.parent.mkdir()
    told.write_text("what an earlier run wrote\n", encoding="utf-8")
    scheduler = TaskScheduler(tasks(8, 16), [1, 3], callbacks=[PrintTableInfo(shown), LogEstimatedLatency(told)])
    scheduler.tune(options(4), "sketch.random", SMALL)
    lines = told.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "what an earlier run wrote"
    assert len(lines) == 5
    assert lines[1].split("\t")[2:] == ["EstimatedLatency(ms)", "N/A", "Trials", "1"]
    assert lines[-1].endswith(f"\t{scheduler.cur_score * 1e3:.3f}\tTrials\t4")
    tables = shown.getvalue()
    assert '["matmul", 16, 16, 16]' in tables
    assert "Estimated total latency: -" in tables


@pytest.mark.parametrize(("trials_at", "tables"), [((0, 1, 2, 63), 1), ((0, 64, 128), 3), ((0, 40, 80, 0), 3)])
def test_the_table_of_tasks_is_printed_every_64_trials(trials_at: tuple[int, ...], tables: int) -> None:
    shown = io.StringIO()
    callback, scheduler = PrintTableInfo(shown), TaskScheduler(tasks(8, 16))
    for scheduler.ct in trials_at:
        callback.pre_tune(scheduler, 0)
    assert shown.getvalue().count("Task Description") == tables
    assert shown.getvalue().count("Next ID: 0\n") == len(trials_at)


def test_another_call_of_tune_measures_nothing_again(tmp_path: Path) -> None:
    mine, machine, log = tasks(16, 32), Simulated(), tmp_path / "log.json"
    scheduler = TaskScheduler(mine, strategy="round-robin", callbacks=[], load_log_file=log)
    scheduler.tune(options(4, log, machine), "default", SMALL)
    model = scheduler.policies[0].program_cost_model
    scheduler.tune(options(4, log, machine), "default", SMALL)
    assert scheduler.policies[0].program_cost_model is model
    scheduler.tune(options(4, None, machine), "sketch.random", SMALL)
    assert scheduler.policies[0].program_cost_model is not model
    assert len(machine.seen) == len(set(machine.seen)) == 12
    assert scheduler.task_cts == [6, 6]


def test_a_task_that_had_ended_goes_on_where_patience_is_longer() -> None:
    scheduler = TaskScheduler(tasks(8), callbacks=[])
    scheduler.tune(options(60), "sketch.random", SMALL, per_task_early_stopping=1)
    assert scheduler.dead_tasks == {0}
    before = scheduler.task_cts[0]
    scheduler.tune(options(2), "sketch.random", SMALL, per_task_early_stopping=10_000)
    assert scheduler.task_cts == [before + 2]


def test_the_end_of_the_budget_goes_to_neighbors_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, spent, moves = TaskScheduler(tasks(16, 64), callbacks=[]), [], []
    asking = search.SketchPolicy.ask

    def ask(policy: Any, count: int, round_index: int, share: float = 0.0) -> Any:
        found = asking(policy, count, round_index, share)
        spent.append(share)
        moves.append({one.mutation for one in found})
        return found

    monkeypatch.setattr(search.SketchPolicy, "ask", ask)
    scheduler.tune(options(32, num_measures_per_round=4), "default", SMALL)
    assert spent == [number / 8 for number in range(8)]
    assert not any(NEIGHBOR in each for each in moves[:6])
    assert all(NEIGHBOR in each for each in moves[6:])


def test_tasks_of_one_structure_share_their_best_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [ComputeDAG(matmul(size, size, size)) for size in (32, 64)]
    mine = [SearchTask(compute_dag=graph, target="llvm") for graph in graphs]
    heard: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        search.SketchPolicy, "warm_start", lambda policy, texts: heard.append((policy.task.workload_key, list(texts)))
    )
    machine = Simulated()
    TaskScheduler(mine, strategy="round-robin", callbacks=[]).tune(options(6, machine=machine), "sketch.random", SMALL)
    assert [len(texts) for _, texts in heard] == [0, 1, 1, 2, 2, 3]
    for key, texts in heard:
        assert {(other, text) for other, text in machine.seen if text in texts and other != key} or not texts
        assert key not in {other for other, text in machine.seen if text in texts}


def test_callbacks_are_called_every_round() -> None:
    heard: list[tuple[str, int, int]] = []

    class Listening(TaskSchedulerCallback):
        def pre_tune(self, task_scheduler: TaskScheduler, task_id: int) -> None:
            heard.append(("pre", task_id, task_scheduler.ct))

        def post_tune(self, task_scheduler: TaskScheduler, task_id: int) -> None:
            heard.append(("post", task_id, task_scheduler.ct))

    TaskScheduler(tasks(4), callbacks=[Listening()]).tune(options(2), "sketch.random", SMALL)
    assert heard == [("pre", 0, 0), ("post", 0, 1), ("pre", 0, 1), ("post", 0, 2)]


def test_a_saved_model_is_where_a_run_begins(tmp_path: Path) -> None:
    log, saved = tmp_path / "log.json", tmp_path / "model"
    TaskScheduler(tasks(16), callbacks=[]).tune(options(4, log), "sketch.random", SMALL)
    model = XGBModel(num_warmup_sample=2)
    model.update_from_file(log, n_lines=3)
    assert model.model.programs == 3
    model.save(saved)
    scheduler = TaskScheduler(tasks(16), load_model_file=saved, callbacks=[])
    found = scheduler._model("default", False)
    assert isinstance(found, XGBModel)
    assert found.model.programs == 3


@pytest.mark.parametrize(
    ("given", "tuned", "said"),
    [
        ({"tasks": []}, {}, "there must be tasks"),
        ({"task_weights": [1]}, {}, "a weight for each"),
        ({"task_weights": [1, -1]}, {}, "finite and not negative"),
        ({"task_weights": [1, float("nan")]}, {}, "finite and not negative"),
        ({"seed": -1}, {}, "a seed must be an integer"),
        ({"strategy": "greedy"}, {}, "strategy must be one of"),
        ({}, {"search_policy": "evolution"}, "search_policy must be"),
        ({}, {"search_policy": [None]}, "each task needs a policy"),
        ({}, {"tune_option": options(1)}, "num_measure_trials must be at least 2"),
    ],
)
def test_invalid_scheduler_options_are_refused(given: dict[str, Any], tuned: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TaskScheduler(**{"tasks": tasks(2, 4), "callbacks": [], **given}).tune(**{"tune_option": options(4), **tuned})


def test_unwritable_latency_log_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scheduler = TaskScheduler(tasks(8), callbacks=[LogEstimatedLatency(tmp_path / "file" / "log.tsv")])
    with pytest.raises(StoreError, match="latency log"):
        scheduler.tune(options(1), "sketch.random", SMALL)
