"""Seeded inputs for kernels, and the comparison of two results.

Inputs depend only on the seed, the task and the position. NaN where the reference has none is a mismatch.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np

from retune.compiler.dtype import HALVES, epsilon, is_float
from retune.compiler.runtime.artifact import ArgSpec, Array

# Small integers, so that sums of products stay far from overflow, where programs would agree by wrapping around.
_SMALL_SIGNED, _SMALL = 8, 8

TF32_ROUNDING = 256.0
"""How much further float32 results may be off where factors are rounded to tf32: its 10 bits of fraction, and not 23,
are rounded once a factor, not once a partial sum.
"""


def random_input(spec: ArgSpec, seed: int, key: str, position: int) -> Array:
    """An array of `spec.shape`: floats uniform in [-1, 1), signed bytes in [-8, 8), other integers in [0, 8),
    fair bools.
    """
    # crc32 is the same in every process; Python's `hash` of a string is not.
    rng = np.random.default_rng([seed, zlib.crc32(key.encode()), position])
    dtype = np.dtype(spec.dtype)
    if is_float(dtype.name):
        return rng.uniform(-1.0, 1.0, spec.shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    low = -_SMALL_SIGNED if dtype == np.int8 else 0
    return rng.integers(low, _SMALL, spec.shape).astype(dtype)


def poison(array: Array) -> None:
    """Fill an output so that an element that is not computed shows: NaN, or the largest integer; True for bools."""
    if is_float(array.dtype.name):
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    else:
        array.fill(np.iinfo(array.dtype).max)


def _widened(array: Array) -> Array:
    """Floats of two bytes as float32, so that differences are not rounded; others as they are."""
    return array.astype(np.float32) if array.dtype.name in HALVES else array


@dataclass(frozen=True, slots=True)
class Expected:
    """What an output should hold, and by how much each element may differ; floats of two bytes are held as float32."""

    name: str
    values: Array
    allowed: Array

    @classmethod
    def of(cls, name: str, values: Array, operations: float, factor: float = 1.0) -> "Expected":
        """Allow what `operations` roundings in another order can do to an element; nothing for integers.

        A sum of K products of random numbers is off by about sqrt(K) roundings of its largest partial sum, so
        the allowance grows with sqrt(K) and is relative to the largest element; a fixed part covers exp, tanh
        and their like.
        """
        if not is_float(values.dtype.name):
            return cls(name, values, np.zeros(values.shape, np.int8))
        unit = epsilon(values.dtype.name)
        values = _widened(values)
        finite = np.abs(values[np.isfinite(values)])
        scale = float(finite.max()) if finite.size else 0.0
        # A wrong program is off by about the size of its terms, several orders above this allowance.
        # Probabilistic error bound of summation (Higham and Mary, 2019): lambda * sqrt(n) * u, here with lambda = 4.
        relative = factor * unit * (32.0 + 4.0 * math.sqrt(max(operations, 1.0)))
        allowed = np.where(np.isfinite(values), relative * (np.abs(values, dtype=np.float64) + scale), 0.0)
        return cls(name, values, allowed.astype(values.dtype))

    def mismatch(self, actual: Array) -> str:
        """How `actual` differs, in words; empty when it does not."""
        if not is_float(actual.dtype.name):
            wrong = actual != self.values
            if not wrong.any():
                return ""
            error = np.abs(actual.astype(np.float64) - self.values.astype(np.float64))
        else:
            actual = _widened(actual)
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(actual - self.values)
                # The usual case, without the masks for NaN and infinity below.
                if (error <= self.allowed).all():
                    return ""
                same = (actual == self.values) | (np.isnan(actual) & np.isnan(self.values))  # infinities and NaN
                error = np.where(same, 0.0, error)
            # Negated "<=" and not ">": a comparison with NaN is false, so a NaN counts as wrong.
            wrong = ~(error <= self.allowed)
            if not wrong.any():
                return ""
        return self._describe(actual, wrong, error)

    def _describe(self, actual: Array, wrong: Array, error: Array) -> str:
        order = np.where(np.isnan(error), np.inf, error)
        worst = tuple(
            int(place) for place in np.unravel_index(int(np.argmax(np.where(wrong, order, -1.0))), wrong.shape)
        )
        relative = float(error[worst]) / max(abs(float(self.values[worst])), 1e-30)
        return (
            f"wrong answer in {self.name}: {int(wrong.sum())} of {wrong.size} elements differ; worst at {worst}: "
            f"expected {float(self.values[worst]):.7g}, got {float(actual[worst]):.7g}; max abs error "
            f"{float(error[worst]):.3g} (allowed {float(self.allowed[worst]):.3g}), max rel error {relative:.3g}"
        )
