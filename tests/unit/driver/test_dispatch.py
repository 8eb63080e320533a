"""Which program a workload is compiled with, by the contexts that are entered."""

import json
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retune.compiler import te
from retune.compiler.core.errors import LogFormatError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import (
    ApplyHistoryBest,
    DispatchContext,
    FallbackContext,
    Records,
    is_enabled,
    suppress_dispatch_warnings,
)
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial, append_log, to_record
from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Split

HERE = Target("llvm -mcpu=znver4")


def key(size: int) -> str:
    return json.dumps(["rows", size])


def dag(size: int) -> ComputeDAG:
    x = te.placeholder((size, 4), name="X")
    return ComputeDAG([x, te.compute((size, 4), lambda i, j: x[i, j] + 1.0, "Y")])


def trial(size: int, inner: int, seconds: float, target: str = str(HERE)) -> LoggedTrial:
    task = LoggedTask(key(size), target)
    return LoggedTrial(task, (Split(1, 0, size, (inner,), True),), (seconds,), MeasureStatus.OK, 1.0, 1)


def inner_of(state: State | None) -> int | None:
    if state is None:
        return None
    extent = state.stages[1].iters[1].extent
    assert isinstance(extent, int)
    return extent


def ask(size: int, target: Target = HERE) -> int | None:
    return inner_of(DispatchContext.current.query(target, key(size), True, dag(size)))


def test_the_best_of_this_target_comes_before_the_best_of_its_kind(tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    append_log(log, [trial(16, 2, 2.0), trial(16, 4, 1.0), trial(16, 8, 0.5, "llvm -mcpu=znver5")])
    with ApplyHistoryBest(str(log)):
        assert ask(16) == 4
        assert ask(16, Target("llvm -mcpu=skylake")) == 8
        assert ask(32) is None
    assert ask(16) is None
    with ApplyHistoryBest([log], n_lines=1):
        assert ask(16) == 2


def test_records_in_every_form(tmp_path: Path) -> None:
    log, other = tmp_path / "a.json", tmp_path / "b.jsonl"
    append_log(log, [trial(16, 2, 2.0)])
    append_log(other, [trial(16, 4, 1.0), trial(32, 8, 1.0)])
    (tmp_path / "c.txt").write_text("no log")
    (tmp_path / "d.json").mkdir()
    store = Kept([trial(16, 8, 0.5), trial(16, 2, 0.1, "llvm -mcpu=znver5"), trial(64, 4, 1.0)])
    asked: list[tuple[Records | None, tuple[int | None, ...]]] = [
        (None, (None, None, None)),
        ([], (None, None, None)),
        (tmp_path, (4, 8, None)),
        (str(tmp_path), (4, 8, None)),
        ([log, trial(64, 2, 1.0)], (2, None, 2)),
        (store, (8, None, 4)),
        (store.records, (8, None, 4)),
        ([tmp_path, *store.records], (8, 8, 4)),
    ]
    for records, wanted in asked:
        with ApplyHistoryBest(records):
            assert (ask(16), ask(32), ask(64)) == wanted, records
    (tmp_path / "d.json").rmdir()
    for file in (log, other):
        file.unlink()
    with pytest.raises(LogFormatError, match="has no log: no file there ends in"):
        ApplyHistoryBest(tmp_path)


def test_failures_are_no_best_program() -> None:
    failed = replace(trial(16, 2, 1.0), costs=(), status=MeasureStatus.RUN_TIMEOUT)
    with ApplyHistoryBest([failed]):
        assert ask(16) is None
        assert DispatchContext.current.expected_seconds(HERE, key(16)) == math.inf
    with ApplyHistoryBest([failed, trial(16, 4, 9.0)]):
        assert ask(16) == 4


class Kept:
    """A store of records in memory."""

    def __init__(self, trials: Sequence[LoggedTrial]) -> None:
        self.records = [to_record(each, "host") for each in trials]

    def tasks(self) -> list[dict[str, str]]:
        return [{"target": record.target} for record in self.records]

    def best_per_task(self, target: str | None = None) -> dict[str, MeasureRecord]:
        best: dict[str, MeasureRecord] = {}
        for record in sorted(self.records, key=lambda record: -record.seconds):
            if target in (None, record.target):
                best[record.task_key] = record
        return best


def test_inner_dispatch_context_wins_over_outer_ones() -> None:
    outer, inner = ApplyHistoryBest([trial(16, 4, 1.0)]), ApplyHistoryBest([trial(32, 8, 1.0)])
    with outer, inner:
        assert (ask(16), ask(32), ask(64)) == (4, 8, None)
        inner.update(HERE, key(16), State.initial(dag(16)).apply(Split(1, 0, 16, (2,), True)))
        assert ask(16) == 2
    with outer:
        assert ask(16) == 4
        with pytest.raises(OptionError, match="entered already"):
            outer.__enter__()


def test_a_smaller_size_serves_only_on_request() -> None:
    trials = [trial(16, 4, 1.0), trial(8, 2, 0.6)]
    with ApplyHistoryBest(trials):
        assert ask(32) is None
    with ApplyHistoryBest(trials, include_compatible=True):
        assert ask(16) == 4
        assert ask(32) == 4
        assert ask(24) == 2


def test_a_record_that_does_not_fit_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    bad = LoggedTrial(LoggedTask(key(16), str(HERE)), (Split(7, 0, 16, (2,), True),), (0.1,), MeasureStatus.OK, 1.0, 1)
    with ApplyHistoryBest([bad]):
        assert ask(16) is None
    assert "does not fit" in caplog.text


def test_an_untuned_workload_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), FallbackContext() as context:
        assert ask(16) is None
        assert ask(16) is None
        context.query(HERE, key(8), False, dag(8))
    assert [record.getMessage() for record in caplog.records] == [
        f"no tuning record for {key(16)} on {HERE}: it is compiled untuned"
    ]


