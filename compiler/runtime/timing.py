"""Times calls of a function, in seconds per call, once per repeat, also of the functions of a module by name.

The first call is not timed and the clock is monotonic. Every repeat starts from the same `number` of calls and
increases it until the pass lasts `min_repeat_ms`. Options, their order and their meaning are those of TVM's time
evaluators.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import check_options, option
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import Device, require_cpu
from retune.compiler.runtime.ffi.registry import get_global_func
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.runtime.threads.affinity import last_cache_bytes

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
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        return min(self.results)

    @property
    def max(self) -> float:
        return max(self.results)

    @property
    def std(self) -> float:
        """Population standard deviation in seconds."""
        return float(np.std(self.results))

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


_FLUSH = "cache_flush"


class TimedFunctions:
    """A base of classes whose `self[name]` is a function."""

    def __getitem__(self, name: str) -> Callable[..., object]:
        raise NotImplementedError

    def check_device(self, where: Device) -> None:
        """Check that the functions run on a device: here, on the CPU. Raises: OptionError."""
        require_cpu(where, "functions run")

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        cache_flush_bytes: int = 0,
        f_preproc: str = "",
    ) -> Callable[..., BenchmarkResult]:
        """A function that takes the arguments of `func_name` and times calls of it: one untimed call, then `repeat`
        times `number` calls or more, until they take `min_repeat_ms`.

        `f_preproc` names a registered function to call before each repeat; "cache_flush" writes as much memory as the
        last cache has. `TimeEvaluator` describes the other options.
        Raises: OptionError for invalid options; errors of `self[func_name]`.
        """
        if dev is not None:
            self.check_device(dev)
        if not isinstance(f_preproc, str):
            raise OptionError(f"f_preproc is the name of a registered function, not {f_preproc!r:.80}")
        flush = last_cache_bytes() if f_preproc == _FLUSH and not cache_flush_bytes else cache_flush_bytes
        prepare = get_global_func(f_preproc) if f_preproc not in ("", _FLUSH) else None
        function = self[func_name]
        counts = (number, repeat, min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown, flush)
        return lambda *args: evaluator(lambda: function(*args), prepare=prepare)
