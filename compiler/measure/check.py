"""Seeded inputs for kernels, and the comparison of two results.

Inputs depend only on the seed, the task and the position. NaN where the reference has none is a mismatch. Zeros are
always a mismatch, and so is the negated result.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.dtype import (
    HALVES,
    NARROW,
    arithmetic_type,
    epsilon,
    finite_limit,
    is_float,
    item_bits,
    sum_type,
)
from retune.compiler.ir.expr import Binary, Call, Cast
from retune.compiler.ir.visit import parts
from retune.compiler.runtime.artifact import ArgSpec, Array
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, ExternOp

# Small integers, so that sums of products stay far from overflow, where programs would agree by wrapping around.
_SMALL_SIGNED, _SMALL = 8, 8

_STEPS = 8.0
"""Units in the last place of the coarsest type that a task rounds to. A sum in another order, or of exact products on
tensor cores, rounds to a neighbor: one unit in the result, several where exp follows, as in attention.
"""
_MOST, _MOST_SCALED = 0.045, 0.45
"""The largest allowance, and with the user's factor: twice as much is still less than a tenth of the largest value, and
less than all of it.
"""


def random_input(spec: ArgSpec, seed: int, key: str, position: int) -> Array:
    """An array of `spec.shape`: floats in [-1, 1), signed bytes in [-8, 8), other integers in [0, 8), fair bools."""
    # crc32 is the same in every process; Python's `hash` of a string is not.
    rng = np.random.default_rng([seed, zlib.crc32(key.encode()), position])
    dtype = np.dtype(spec.dtype)
    if is_float(dtype.name):
        low = max(-1.0, finite_limit(dtype.name, is_least=True))  # of powers of two none is negative
        return rng.uniform(low, 1.0, spec.shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    low = -_SMALL_SIGNED if dtype == np.int8 else 0
    return rng.integers(low, _SMALL, spec.shape).astype(dtype)


def poison(array: Array, right: Array | None = None) -> None:
    """Fill an output so that missing elements show: NaN, the largest integer or True; never a `right` value."""
    if array.dtype.name in NARROW:
        most = (1 << item_bits(array.dtype.name)) - 1
        array.view(np.uint8)[...] = most if right is None else ~right.astype(array.dtype).view(np.uint8) & most
    elif is_float(array.dtype.name):
        array.fill(np.nan)
        if right is not None:
            array[np.isnan(right)] = 0
    elif right is not None:
        np.invert(right, out=array)
    else:
        array.fill(True if array.dtype.kind == "b" else np.iinfo(array.dtype).max)


def roundings_of(dag: ComputeDAG) -> tuple[int, tuple[str, ...]]:
    """The terms of consecutive sums and products in a graph, and the float types that it rounds to."""
    terms, types = 1, set[str]()
    for op in dag.ops:
        if not isinstance(op, ComputeOp):
            types.update(op.dtypes if isinstance(op, ExternOp) else ())
            continue
        if isinstance(op.body, Reduce) and op.body.combiner not in ("max", "min"):
            terms += math.prod(axis.extent for axis in op.reduce_axes)
            types.update(op.dtypes)
        types.update(node.dtype for node in parts(op.body) if isinstance(node, Binary | Call | Cast))
    return terms, tuple(sorted(filter(is_float, types)))


def _widen(array: Array) -> Array:
    """Floats of 16 bits or less as float32, so that differences are not rounded; integers below a byte as bytes."""
    dtype = array.dtype.name
    return array.astype(np.float32 if dtype in HALVES else arithmetic_type(dtype), copy=False)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected values of an output, and each element's tolerance; narrower floats are held as float32."""

    name: str
    values: Array
    allowed: Array

    @classmethod
    def of(cls, name: str, values: Array, terms: int = 1, types: Sequence[str] = (), factor: float = 1.0) -> "Expected":
        """Allow for sums of `terms` in another order, and rounding to `types`; nothing for integers.

        Sums are kept in float32 at least and rounded to 16 bits once, so that their length counts only for the wide
        type. The allowance is relative to the largest element, since terms may cancel; a fixed part covers exp, tanh
        and similar functions.
        """
        types, values = (values.dtype.name, *types), _widen(values)
        if not is_float(values.dtype.name):
            return cls(name, values, np.zeros(values.shape, np.int8))
        finite = np.abs(values[np.isfinite(values)])
        scale = float(finite.max()) if finite.size else 0.0
        # Probabilistic error bound of a sum of n terms (Higham and Mary, "A new approach to probabilistic rounding
        # error analysis", 2019, theorem 2.4): lambda * sqrt(n) * u, off with a probability of 2 exp(-lambda^2 / 2).
        # `epsilon` is 2 u, so lambda is 12: tensor cores truncate where others round.
        wide = max(epsilon(sum_type(dtype)) for dtype in types)
        relative = _STEPS * max(map(epsilon, types)) + wide * (32.0 + 6.0 * math.sqrt(terms))
        relative = min(factor * min(relative, _MOST), _MOST_SCALED)
        allowed = np.where(np.isfinite(values), relative * (np.abs(values, dtype=np.float64) + scale), 0.0)
        return cls(name, values, allowed.astype(values.dtype))

    def mismatch(self, actual: Array) -> str:
        """The differences of `actual`, as text; empty if there are none."""
        actual = _widen(actual)
        if not is_float(actual.dtype.name):
            wrong = actual != self.values
            if not wrong.any():
                return ""
            error = np.abs(actual.astype(np.float64) - self.values.astype(np.float64))
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(actual - self.values)
                # The usual case, without the masks for NaN and infinity below.
                if (error <= self.allowed).all():
                    return ""
                is_equal = (actual == self.values) | (np.isnan(actual) & np.isnan(self.values))  # infinities and NaN
                error = np.where(is_equal, 0.0, error)
            # Negated "<=" and not ">": a comparison with NaN is false, so a NaN counts as wrong.
            wrong = ~(error <= self.allowed)
            if not wrong.any():
                return ""
        return self._describe(actual, wrong, error)

    def _describe(self, actual: Array, wrong: Array, error: Array) -> str:
        order = np.where(np.isnan(error), np.inf, error)
        worst = tuple(
            int(index) for index in np.unravel_index(int(np.argmax(np.where(wrong, order, -1.0))), wrong.shape)
        )
        relative = float(error[worst]) / max(abs(float(self.values[worst])), 1e-30)
        return (
            f"wrong answer in {self.name}: {int(wrong.sum())} of {wrong.size} elements differ; worst at {worst}: "
            f"expected {float(self.values[worst]):.7g}, got {float(actual[worst]):.7g}; max abs error "
            f"{float(error[worst]):.3g} (allowed {float(self.allowed[worst]):.3g}), max rel error {relative:.3g}"
        )
