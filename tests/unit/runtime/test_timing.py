"""The timer, with a clock that only moves when a call says so."""

import time

import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator
from tests.support.clock import Clock


def test_statistics_are_those_of_the_population() -> None:
    result = BenchmarkResult((1.0, 2.0, 2.0, 5.0))
    assert (result.mean, result.median, result.min, result.max, result.std) == (2.5, 2.0, 1.0, 5.0, 1.5)
    assert "median 2000 ms" in str(result)


def test_the_first_call_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(9_000, 1_000)
    clock.install(monkeypatch)
    assert TimeEvaluator()(clock.call).results == (1e-6,)
    assert clock.calls == 2


def test_calls_grow_until_a_pass_is_long_enough_and_start_over_in_every_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1_000_000)  # 1 ms
    clock.install(monkeypatch)
    result = TimeEvaluator(number=1, repeat=3, min_repeat_ms=5)(clock.call, warm_up=False)
    assert result.results == pytest.approx((1e-3,) * 3)
    assert clock.calls == 3 * (1 + 6)  # one call, then int(5 / 1 + 1)


def test_a_clock_that_stands_still_ends_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0)
    clock.install(monkeypatch)
    assert TimeEvaluator(min_repeat_ms=1)(clock.call).results == (0.0,)
    assert clock.calls == 101


def test_cooling_down_and_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, naps = Clock(1_000), list[float]()
    clock.install(monkeypatch)
    monkeypatch.setattr(time, "sleep", naps.append)
    TimeEvaluator(repeat=4, cooldown_ms=20, repeats_to_cooldown=2, flush_bytes=4096)(clock.call)
    assert naps == [0.02, 0.02]


@pytest.mark.parametrize("options", [{"number": 0}, {"repeat": 0}, {"min_repeat_ms": -1.0}])
def test_invalid_timing_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        TimeEvaluator(**options)
