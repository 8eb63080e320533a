"""Times a program until the result is good enough: a short probe first, more repeats for promising programs.

A program that cannot be the best costs one probe. Passes that other processes disturbed, or during which the machine
was slow, are repeated while the budget lasts; the remaining disturbance is part of the result.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.reference_kernel import ReferenceKernel
from retune.compiler.runtime.threads.contention import ContentionMeter
from retune.compiler.runtime.timing import time_calls

_PROBES = 2
"""Slow probes after which a program is given up."""
# Doubling reaches 2^100 calls; the bound ends the search where the clock does not advance.
_MOST_PASSES = 100
"""The most passes of the search for a number of calls."""
# The call count is an estimate: insisting on the exact length would repeat passes that are off only by timing noise.
_CLOSE = 0.9
"""A pass with this share of the least length is long enough."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, one per repeat.

    `censored`: the program was slower than the limit; its only cost is that of a probe. `contention` is the share of
    the fastest repeat that other processes took, or of its speed that the machine lacked, None where the system does
    not report it.
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
        """The contention; 0 where unknown."""
        return self.contention or 0.0


class AdaptiveTimer:
    """Times `function`, which was called before, by `options`, with their number of threads. `before_pass` runs before
    each pass, untimed; `reference` measures the machine's speed after each.
    """

    def __init__(
        self,
        options: MeasureOptions,
        meter: ContentionMeter,
        function: Callable[[], object],
        before_pass: Callable[[], object] | None = None,
        reference: ReferenceKernel | None = None,
    ) -> None:
        self._options = options
        self._meter = meter
        self._function = function
        self._before_pass = before_pass
        self._reference = reference
        self._spare = options.contended_passes
        self._number = options.number
        self._samples: list[_Sample] = []

    def run(self, limit: float) -> Timing:
        """A probe, and all repeats unless the program takes more than `limit` seconds per call."""
        with _no_collector():
            probe = self._probe(limit)
            if probe.seconds > limit:
                return Timing((probe.seconds,), True, probe.contention)
            for _ in range(self._options.repeat):
                self._samples.append(self._repeat())
        return self.timing

    def interleave(self) -> None:
        """One more repeat; the first call determines the number of calls before."""
        with _no_collector():
            if not self._samples:
                self._probe(math.inf)
            self._samples.append(self._repeat())

    @property
    def timing(self) -> Timing:
        """The repeats so far, at least one."""
        # Noise only adds time, so the minimum is the best estimate of the program's own time.
        fastest = min(self._samples, key=lambda sample: sample.seconds)
        return Timing(tuple(sample.seconds for sample in self._samples), False, fastest.contention)

    def _probe(self, limit: float) -> _Sample:
        """The best of the first passes of at least `first_look_ms`. Sets the number of calls of a repeat."""
        best = _Sample(math.inf, None)
        number, least = self._options.number, self._options.first_look_ms * 1e6
        probes = 0
        for _ in range(_MOST_PASSES):
            sample, elapsed = self._pass(number)
            best = min(best, sample, key=lambda probe: probe.seconds)
            if 0 < elapsed < least and not self._single:
                # At least doubled, so that finding the number of calls takes few passes.
                number = max(number * 2, math.ceil(number * least / elapsed))
                continue
            probes += 1
            # One slow probe may be an interrupt; a program is given up only after two, the last undisturbed.
            if best.seconds <= limit or (probes >= _PROBES and not self._is_disturbed(sample)):
                break
        self._number = self._calls_of(best.seconds)
        return best

    def _repeat(self) -> _Sample:
        """The least disturbed pass of one repeat, with enough calls to make it long enough, and the pause after it."""
        least = self._options.min_repeat_ms * 1e6
        best: _Sample | None = None
        for _ in range(_MOST_PASSES):
            sample, elapsed = self._pass(self._number)
            if 0 < elapsed < least * _CLOSE and not self._single:
                self._number = max(self._number + 1, math.ceil(self._number * least / elapsed))
                continue
            # Least disturbed, not fastest: choosing the fastest would favor programs that had more retries.
            best = sample if best is None else min(best, sample, key=lambda candidate: candidate.disturbance)
            if not self._is_disturbed(sample):
                break
        if self._options.cooldown_interval:
            time.sleep(self._options.cooldown_interval)
        # `best` is None only where every pass was too short; the last had the most calls.
        return best or sample

    def _is_disturbed(self, sample: _Sample) -> bool:
        """Whether to repeat a pass, which uses up a spare pass."""
        if sample.disturbance <= self._options.max_contention or self._spare == 0:
            return False
        self._spare -= 1
        if self._reference is not None:
            # A fraction of the time limit of the program.
            self._reference.recover(self._options.run_timeout_s / 10)
        return True

    def _pass(self, number: int) -> tuple[_Sample, int]:
        if self._before_pass is not None:
            self._before_pass()
        self._meter.start()
        elapsed = time_calls(self._function, number)
        contention = self._meter.share(elapsed)
        if self._reference is not None and (slowdown := self._reference.measure_slowdown()):
            contention = max(contention or 0.0, slowdown)
        return _Sample(elapsed / number / 1e9, contention), elapsed

    def _calls_of(self, seconds: float) -> int:
        """The number of calls of a repeat of the least length."""
        if self._single:
            return self._options.number
        return max(self._options.number, math.ceil(self._options.min_repeat_ms / 1e3 / max(seconds, 1e-9)))

    @property
    def _single(self) -> bool:
        """Whether every pass is one call, because `before_pass` changes the caches before each."""
        return self._before_pass is not None


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pause Python's garbage collector."""
    collecting = gc.isenabled()
    # A collection inside a pass takes milliseconds, as long as the pass itself.
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
