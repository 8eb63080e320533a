"""A report says everything, and says it the same in JSON and Markdown."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.record import FITTED_CANDIDATE, Measurement, MeasureStatus, TaskProgram
from retune.compiler.runtime.kernel_row import KernelRow, ProgramOrigin
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.report import TOLERANCE, Comparison, CompiledResult, Contender, Report
from retune.compiler.tune.tuning import TuningSummary, default_program
from retune.compiler.tune.winners import Confirmation, keep_defaults

COMPARISON = Comparison(
    "ONNX Runtime",
    (Contender("untuned", 0.3, 1e-6), Contender("tuned", 0.1, 2e-6), Contender("ONNX Runtime", 0.2, None)),
)
ROW = KernelRow("conv", "key", 2, 3e9, rounds=3, trials=64, default_seconds=0.1, best_seconds=0.01)
KERNELS = (
    KernelRow("conv", "key", 2, 3e9, origin=ProgramOrigin.RECORD, record_id="R2"),
    KernelRow("softmax", "softmax", 3, 1e9),
    KernelRow("copy", "copy", tunable=False),
)
REJECTED = TaskProgram("key", "[]", record_id="R1"), Measurement((), MeasureStatus.WRONG_ANSWER, "off by 3")


def winner_of(
    *programs: tuple[TaskProgram, Measurement], key: str = "key", index: int = -1, used: bool = True
) -> Confirmation:
    """These programs of a task with that key, and its default schedule, which takes 0.1 s."""
    x = te.placeholder((4,))
    dag = ComputeDAG([x, te.compute((4,), lambda i: x[i], "y")])
    task = SearchTask("conv", dag, Target("llvm"), HardwareParams(num_cores=1), key)
    every, results = zip(*programs, (default_program(task), Measurement((0.1,))), strict=True)
    return Confirmation(task, every, results, index, used)


WINNER = winner_of(REJECTED)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    request: dict[str, str | int | float | None] = {"network": "net", "threads": 2, "home": str(tmp_path)}
    spent = TuningSummary(64, 12.0, 3, (ROW,))
    folder = tmp_path / "runs" / "RUN"
    return Report.of(
        "RUN", request, spent, CompiledResult(tmp_path / "net.retune", (WINNER,), COMPARISON, KERNELS), folder
    )


def test_the_speedup_is_untuned_over_tuned(report: Report) -> None:
    assert report.speedup == pytest.approx(3.0)


def test_it_is_written_as_json_and_as_markdown(report: Report) -> None:
    folder = report.write()
    data = json.loads((folder / "report.json").read_text())
    assert data["is_right"] is True
    assert data["tasks"][0]["record_id"] == "R2"
    assert [share["origin"] for share in data["coverage"]["shares"]] == ["record", "default"]
    assert [kernel["origin"] for kernel in data["tasks"]] == ["record", "default", "default"]
    text = (folder / "report.md").read_text()
    words = ("3.00 times", "| 200 ms |", "default schedule", "tried; rejected R1: WRONG_ANSWER", "66.7% of the")
    for word in words:
        assert word in text


def test_its_title_says_what_the_network_runs_on(report: Report) -> None:
    of_gpu = {**report.request, "target": "cuda -arch=sm_90", "device": "H200, sm_90"}
    assert replace(report, request={**report.request, "target": ""}).title == "net on 2 threads"
    assert replace(report, request=of_gpu).markdown().startswith("# net on H200, sm_90\n")


def test_wrong_output_is_reported(report: Report) -> None:
    wrong = Comparison("untuned", (Contender("untuned", 0.3, None), Contender("tuned", 0.1, 2 * TOLERANCE)))
    broken = replace(report, comparison=wrong)
    assert not broken.is_right
    assert "NOT all are" in broken.markdown()


def test_an_infinite_time_is_null_in_json(report: Report) -> None:
    task, *_ = report.tasks
    data = json.loads(replace(report, tasks=(replace(task, best_seconds=math.inf),)).to_json())
    assert data["tasks"][0]["best_seconds"] is None
    assert "Infinity" not in json.dumps(data)


def test_the_program_of_a_similar_kernel_is_named_as_such(report: Report, tmp_path: Path) -> None:
    spent = TuningSummary(64, 12.0, 3, (ROW,))
    fitted = TaskProgram("key", "steps", mutation=FITTED_CANDIDATE)
    winner = winner_of((fitted, Measurement((0.01,))), index=0)
    again = Report.of("RUN", report.request, spent, CompiledResult(tmp_path, (winner,), COMPARISON), tmp_path)
    assert again.tasks[0].origin_text == "program of a similar kernel"


@pytest.mark.parametrize(("tried", "words"), [(1, "the fastest tried"), (0, "no time was left")])
def test_a_default_schedule_says_why_it_serves(tried: int, words: str, report: Report, tmp_path: Path) -> None:
    winner = winner_of(*[(TaskProgram("key", "[]"), Measurement((0.2,)))] * tried)
    spent = TuningSummary(64, 12.0, 3, (ROW,))
    again = Report.of("RUN", report.request, spent, CompiledResult(tmp_path, (winner,), COMPARISON), tmp_path)
    assert words in again.tasks[0].note


def test_contention_warning_is_at_the_top(report: Report, tmp_path: Path) -> None:
    assert "machine was busy" not in report.markdown()
    for spent, comparison in (
        (TuningSummary(64, 12.0, 3, (ROW,), 0.3), COMPARISON),
        (TuningSummary(64, 12.0, 3, (ROW,)), replace(COMPARISON, contention=0.3)),
    ):
        busy = Report.of("RUN", report.request, spent, CompiledResult(tmp_path, (WINNER,), comparison), tmp_path)
        _, _, warning, *_ = busy.markdown().splitlines()
        assert "busy (contention 30%)" in warning
        assert "retune doctor" in warning


def test_kernels_that_take_most_of_the_time_come_first(report: Report) -> None:
    task, *_ = report.tasks
    hot, unused = replace(task, name="hot", weight=9), replace(task, name="unused", weight=99, used=False)
    assert [name for name, *_ in replace(report, tasks=(unused, task, hot)).kernel_table()] == ["hot", "conv", "unused"]


def test_unmeasured_alternative_is_not_called_slower(report: Report, tmp_path: Path) -> None:
    unmeasured = replace(ROW, name="winograd4_conv", task_key="third", trials=0, best_seconds=math.inf)
    spent = TuningSummary(64, 12.0, 3, (ROW, unmeasured))
    made = Report.of("RUN", report.request, spent, CompiledResult(tmp_path, (WINNER,), COMPARISON), tmp_path)
    assert made.tasks[1].note == "not measured; another way to compute it is used"


def test_rejected_alternative_is_reported(report: Report, tmp_path: Path) -> None:
    row = replace(ROW, layer="layer 0")
    lost = replace(row, name="winograd2_conv", task_key="other", stop_reason="conv computes the same faster")
    timed = replace(row, name="winograd4_conv", task_key="third")
    spent = TuningSummary(64, 12.0, 3, (row, lost, timed))
    request: dict[str, str | int | float | None] = {"network": "net", "threads": 2, "home": str(tmp_path)}
    behind = winner_of(key="third", used=False)
    report = Report.of("RUN", request, spent, CompiledResult(tmp_path, (WINNER, behind), COMPARISON), tmp_path)
    assert [task.used for task in report.tasks] == [True, False, False]
    assert "not used (conv computes the same faster)" in report.markdown()
    assert report.tasks[2].origin_text == "not used"


def test_the_way_to_compute_a_layer_that_is_used_is_named(report: Report, tmp_path: Path) -> None:
    """Not every way that lost was timed again, and none lost to the default schedule of its own."""
    rows = [replace(ROW, name=name, task_key=name, layer="layer 1") for name in ("conv", "winograd2", "winograd4")]
    rows[2] = replace(rows[2], trials=0, best_seconds=math.inf)
    used, behind = winner_of(key="conv"), winner_of(key="winograd2", used=False)
    compiled = CompiledResult(tmp_path, (used, behind), COMPARISON)
    made = Report.of("RUN", report.request, TuningSummary(64, 12.0, 3, tuple(rows)), compiled, tmp_path)
    assert [task.note for task in made.tasks[1:]] == ["conv computes the same faster", "not measured; conv is used"]


def test_defaults_that_are_kept_are_what_the_report_tells() -> None:
    comparison = Comparison("untuned", (Contender("untuned", 0.1, 0.0), Contender("tuned", 0.2, 0.0)))
    assert comparison.keeps_defaults
    assert comparison.of_defaults().seconds("tuned") == 0.1
    assert "200 ms" in comparison.of_defaults().note
    wrong = replace(comparison, contenders=(comparison.contenders[0], Contender("tuned", 0.2, 1.0)))
    assert not wrong.keeps_defaults, "a wrong network is told of, not hidden"
    lost = winner_of((TaskProgram("winograd", "[]"), Measurement((0.2,))), key="winograd", index=0)
    tasks = [winner_of(key=key).task for key in ("key", "winograd", "third", "fourth")]
    kept = {row.task.workload_key: row for row in keep_defaults([WINNER, lost], tasks, {"key", "third"})}
    assert {key: (one.used, one.is_default) for key, one in kept.items()} == {
        "key": (True, True),
        "winograd": (False, True),
        "third": (True, True),
    }
    assert kept["key"].seconds == WINNER.default_seconds
    assert math.isinf(kept["third"].seconds)


def test_records_are_where_the_store_is() -> None:
    spent = TuningSummary(0, 0.0, 0, ())
    for request, records in (
        ({"home": "/state", "store": ""}, "/state/records"),
        ({"home": "/state", "store": "s3://bucket/folder"}, "s3://bucket/folder/records"),
    ):
        made = Report.of("RUN", request, spent, CompiledResult(Path("net.retune"), (), COMPARISON), Path("runs/RUN"))
        assert made.records == records


def test_that_of_an_operator_has_its_one_kernel_and_no_network(report: Report, tmp_path: Path) -> None:
    winner = winner_of((TaskProgram("key", "[]", 0.03, "R2"), Measurement((0.02,))), REJECTED, index=0)
    spent = TuningSummary(64, 12.0, 3, (ROW,))
    made = Report.of_operator("RUN", report.request, spent, winner, tmp_path)
    assert (made.default_seconds, made.best_seconds) == (0.1, 0.02)
    assert made.speedup == pytest.approx(5.0)
    assert made.summary() == {
        "trials": 64,
        "elapsed": 12.0,
        "untuned_seconds": 0.1,
        "tuned_seconds": 0.02,
        "record": "R2",
    }
    assert made.files == (tmp_path / "report.json", tmp_path / "report.md")
    text = made.markdown()
    assert "made the operator 5.00 times as fast" in text
    assert "| record R2 (rejected R1: WRONG_ANSWER: off by 3) |" in text
    assert "network" not in text
    (kernel,) = json.loads(made.to_json())["tasks"]
    assert kernel["record_id"] == "R2"
