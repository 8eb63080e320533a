"""Operators whose elementwise tail reads several products are searched; a sketch rule that raises costs a sketch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import auto_scheduler
from retune.compiler.measure.record import DEFAULT_SCHEDULE, Measurement, MeasureStatus
from retune.compiler.model import RandomModel
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import load_steps
from retune.compiler.search import rules as sketch_rules
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.rules import CPU_RULES, SketchContext, Verdict
from retune.compiler.tune import tuning as driver
from retune.compiler.tune.report import Report
from retune.compiler.tune.tuning import default_program
from retune.compiler.tune.tuning_loop import Budget
from retune.compiler.tune.winners import Confirmation
from retune.flows.events import RoundDone
from tests.support.gpu_spaces import one_after_the_other
from tests.support.property.checks import checked
from tests.support.property.programs import inputs_of
from tests.support.several_products import CASES
from tests.support.tiers import long_rows
from tests.support.tvm_scripts import Simulated
from tests.support.tvm_scripts import matmul as tensors_of_matmul
from tests.support.workloads import gpu_task_of, matmul, task_of
from tests.unit.tune.test_tuning import RUN_INFO

SMALL = SearchOptions(population=64, generations=1)


@pytest.mark.parametrize(
    ("case", "target"),
    long_rows(
        [("gated MLP", "llvm"), ("masked product", "cuda")], [(case, at) for case in CASES for at in ("llvm", "cuda")]
    ),
)
def test_twelve_trials_of_an_operator_with_several_products_are_right(case: str, target: str) -> None:
    dag = CASES[case]()
    policy = SketchPolicy((gpu_task_of if target == "cuda" else task_of)(case, dag), RandomModel(0), SMALL)
    candidates = policy.ask(12, 0)
    assert len(candidates) == 12
    assert not policy.failed_rules
    values = inputs_of(dag, np.random.default_rng(0))
    for candidate in candidates:
        steps = load_steps(candidate.steps)
        checked(dag, one_after_the_other(steps) if target == "cuda" else steps, values, 2)


@dataclass(frozen=True)
class Broken:
    """A rule that raises at every stage that computes something."""

    where: str
    name: str = "broken"

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        if self.where == "judge" and state.stages[stage].is_compute:
            raise ZeroDivisionError("no\nluck")
        return Verdict.APPLY_AND_STOP if state.stages[stage].is_compute else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:  # noqa: ARG002
        raise KeyError(stage)


@pytest.mark.parametrize(("where", "text"), [("judge", "ZeroDivisionError: no luck"), ("expand", "KeyError: 2")])
def test_a_rule_that_raises_costs_a_sketch_and_is_named(
    where: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sketch_rules.RULES, "cpu", (Broken(where), *CPU_RULES))
    run = driver.begin([task_of("product", matmul(16, 16, 16))], [1], RUN_INFO, SMALL)
    candidates = run.ask(0, 4)
    assert len(candidates) == 4
    measured = [Measurement((1e-6,), MeasureStatus.OK, "", 0.1, 0.2)] * 4
    records = run.records_of(0, candidates, measured, 1.0, iter("abcd").__next__)
    run.tell(0, records)
    row = run.row(0)
    assert row.failed_rules[0] == f"sketch rule broken fails at C: {text}"
    assert row.failed_rules[0] in str(RoundDone.of(run, 0, records, Budget(8, None)))
    task = run.tasks[0].task
    winner = Confirmation(task, (candidates[1], default_program(task)), (Measurement((2.0,)), Measurement((1.0,))))
    request: dict[str, str | int | float | None] = {"network": "net", "threads": 2, "home": "."}
    assert row.failed_rules[0] in Report.of_operator("RUN", request, run.summary(), winner, tmp_path).markdown()


def test_without_any_sketch_the_default_schedule_is_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sketch_rules.RULES, "cpu", (Broken("expand"),))
    run = driver.begin([task_of("product", matmul(8, 8, 8))], [1], RUN_INFO, SMALL)
    (only,) = run.ask(0, 4)
    assert only.mutation == DEFAULT_SCHEDULE
    task = auto_scheduler.SearchTask(compute_dag=auto_scheduler.ComputeDAG(tensors_of_matmul(8, 8, 8)), target="llvm")
    machine = Simulated()
    task.tune(auto_scheduler.TuningOptions(4, runner=machine, verbose=0), auto_scheduler.SketchPolicy(task))
    assert len(machine.seen) == 1
    assert "sketch rule broken fails at C" in caplog.text
