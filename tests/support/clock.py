"""A clock that only moves when a call says so."""

import time

import pytest


class Clock:
    """Stands in for the monotonic clock; `call` takes the next of `durations` (ns), the last one for ever."""

    def __init__(self, *durations: int) -> None:
        self.now = 0
        self.calls = 0
        self.durations = durations

    def call(self) -> None:
        """Let the time of one call pass."""
        self.now += self.durations[min(self.calls, len(self.durations) - 1)]
        self.calls += 1

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make everybody read this clock."""
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)
