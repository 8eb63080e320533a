"""Ranges of the values that int8 layers read, from runs of the float32 network on samples.

least-error   the range, smaller by a factor, at which rounding and clipping together have the least squared error
percentile    all values but the 10,000th part
min-max       all values
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.graph.precision.layers import values_read
from retune.compiler.runtime.artifact import Array
from retune.compiler.tune.precision.bench import Bench
from retune.compiler.tune.precision.samples import Sample

METHODS = ("min-max", "percentile", "least-error")
_BINS = 2048
_TAIL = 1e-4
"""The share of values outside of the range of percentiles."""
_FACTORS = np.linspace(1.0, 0.2, 33)
"""How much smaller a range may become for the least error."""

Ranges = Mapping[str, tuple[float, float]]


@dataclass(slots=True)
class _Histogram:
    """How often finite values occur between `low` and `high`."""

    low: float = np.inf
    high: float = -np.inf
    counts: Array | None = None

    def widen(self, array: Array) -> None:
        known = array[np.isfinite(array)]
        self.low = min(self.low, float(known.min(initial=np.inf)))
        self.high = max(self.high, float(known.max(initial=-np.inf)))

    def add(self, array: Array) -> None:
        if self.low > self.high:
            return
        # np.histogram takes five times as long.
        width = (self.high - self.low if self.high > self.low else 1.0) / _BINS
        with np.errstate(over="ignore"):
            bins = (array[np.isfinite(array)] - np.float32(self.low)) * np.float32(1.0 / width)
        counts = np.bincount(np.minimum(bins, _BINS - 1).astype(np.intp), minlength=_BINS)
        self.counts = counts if self.counts is None else self.counts + counts

    def range(self, method: str) -> tuple[float, float]:
        if self.low > self.high:
            return 0.0, 0.0
        if method == "min-max" or self.counts is None or self.high <= self.low:
            return self.low, self.high
        edges = np.linspace(self.low, self.high, _BINS + 1)
        if method == "percentile":
            below = np.cumsum(self.counts) / self.counts.sum()
            first, last = np.searchsorted(below, (_TAIL / 2, 1 - _TAIL / 2))
            return float(edges[first]), float(edges[min(last + 1, _BINS)])
        middles = (edges[1:] + edges[:-1]) / 2
        errors = [self._error(self.counts, middles, factor) for factor in _FACTORS]
        best = float(_FACTORS[int(np.argmin(errors))])
        return self.low * best, self.high * best

    def _error(self, counts: Array, middles: Array, factor: float) -> float:
        """The squared error of bytes for a range that is smaller by a factor."""
        low, high = min(self.low * factor, 0.0), max(self.high * factor, 0.0)
        scale = (high - low) / 255
        stored = np.clip(np.round(middles / scale), np.round(low / scale), np.round(high / scale)) * scale
        # Values of a bin are spread evenly over its width.
        return float(np.sum(counts * (stored - middles) ** 2))


def collect_ranges(bench: Bench, samples: Sequence[Sample]) -> dict[str, Ranges]:
    """The ranges by each of METHODS."""
    wanted = values_read(bench.graph)
    histograms = {name: _Histogram() for name in wanted}
    for step in (_Histogram.widen, _Histogram.add):
        for sample in samples:
            values = bench.observe(sample)
            for name, histogram in histograms.items():
                step(histogram, values[name])
    return {method: {name: each.range(method) for name, each in histograms.items()} for method in METHODS}
