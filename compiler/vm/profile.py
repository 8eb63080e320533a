"""Sums up the time that a call of the virtual machine took: a row for every kernel, region, branch and loop."""

import time
from collections.abc import Callable
from typing import Any

from retune.compiler.runtime.executor.debug_report import Report, report_of


class Profile:
    """The sums of one call."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        self._inside = 0.0
        """Seconds of what ran inside of the statement that runs now."""

    def note(self, name: str, seconds: float) -> None:
        """Take in a kernel, which ran inside of a statement."""
        self._inside += seconds
        self._add(name, seconds)

    def timed(self, name: str, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """`step`, which tells under `name` of its time without that of the kernels and statements inside of it."""

        def run(frame: Any) -> None:
            before, self._inside = self._inside, 0.0
            start = time.perf_counter()
            step(frame)
            seconds = time.perf_counter() - start
            self._add(name, max(0.0, seconds - self._inside))
            self._inside = before + seconds

        return run

    def _add(self, name: str, seconds: float) -> None:
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + seconds, count + 1

    def report(self, device: str, threads: int) -> Report:
        """The report."""
        rows = [(name, seconds, count, "", "") for name, (seconds, count) in self._sums.items()]
        return report_of(rows, "VM", device, threads)
