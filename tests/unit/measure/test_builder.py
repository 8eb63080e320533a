"""Building in worker processes, with the code generator replaced by kernels of known behavior."""

import os
from pathlib import Path

import pytest

from retune.compiler.core.errors import MeasureError, OptionError
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.record import Measurement, MeasureStatus
from tests.support.ir_kernels import steps, task
from tests.support.tiers import long_except

BUILD = "tests.support.ir_kernels:build"


def _build(*behaviors: str, n_parallel: int = 2, timeout_s: float = 15.0) -> list[Measurement]:
    with LocalBuilder(timeout_s, n_parallel, build_func=BUILD) as builder:
        return builder.build(task(), [steps(behavior) for behavior in behaviors])


def test_every_candidate_gets_its_own_result_in_order() -> None:
    results = _build(*["good", "schedule-error", "nothing", "lowering-error"] * 5)
    statuses = [result.status for result in results]
    ok, invalid, failed = MeasureStatus.OK, MeasureStatus.INSTANTIATION, MeasureStatus.COMPILE_HOST
    assert statuses == [ok, invalid, ok, failed] * 5
    good, nothing = results[0].artifact, results[2].artifact
    assert good is not None
    assert nothing is not None
    assert good.object_code != nothing.object_code
    assert all(result.artifact == good for result in results[::4])
    assert all((result.artifact is None) == (result.status is not ok) for result in results)


@pytest.mark.parametrize(
    ("behavior", "headline"),
    [
        ("schedule-error", "ScheduleError: fuse: the loops are not neighbors"),
        ("lowering-error", "LoweringError: the tile needs 300 KiB of stack"),
        ("other-error", "KeyError: 'no such key'"),
    ],
)
def test_the_error_text_has_a_headline_and_the_whole_traceback(behavior: str, headline: str) -> None:
    (result,) = _build(behavior)
    assert result.error.splitlines()[0] == headline
    assert "Traceback (most recent call last)" in result.error
    assert "in build\n" in result.error


def test_a_crash_of_the_compiler_costs_one_candidate() -> None:
    results = _build("good", "build-crash", "good", "good", n_parallel=1)
    expected = [MeasureStatus.OK, MeasureStatus.COMPILE_HOST, MeasureStatus.OK, MeasureStatus.OK]
    assert [result.status for result in results] == expected
    assert results[1].error.startswith("the compiler crashed: the worker process was ended by SIGSEGV")
    assert "ir_kernels.py" in results[1].error


def test_a_hanging_compiler_costs_one_candidate() -> None:
    results = _build("good", "build-hang", "good", n_parallel=1, timeout_s=5.0)
    assert [result.status for result in results] == [MeasureStatus.OK, MeasureStatus.BUILD_TIMEOUT, MeasureStatus.OK]
    assert results[1].error == "the build took more than 5 s"
    assert results[1].seconds >= 5.0


def test_a_worker_killed_from_outside_tries_its_candidate_again(tmp_path: Path) -> None:
    results = _build("good", f"killed-once {tmp_path / 'marker'}", "good", n_parallel=1)
    assert [result.status for result in results] == [MeasureStatus.OK] * 3


def test_a_candidate_whose_worker_is_always_killed_fails() -> None:
    results = _build("killed-always", "good", n_parallel=1)
    assert [result.status for result in results] == [MeasureStatus.COMPILE_HOST, MeasureStatus.OK]
    assert "SIGKILL" in results[0].error


def test_workers_that_cannot_start_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(MeasureError, match="cannot start"):
        _build("good")


def test_nothing_to_build_needs_no_worker() -> None:
    assert _build() == []
    with pytest.raises(OptionError):
        LocalBuilder(n_parallel=0)


@pytest.mark.parametrize("uses", long_except([2], range(1, 6)))
def test_a_worker_that_wears_out_loses_no_candidate(monkeypatch: pytest.MonkeyPatch, uses: int) -> None:
    """Whatever the number of uses, a worker is not replaced between hearing of a task and building for it."""
    monkeypatch.setattr("retune.compiler.measure.builder._USES_PER_WORKER", uses)
    with LocalBuilder(n_parallel=1, build_func=BUILD) as builder:
        for _ in range(3):
            results = builder.build(task(), [steps("good"), steps("nothing")])
            assert [result.status for result in results] == [MeasureStatus.OK] * 2


def test_builder_knows_whether_it_avoids_given_cores() -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with LocalBuilder(build_func=BUILD, lane=[first]) as builder:
        assert builder.leaves_alone([first]) == bool(others)
        assert not builder.leaves_alone([])
        assert not builder.leaves_alone([first, *others, 10_000])
    assert not LocalBuilder(n_parallel=2).leaves_alone([first])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a CPU beside that of the lane")
def test_processes_that_build_at_any_time_keep_off_the_lane() -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    with LocalBuilder(n_parallel=1, build_func=BUILD, lane=[first]) as builder:
        builder.build(task(), [steps("good")])
        (worker,) = builder._pool._workers
        assert worker.pid is not None
        assert os.sched_getaffinity(worker.pid) == set(others)
