"""Racing, with a clock that only moves when a call says so and a meter that answers what it was told."""

import time
from collections.abc import Sequence

import pytest

from retune.compiler.measure.adaptive_timer import AdaptiveTimer, Timing
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.runtime.threads.contention import ContentionMeter
from tests.support.clock import Clock

MS = 1_000_000


class Meter(ContentionMeter):
    """Reports the next of `shares` for each pass, the last one for ever."""

    def __init__(self, shares: Sequence[float | None]) -> None:
        self.shares = list(shares)
        self.passes = 0

    def start(self) -> None:
        self.passes += 1

    def share(self, elapsed_ns: int) -> float | None:  # noqa: ARG002
        return self.shares[min(self.passes, len(self.shares)) - 1]


def timed(
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    limit: float,
    shares: Sequence[float | None] = (0.0,),
    options: MeasureOptions | None = None,
) -> Timing:
    clock.install(monkeypatch)
    return AdaptiveTimer(options or MeasureOptions(repeat=3, min_repeat_ms=5.0), Meter(shares), clock.call).run(limit)


def test_a_program_within_reach_gets_all_its_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(MS)
    timing = timed(monkeypatch, clock, limit=1.1e-3)
    assert timing == Timing((1e-3,) * 3, censored=False, contention=0.0)
    assert clock.calls == 1 + 3 * 5


def test_a_program_out_of_reach_gets_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(2 * MS)
    timing = timed(monkeypatch, clock, limit=1.1e-3)
    assert timing == Timing((2e-3,), censored=True, contention=0.0)
    assert clock.calls == 2


def test_a_slow_first_look_is_not_believed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(2 * MS, MS)
    timing = timed(monkeypatch, clock, limit=1.1e-3)
    assert timing.costs == (1e-3,) * 3


def test_a_look_at_a_short_program_has_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(10_000)
    timing = timed(monkeypatch, clock, limit=1e-6)
    assert timing.censored
    assert clock.calls == 1 + 30 + 30  # one call is no look; then two of 0.3 ms


def test_disturbed_passes_are_made_again_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    options = MeasureOptions(repeat=2, min_repeat_ms=1.0, contended_passes=3, max_contention=0.1)
    clock = Clock(MS, 3 * MS, MS)  # look, first pass disturbed, the others not
    timing = timed(monkeypatch, clock, 1.0, (0.0, 0.6, 0.0), options)
    assert timing == Timing((1e-3, 1e-3), censored=False, contention=0.0)
    assert clock.calls == 4
    clock = Clock(MS)
    timing = timed(monkeypatch, clock, 1.0, (0.5, 0.6, 0.4, 0.3, 0.7), options)
    assert timing.contention is not None
    assert timing.contention >= 0.3
    assert clock.calls == 1 + 3 + 2  # a look, two repeats, three spare passes


def test_a_disturbed_look_cannot_put_a_program_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(*[9 * MS] * 4, MS)
    timing = timed(monkeypatch, clock, 1.1e-3, (0.9, 0.9, 0.9, 0.9, 0.0))
    assert not timing.censored
    assert timing.costs == (1e-3,) * 3


def test_a_system_without_accounts_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = timed(monkeypatch, Clock(MS), 1.0, (None,))
    assert timing == Timing((1e-3,) * 3, censored=False, contention=None)


def test_what_happens_before_a_pass_makes_passes_of_the_given_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, before = Clock(1000), []
    clock.install(monkeypatch)
    timer = AdaptiveTimer(MeasureOptions(repeat=3), Meter([0.0]), clock.call, lambda: before.append(clock.calls))
    assert timer.run(1.0).costs == (1e-6,) * 3
    assert before == [0, 1, 2, 3]


def test_repeats_are_followed_by_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    naps = list[float]()
    monkeypatch.setattr(time, "sleep", naps.append)
    timed(monkeypatch, Clock(MS), 1.0, options=MeasureOptions(repeat=2, cooldown_interval=0.5))
    assert naps == [0.5, 0.5]


@pytest.mark.long
def test_a_clock_that_stands_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timed(monkeypatch, Clock(0), 1.0).costs == (0.0,) * 3


def test_turns_of_several_programs_go_on_with_their_own_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clock(MS), Clock(MS // 2)
    timers = []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: sum(clock.now for clock in clocks))
    for clock in clocks:
        timers.append(AdaptiveTimer(MeasureOptions(min_repeat_ms=2.0), Meter([0.0]), clock.call))
    for _ in range(3):
        for timer in timers:
            timer.interleave()
    assert [timer.timing.costs for timer in timers] == [(1e-3,) * 3, (0.5e-3,) * 3]
    assert [clock.calls for clock in clocks] == [1 + 3 * 2, 1 + 3 * 4]
