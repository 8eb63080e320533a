"""The page about a run: every section says what it should, of finished, unfinished and odd runs."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.kernel_row import KernelRow
from retune.storage.runs import RunLedger
from retune.tasks.report.charts import (
    UNTUNED,
    contender_color,
    latency_chart,
    network_chart,
    roofline_chart,
    task_chart,
)
from retune.tasks.report.facts import RunFacts, facts_of, find_run
from retune.tasks.report.page import SECTIONS, page
from tests.support.record_samples import failed, timed
from tests.support.stored_runs import HOSTILE, finished_run, interrupted_run

VOID = {"meta", "link", "br", "img", "rect", "circle", "polyline"}


class Reader(HTMLParser):
    """Checks that tags nest, and collects what could be fetched, anchors, and strings by section."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.text: dict[str, str] = {}
        self.section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [str(given[name]) for name in ("src", "href", "srcset", "data") if name in given]
        if tag == "section":
            self.section = str(given["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text[self.section] = self.text.get(self.section, "") + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def facts(home: Path, run_id: str) -> RunFacts:
    return facts_of(home, find_run(home, run_id))


@pytest.fixture
def finished(tmp_path: Path) -> RunFacts:
    return facts(tmp_path, finished_run(tmp_path))


def test_every_section_is_there_and_says_something(finished: RunFacts) -> None:
    reader = read(page(finished))
    assert set(reader.text) - {""} == set(SECTIONS)
    words = {
        "latency": ("untuned", "100 ms", "2.0e-07", "ONNX Runtime"),
        "progress": ("estimate", "seconds of tuning"),
        "tasks": ("conv2d_3x3_c64_8", "trial 7: RUN_TIMEOUT: no answer", "search: best 1.80 ms; confirmed: 1.80 ms"),
        "roofline": ("460 GFLOP/s on 2 threads", "memory, 70 GB/s"),
        "coverage": ("untested candidate", "too small for trials", HOSTILE, finished.kernels[0].origin_text),
        "run": (finished.info.run_id, "Retune 0.1, 20", "18 of 144 trials"),
    }
    for section, wanted in words.items():
        for word in wanted:
            assert word in reader.text[section], (section, word)


def test_the_page_needs_nothing_else(finished: RunFacts) -> None:
    text = page(finished)
    reader = read(text)
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert not {"script", "iframe", "img", "object"} & set(reader.tags)
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", text)


def test_what_people_named_is_shown_and_not_run(tmp_path: Path) -> None:
    text = page(facts(tmp_path, finished_run(tmp_path, tasks=1, network=HOSTILE)))
    reader = read(text)
    assert "script" not in reader.tags
    assert HOSTILE in reader.text[""]


def test_figures_add_up(finished: RunFacts) -> None:
    assert finished.trial_count == 9 * 16
    (lost,) = (kernel for kernel in finished.kernels if not kernel.used)
    assert (lost.origin_text, lost.weighted_seconds) == ("not used", 0.0)
    shares = [(one.origin, one.kernels, one.tunable, round(one.share_of_flops, 3)) for one in finished.coverage.shares]
    assert shares == [("record", 9, 9, 0.971), ("guess", 1, 1, 0.029), ("default", 1, 1, 0.0)]
    assert finished.failures == 18
    assert finished.progress[0] == (30.0, 0.05)
    slow = max((one for one in finished.kernels if math.isfinite(one.best_seconds)), key=lambda one: one.best_seconds)
    assert slow.gflops == pytest.approx(slow.flops / slow.best_seconds / 1e9)


def test_an_interrupted_run_has_a_page_too(tmp_path: Path) -> None:
    found = facts(tmp_path, interrupted_run(tmp_path))
    assert not found.info.is_complete
    reader = read(page(found))
    assert "has not come to its end" in reader.text["latency"]
    assert "trial 7" in reader.text["tasks"]
    assert "nothing serves yet" in reader.text["coverage"]


def test_a_run_without_records_has_one(tmp_path: Path) -> None:
    with RunLedger(tmp_path).open_or_resume("bare", {"network": "mlp"}) as run:
        reader = read(page(facts(tmp_path, run.run_id)))
    assert set(reader.text) - {""} == set(SECTIONS)
    assert "No program was measured" in reader.text["tasks"]


def test_a_report_of_an_older_version_is_read(tmp_path: Path) -> None:
    run_id = finished_run(tmp_path, tasks=2)
    path = tmp_path / "runs" / run_id / "report.json"
    told = json.loads(path.read_text())
    del told["limits"]
    for task in told["tasks"]:
        del task["moved_bytes"], task["origin"], task["tunable"]
        task |= {"guessed": False, "transferred": False}
    path.write_text(json.dumps(told))
    found = facts(tmp_path, run_id)
    assert [kernel.task_key for kernel in found.kernels][:2] == ["w0", "w1"]
    assert "did not measure" in read(page(found)).text["roofline"]


def test_a_report_of_a_newer_version_stays_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_id = finished_run(tmp_path, tasks=2)
    path = tmp_path / "runs" / run_id / "report.json"
    path.write_text(text := json.dumps({**json.loads(path.read_text()), "contention": None}))
    assert facts(tmp_path, run_id).report == {}
    assert path.read_text() == text
    assert "contention: Input should be a valid number" in caplog.text


def test_a_finished_run_without_its_report_is_not_called_unfinished(tmp_path: Path) -> None:
    run_id = finished_run(tmp_path, tasks=2)
    (tmp_path / "runs" / run_id / "report.json").unlink()
    text = page(facts(tmp_path, run_id))
    assert "its report.json is lost" in read(text).text["latency"]
    assert "its report is lost" in read(text).text["coverage"]
    assert "not come to its end" not in text


@pytest.mark.parametrize(("lines", "said"), [(0, "9 rounds are missing"), (8, "A round is missing"), (18, "")])
def test_lost_lines_of_rounds_are_counted_by_the_records(lines: int, said: str, tmp_path: Path) -> None:
    """The records of the sample are of the first nine of its eighteen rounds."""
    run_id = finished_run(tmp_path)
    path = tmp_path / "runs" / run_id / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    found = facts(tmp_path, run_id)
    assert found.trial_count == 9 * 16
    progress = read(page(found)).text["progress"]
    assert said in progress
    assert ("missing" in progress) == bool(said)


def test_charts_without_figures_are_empty() -> None:
    assert latency_chart({"tuned": math.inf}) == ""
    assert network_chart([(1.0, 0.1)], {}) == ""
    assert task_chart("x", [failed("x")]) == ""
    assert roofline_chart([], None) == ""


def test_contention_warning_precedes_every_figure(finished: RunFacts) -> None:
    assert "machine was busy" not in page(finished)
    text = page(replace(finished, contention=0.4))
    assert 0 < text.index("busy (contention 40%)") < text.index("latency, tuned")


def test_the_page_counts_default_schedules_as_the_command_line_does(finished: RunFacts) -> None:
    kernels = (*finished.kernels[:1], KernelRow("softmax", "ws"), KernelRow("copy", "wc", tunable=False))
    found = replace(finished, kernels=kernels)
    coverage, text = found.coverage, read(page(found)).text["coverage"]
    assert coverage.fallback_text() == "1 of 2 kernels worth tuning uses the default schedule: softmax"
    assert coverage.fallback_text() in text
    assert "the default schedule2150.0%" in text  # 2 kernels, 1 of them worth tuning, half of the calls


def test_the_line_of_the_untuned_program_is_the_one_that_the_search_timed() -> None:
    trials = [replace(timed("x", 4e-3), mutation="default"), timed("x", 1e-3)]
    assert UNTUNED in task_chart("x", trials)
    assert UNTUNED not in task_chart("x", trials[1:])


def test_every_contender_has_one_color_in_all_charts() -> None:
    levels = {"untuned": 0.2, "tuned": 0.1, "ONNX Runtime": 0.15}
    assert [contender_color(name) for name in levels] == ["var(--c1)", "var(--c0)", "var(--c2)"]
    for chart in (latency_chart(levels), network_chart([(0.0, 0.2), (1.0, 0.1)], levels)):
        assert all(chart.count(contender_color(name)) for name in levels)
        for name in levels:  # alone it has the same color
            alone = latency_chart({name: 0.1})
            assert re.findall(r"var\(--c\d\)", alone) == [contender_color(name)]


def test_the_latest_run_is_one_that_measured_something(tmp_path: Path) -> None:
    measured = interrupted_run(tmp_path)
    with RunLedger(tmp_path).open_or_resume("stopped at once", {"network": "mlp"}) as run:
        empty = run.run_id
    assert find_run(tmp_path, "latest").run_id == measured
    assert find_run(tmp_path, empty).run_id == empty


def test_runs_are_found_by_pieces_of_their_ids(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no run in"):
        find_run(tmp_path, "latest")
    first, second = finished_run(tmp_path, tasks=1), interrupted_run(tmp_path)
    assert find_run(tmp_path, "latest").run_id == second
    assert find_run(tmp_path, first).run_id == first
    assert find_run(tmp_path, second[-6:].lower()).run_id == second
    with pytest.raises(OptionError, match="2 runs"):
        find_run(tmp_path, first[:2])
    with pytest.raises(OptionError, match="NOBODY"):
        find_run(tmp_path, "NOBODY")
