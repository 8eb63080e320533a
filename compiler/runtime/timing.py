"""Times calls of a function, in seconds per call, once per repeat.

The first call is not timed and the clock is monotonic. Every repeat starts from the same `number` of calls and
increases it until the pass lasts `min_repeat_ms`.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.options import check_options, option
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.readable import milliseconds

# TVM's factor, the golden ratio: the number grows even if the estimate of a call is too high.
_GROWTH = 1.618
# 4 GiB: far above any cache, below what would exhaust the machine.
_MOST_FLUSHED = 1 << 32


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Seconds per call, one entry per repeat."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.results)

    @property
    def median(self) -> float:
        return statistics.median(self.results)

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        """Population standard deviation in seconds."""
        return statistics.pstdev(self.results)

    def __str__(self) -> str:
        names = ("mean", "median", "min", "max", "std")
        return "  ".join(f"{name} {milliseconds(getattr(self, name))} ms" for name in names)


@dataclass(frozen=True, slots=True)
class TimeEvaluator:
    """How to time a call."""

    number: int = option(1, least=1)
    """Calls in the first pass of a repeat; each further pass has more."""
    repeat: int = option(1, least=1)
    """Number of repeats; each gives one time."""
    min_repeat_ms: float = option(0.0, least=0)
    """A repeat makes passes until one lasts this long."""
    limit_zero_time_iterations: int = option(100, least=1)
    """A repeat ends after this many passes of zero time, for clocks that stand still."""
    cooldown_ms: float = option(0.0, least=0)
    """Sleep between repeats."""
    repeats_to_cooldown: int = option(1, least=1)
    """Number of repeats between sleeps."""
    flush_bytes: int = option(0, least=0, most=_MOST_FLUSHED)
    """Bytes of other memory written before each pass to cool caches; use `number` 1 and `min_repeat_ms` 0."""

    def __post_init__(self) -> None:
        check_options(self)

    def __call__(
        self,
        function: Callable[[], object],
        *,
        warm_up: bool = True,
        prepare: Callable[[], object] | None = None,
    ) -> BenchmarkResult:
        """Time `function`, without a first untimed call if not `warm_up`; `prepare` runs before every repeat."""
        if warm_up:
            function()
        scratch = np.zeros(self.flush_bytes, np.uint8)
        costs: list[float] = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for index in range(self.repeat):
                if prepare is not None:
                    prepare()
                costs.append(self._time_repeat(function, scratch))
                if self.cooldown_ms and (index + 1) % self.repeats_to_cooldown == 0:
                    time.sleep(self.cooldown_ms / 1e3)
        finally:
            if collecting:
                gc.enable()
        return BenchmarkResult(tuple(costs))

    def _time_repeat(self, function: Callable[[], object], scratch: Array) -> float:
        number = self.number
        least = self.min_repeat_ms * 1e6
        still = 0
        while True:
            if scratch.size:
                scratch += 1
            elapsed = time_calls(function, number)
            still += elapsed == 0
            if 0 < elapsed >= least or still >= self.limit_zero_time_iterations:
                return elapsed / number / 1e9
            if elapsed > 0:
                number = int(max(least / (elapsed / number) + 1, _GROWTH * number))


def time_calls(function: Callable[[], object], number: int) -> int:
    """Nanoseconds of `number` calls."""
    # Before the clock starts.
    calls = range(number)
    start = time.perf_counter_ns()
    for _ in calls:
        function()
    return time.perf_counter_ns() - start
