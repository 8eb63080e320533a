"""Powers of float32 over the whole range, against float64; special values as in C."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.runtime.buffers import FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Step
from retune.compiler.schedule.task import SearchTask

Floats = NDArray[Any]
INF, NAN = math.inf, math.nan
OVERFLOW = 2.0**128


def power(base: Floats, exponent: Floats, dtype: str = "float32", vector: bool = True) -> Floats:
    """A kernel's `base ** exponent`, element by element."""
    count = base.size
    x, y = te.placeholder((count,), dtype, "x"), te.placeholder((count,), dtype, "y")
    z = te.compute((count,), lambda i: te.pow(x[i], y[i]), "z")
    steps: tuple[Step, ...] = (Annotate(2, 0, Annotation.VECTORIZE),) if vector else ()
    task = SearchTask("t", ComputeDAG([x, y, z]), Target.host(), HardwareParams(1))
    fences = [FencedArray((count,), dtype) for _ in range(3)]
    fences[0].array[...], fences[1].array[...] = base, exponent
    kernel = load_kernels([build_kernel(task, steps, "kernel")])["kernel"]
    kernel.bind([fence.array for fence in fences], 1)()
    assert not any(fence.damage() for fence in fences)
    return fences[2].array.copy()


def largest_ulp(got: Floats, base: Floats, exponent: Floats) -> float:
    with np.errstate(all="ignore"):
        exact = np.clip(np.power(base.astype(np.float64), exponent.astype(np.float64)), -OVERFLOW, OVERFLOW)
        wide = np.clip(got.astype(np.float64), -OVERFLOW, OVERFLOW)
        _, place = np.frexp(exact)
        errors = np.ldexp(np.abs(wide - exact), 24 - np.maximum(place, -125))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    return float(np.nanmax(errors))


def test_one_ulp_for_results_of_every_size() -> None:
    """Bases of every exponent, with exponents that lead to every power of two of the result."""
    rng = np.random.default_rng(0)
    count = 1 << 20
    base = rng.integers(1, 0x7F800000, count, dtype=np.int64).astype(np.uint32).view(np.float32)
    logarithm = np.log2(base.astype(np.float64))
    exponent = (rng.uniform(-155, 130, count) / np.where(logarithm == 0, 1, logarithm)).astype(np.float32)
    assert largest_ulp(power(base, exponent), base, exponent) <= 1


def test_one_ulp_for_bases_near_one() -> None:
    rng = np.random.default_rng(1)
    base = (1 + rng.uniform(-1e-3, 1e-3, 1 << 18)).astype(np.float32)
    exponent = rng.uniform(-1e5, 1e5, base.size).astype(np.float32)
    assert largest_ulp(power(base, exponent), base, exponent) <= 1


def test_any_bits_at_all() -> None:
    rng = np.random.default_rng(2)
    base, exponent = (rng.integers(0, 1 << 32, 1 << 18).astype(np.uint32).view(np.float32) for _ in range(2))
    assert largest_ulp(power(base, exponent), base, exponent) <= 1


def test_negative_bases_of_whole_exponents() -> None:
    rng = np.random.default_rng(3)
    base = -rng.uniform(0.5, 2, 4099).astype(np.float32)
    exponent = rng.integers(-60, 60, base.size).astype(np.float32)
    assert largest_ulp(power(base, exponent), base, exponent) <= 1


SIMPLE = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 16777218.0, -1073741824.0, 1e-45, 3e38)
SPECIAL = (*SIMPLE, INF, -INF, NAN)


@pytest.mark.parametrize("vector", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_are_those_of_c(dtype: str, vector: bool) -> None:
    pairs = np.array([(x, y) for x in SPECIAL for y in SPECIAL], dtype)
    base, exponent = pairs[:, 0].copy(), pairs[:, 1].copy()
    with np.errstate(all="ignore"):
        expected = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(dtype)
    got = power(base, exponent, dtype, vector)
    np.testing.assert_allclose(got, expected, rtol=2e-7)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_float16_powers_are_rounded_from_float32() -> None:
    rng = np.random.default_rng(4)
    base, exponent = rng.uniform(0.1, 4, 999).astype(np.float16), rng.uniform(-3, 3, 999).astype(np.float16)
    expected = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(power(base, exponent, "float16"), expected, rtol=1e-3)


def test_a_square_is_a_product() -> None:
    x = te.placeholder((3,), name="x")
    assert te.pow(x[0], 2) == x[0] * x[0]
