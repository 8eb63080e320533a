"""The reference kernel, with a clock that only moves when a call says so."""

from collections.abc import Iterator

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.measure.adaptive_timer import AdaptiveTimer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.reference_kernel import ReferenceKernel, reference_kernel
from retune.compiler.runtime.threads.contention import ContentionMeter
from tests.support.clock import Clock

MS = 1_000_000


def kernel(monkeypatch: pytest.MonkeyPatch, *durations: int) -> tuple[ReferenceKernel, Clock]:
    """A kernel that usually takes a millisecond; from now on its calls take `durations`."""
    clock = Clock(MS)
    monkeypatch.setattr("time.perf_counter", lambda: clock.now / 1e9)
    reference = ReferenceKernel(clock.call)
    clock.durations, clock.calls = durations, 0
    return reference, clock


def test_a_machine_at_its_usual_speed_has_no_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, clock = kernel(monkeypatch, MS * 11 // 10)
    assert reference.measure_slowdown() == 0
    assert clock.calls == 1


def test_a_machine_at_half_speed_lacks_half(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = kernel(monkeypatch, 2 * MS)
    assert reference.measure_slowdown() == pytest.approx(0.5)


def test_one_interrupted_call_is_not_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, _ = kernel(monkeypatch, 5 * MS, MS)
    assert reference.measure_slowdown() == 0


@pytest.mark.parametrize(("first", "slowdown"), [(MS // 2, 0.5), (MS * 9 // 10, 0.0)])
def test_a_clearly_faster_call_sets_the_usual_speed(
    monkeypatch: pytest.MonkeyPatch, first: int, slowdown: float
) -> None:
    reference, _ = kernel(monkeypatch, first, MS)
    assert reference.measure_slowdown() == 0
    assert reference.measure_slowdown() == pytest.approx(slowdown)


def test_recovering_ends_when_the_machine_is_fast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, clock = kernel(monkeypatch, *[2 * MS] * 20, MS)
    reference.recover()
    assert clock.calls == 20 + 3


def test_a_machine_that_stays_slow_has_another_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, clock = kernel(monkeypatch, 2 * MS)
    reference.recover(0.01)
    assert 5 <= clock.calls <= 7
    assert reference.measure_slowdown() > 0
    reference.recover()
    assert clock.calls < 300
    assert reference.measure_slowdown() == 0


def test_a_kernel_that_takes_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retune.compiler.measure.reference_kernel._MOST_SECONDS", 0.0)
    assert reference_kernel.__wrapped__(1) is None


def test_timings_go_on_without_a_kernel(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise LoweringError("no multiply-adds")

    monkeypatch.setattr("retune.compiler.measure.reference_kernel.peak_kernel", fail)
    assert reference_kernel.__wrapped__(1) is None
    assert "no multiply-adds" in caplog.text


class Quiet(ContentionMeter):
    """Sees no other process."""

    def start(self) -> None:
        """Nothing to read."""

    def share(self, elapsed_ns: int) -> float | None:  # noqa: ARG002
        return 0.0


class Machine(ReferenceKernel):
    """Lacks the next of `shares` after each pass, and counts its recoveries."""

    def __init__(self, *shares: float) -> None:
        self.shares: Iterator[float] = iter(shares)
        self.recovered = 0

    def measure_slowdown(self) -> float:
        return next(self.shares)

    def recover(self, most_seconds: float = 0.0) -> None:  # noqa: ARG002
        self.recovered += 1


def timer(monkeypatch: pytest.MonkeyPatch, clock: Clock, reference: ReferenceKernel) -> AdaptiveTimer:
    clock.install(monkeypatch)
    return AdaptiveTimer(MeasureOptions(repeat=2, min_repeat_ms=1.0), Quiet(1), clock.call, reference=reference)


def test_a_pass_on_a_slow_machine_is_repeated_after_it_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, machine = Clock(MS, 2 * MS, MS), Machine(0.0, 0.5, 0.0, 0.0)
    timing = timer(monkeypatch, clock, machine).run(1.0)
    assert timing.costs == (1e-3, 1e-3)
    assert timing.contention == 0.0
    assert machine.recovered == 1


def test_a_timing_on_a_machine_that_stays_slow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(*[0.5] * 6)
    timing = timer(monkeypatch, Clock(2 * MS), machine).run(1.0)
    assert timing.contention == 0.5
    assert machine.recovered == MeasureOptions().contended_passes


def test_the_kernel_of_this_machine_runs_and_is_kept() -> None:
    reference = reference_kernel(1)
    assert reference is not None
    assert 0 <= reference.measure_slowdown() < 1
    assert reference_kernel(1) is reference