def test_warnings_of_untuned_workloads_follow_the_verbosity(caplog: pytest.LogCaptureFixture) -> None:
    for verbose, heavy in ((0, []), (1, [True]), (2, [False, True])):
        caplog.clear()
        with caplog.at_level(logging.WARNING), FallbackContext(verbose) as context:
            for complex_ in (False, True):
                context.query(HERE, key(8 + complex_), complex_, dag(8 + complex_))
            with suppress_dispatch_warnings():
                context.query(HERE, key(4), True, dag(4))
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == len(heavy)
        assert all(key(8 + complex_) in text for complex_, text in zip(heavy, said, strict=True))


def _in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(60)


def test_a_thread_without_contexts_uses_those_of_the_one_that_started_it() -> None:
    with ApplyHistoryBest([trial(16, 4, 1.0)]), ApplyHistoryBest([trial(32, 2, 1.0)]):
        assert _in_thread(lambda: (ask(16), ask(32), is_enabled())) == (4, 2, True)
        assert _in_thread(lambda: _in_thread(lambda: ask(16))) == 4
    assert _in_thread(lambda: (ask(16), is_enabled())) == (None, False)


def test_a_thread_with_contexts_uses_its_own() -> None:
    def inside() -> tuple[int | None, int | None]:
        with ApplyHistoryBest([trial(32, 2, 1.0)]):
            return ask(16), ask(32)

    with ApplyHistoryBest([trial(16, 4, 1.0)]):
        assert _in_thread(inside) == (None, 2)
        assert (ask(16), ask(32)) == (4, None)


def test_a_thread_that_cannot_tell_whose_contexts_to_use_says_so(caplog: pytest.LogCaptureFixture) -> None:
    entered, done = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with ApplyHistoryBest([trial(16, 4, 1.0)]):
            entered.wait(60)
            done.wait(60)

    with ThreadPoolExecutor(2) as pool:
        holders = [pool.submit(hold) for _ in range(2)]
        entered.wait(60)
        with caplog.at_level(logging.WARNING):
            assert _in_thread(lambda: (ask(16), ask(16))) == (None, None)
        done.set()
        assert [each.result(60) for each in holders] == [None, None]
    assert [record.getMessage()[:42] for record in caplog.records if "threads" in record.getMessage()] == [
        "2 threads have entered dispatch contexts, "
    ]


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="nothing"):
        ApplyHistoryBest(tmp_path / "nothing.json")


def test_how_long_a_workload_takes_is_what_its_own_record_says() -> None:
    def seconds(size: int) -> float:
        return DispatchContext.current.expected_seconds(HERE, key(size))

    with ApplyHistoryBest([trial(16, 2, 2.0), trial(16, 4, 1.0)], include_compatible=True):
        assert seconds(16) == 1.0
        assert seconds(32) == math.inf
        with ApplyHistoryBest([trial(32, 4, 3.0)]):
            assert (seconds(16), seconds(32)) == (1.0, 3.0)
    assert seconds(16) == math.inf
