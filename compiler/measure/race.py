"""In: a program as a call without arguments, and how fast the best program of its task is. Out: its times.

Always: a program that cannot be the best costs one short look; what other processes disturbed is timed again while the
budget for that lasts; how much they disturbed what is kept is part of the answer.
"""

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from compiler.measure.options import MeasureOptions
from compiler.runtime.contention import ContentionMeter
from compiler.runtime.timing import time_calls

_LOOKS = 2
"""How often a program may look too slow before it is believed."""
_MOST_PASSES = 100
"""Where the search for a number of calls ends in any case."""
_CLOSE = 0.9
"""A pass this close to the least length is long enough."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, one per repeat.

    `censored`: the program was out of reach of the best and got a short look only, which is the one cost there is.
    `contention` is the share of the fastest repeat that other processes took, None where the system does not tell.
    """

    costs: tuple[float, ...]
    censored: bool
    contention: float | None


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    contention: float | None

    @property
    def disturbance(self) -> float:
        """What is not known is taken for quiet."""
        return self.contention or 0.0


class Race:
    """Times programs as `options` say, on their number of threads. `before_pass` runs before each pass, untimed."""

    def __init__(
        self, options: MeasureOptions, meter: ContentionMeter, before_pass: Callable[[], object] | None = None
    ) -> None:
        self._options = options
        self._meter = meter
        self._before_pass = before_pass
        self._spare = options.contended_passes

    def run(self, function: Callable[[], object], limit: float) -> Timing:
        """Time `function`, which was called before; it is out of reach above `limit` seconds per call."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            look = self._look(function, limit)
            if look.seconds > limit:
                return Timing((look.seconds,), True, look.contention)
            number = self._calls_of(look.seconds)
            samples = []
            for _ in range(self._options.repeat):
                sample, number = self._repeat(function, number)
                samples.append(sample)
                if self._options.cooldown_interval:
                    time.sleep(self._options.cooldown_interval)
        finally:
            if collecting:
                gc.enable()
        fastest = min(samples, key=lambda sample: sample.seconds)
        return Timing(tuple(sample.seconds for sample in samples), False, fastest.contention)

    def _look(self, function: Callable[[], object], limit: float) -> _Sample:
        """The best of the first short passes: at least as many calls as last `first_look_ms`."""
        best = _Sample(math.inf, None)
        number, least = self._options.number, self._options.first_look_ms * 1e6
        looks = 0
        for _ in range(_MOST_PASSES):
            sample, elapsed = self._pass(function, number)
            best = min(best, sample, key=lambda one: one.seconds)
            if 0 < elapsed < least and not self._single:
                number = max(number * 2, math.ceil(number * least / elapsed))
                continue
            looks += 1
            if best.seconds <= limit or (looks >= _LOOKS and not self._is_disturbed(sample)):
                break
        return best

    def _repeat(self, function: Callable[[], object], number: int) -> tuple[_Sample, int]:
        """The least disturbed pass of one repeat, and how many calls it took to make it long enough."""
        least = self._options.min_repeat_ms * 1e6
        best: _Sample | None = None
        for _ in range(_MOST_PASSES):
            sample, elapsed = self._pass(function, number)
            if 0 < elapsed < least * _CLOSE and not self._single:
                number = max(number + 1, math.ceil(number * least / elapsed))
                continue
            best = sample if best is None else min(best, sample, key=lambda one: one.disturbance)
            if not self._is_disturbed(sample):
                break
        return best or sample, number

    def _is_disturbed(self, sample: _Sample) -> bool:
        """Whether a pass should be made again, which costs one of the spare ones."""
        if sample.disturbance <= self._options.max_contention or self._spare == 0:
            return False
        self._spare -= 1
        return True

    def _pass(self, function: Callable[[], object], number: int) -> tuple[_Sample, int]:
        if self._before_pass is not None:
            self._before_pass()
        self._meter.start()
        elapsed = time_calls(function, number)
        return _Sample(elapsed / number / 1e9, self._meter.share(elapsed)), elapsed

    def _calls_of(self, seconds: float) -> int:
        """How many calls make a repeat of the least length."""
        if self._single:
            return self._options.number
        return max(self._options.number, math.ceil(self._options.min_repeat_ms / 1e3 / max(seconds, 1e-9)))

    @property
    def _single(self) -> bool:
        """Whether every pass is one call, because something is done to the caches before each."""
        return self._before_pass is not None
