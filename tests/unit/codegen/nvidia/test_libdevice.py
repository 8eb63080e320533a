"""libdevice in the PTX of GPU kernels, executed on this CPU, against more precise functions of NumPy."""

import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.codegen.nvidia import libdevice
from retune.compiler.codegen.nvidia.libdevice import FUNCTIONS
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.values import Value
from retune.compiler.core.errors import TargetError
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import LIBRARY_BINARY, LIBRARY_UNARY, Expr
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Split
from tests.support.ptx.machine import run_ptx
from tests.support.workloads import GPU

Floats = NDArray[Any]
COUNT = 600
THREADS = 256
PRECISE = np.finfo(np.longdouble).nmant > 60
"""Whether a long double has more bits than a float64."""
MEASURED_ULP: dict[str, tuple[float, float]] = {
    "exp": (0.9, 1.7),
    "log": (0.6, 0.9),
    "pow": (1.4, 0.9),
    "tanh": (1.5, 1.9),
    "erf": (1.1, 1.1),
    "sin": (1.4, 1.5),
    "cos": (1.4, 1.5),
    "tan": (1.8, 3.2),
    "asin": (1.9, 1.3),
    "acos": (1.5, 1.3),
    "atan": (1.6, 1.3),
    "sinh": (1.4, 2.6),
    "cosh": (1.3, 2.1),
    "asinh": (2.1, 1.6),
    "acosh": (2.2, 2.0),
    "atanh": (2.4, 3.1),
    "exp2": (1.1, 1.3),
    "expm1": (1.4, 1.4),
    "log2": (1.5, 1.2),
    "log10": (1.7, 2.1),
    "log1p": (1.8, 1.1),
    "atan2": (1.8, 1.8),
    "copysign": (0.0, 0.0),
    "fmod": (0.0, 0.0),
    "hypot": (2.0, 2.0),
}
"""The largest errors in 90,000 samples, of float64 and of float32, and a little more; NVIDIA promises 4 ulp."""
_SAME_NAMES = (
    *("exp", "log", "tanh", "sin", "cos", "tan", "sinh", "cosh"),
    *LIBRARY_UNARY[-5:],
    "copysign",
    "fmod",
    "hypot",
)
REFERENCES: dict[str, Callable[..., Any]] = {
    "pow": np.power,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    **{name: getattr(np, name) for name in _SAME_NAMES},
}
ODD = [0.0, 1.0, 0.5, 2.0, 5e-324, 2.0**-1022, 1.7e308, math.inf, math.nan, 710.0, 1e22, math.pi / 4, 3.0, 2.5]
ODD += [6381956970095103 * 2.0**797, math.nextafter(math.pi / 4, 1), 4503599627370497.0, 2.0**-149, 2.0**-126, 3.4e38]
ODD += list(map(operator.neg, ODD))


def samples(dtype: str, seed: int) -> Floats:
    """Floats of every exponent, of usual sizes, near one, and odd ones."""
    rng = np.random.default_rng(seed)
    bits = np.dtype(dtype).itemsize * 8
    anything = rng.integers(0, 1 << bits, COUNT, dtype=f"uint{bits}").view(dtype)
    usual = [rng.uniform(-1, 1, COUNT), rng.uniform(-10, 10, COUNT), rng.uniform(-750, 750, COUNT)]
    near = [1 + rng.normal(0, 1e-3, COUNT), rng.uniform(0.3, 3, COUNT)]
    with np.errstate(all="ignore"):
        return np.concatenate([part.astype(dtype) for part in (anything, *usual, *near, np.array(ODD))])


def on_gpu(function: Callable[..., Expr], *values: Floats) -> Floats:
    """What the PTX of a function computes of every element."""
    count = values[0].size
    values = tuple(np.resize(array, -(-count // THREADS) * THREADS) for array in values)
    tensors = [te.placeholder(array.shape, str(array.dtype), f"x{number}") for number, array in enumerate(values)]
    out = te.compute(values[0].shape, lambda i: function(*(tensor[i] for tensor in tensors)), "y")
    stage = len(tensors)
    threads = Annotate(stage, 0, Annotation.BLOCK_X), Annotate(stage, 1, Annotation.THREAD_X)
    steps = (Split(stage, 0, values[0].size, (THREADS,)), *threads)
    device = lower_for_gpu(replay(ComputeDAG([*tensors, out]), steps), "k", GPU)
    (found,) = run_ptx(ptx(device, Target("cuda")), device, values)
    return found[:count]


def ulp_errors(got: Floats, exact: Floats) -> Floats:
    """Distances in ulp, overflow counted as the next power of two; infinite where only one is a NaN."""
    kind = np.finfo(got.dtype)
    largest = np.ldexp(exact.dtype.type(1), kind.maxexp)
    wide, exact = np.clip(got.astype(exact.dtype), -largest, largest), np.clip(exact, -largest, largest)
    _, exponent = np.frexp(exact)
    errors: Floats = np.ldexp(np.abs(wide - exact), kind.nmant + 1 - np.maximum(exponent, kind.minexp + 1))
    errors[np.isnan(got) & np.isnan(exact)] = 0
    errors[np.isnan(got) != np.isnan(exact)] = np.inf
    return errors


@pytest.mark.skipif(not PRECISE, reason="long doubles are no longer than doubles here")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_are_at_most_4_ulp_over_the_whole_range(name: str, dtype: str) -> None:
    with np.errstate(all="ignore"):
        values = [samples(dtype, 0)]
        if name in LIBRARY_BINARY:
            values.append(samples(dtype, 1))
        if name == "pow":
            x, y, odd = values[0], samples(dtype, 1), np.array(ODD).astype(dtype)
            values = [np.concatenate([np.abs(x), x, np.repeat(odd, odd.size)])]
            values += [np.concatenate([y, np.rint(y), np.tile(odd, odd.size)])]
        exact = REFERENCES[name](*(array.astype(np.longdouble) for array in values)).astype(np.longdouble)
    errors = ulp_errors(on_gpu(getattr(te, name), *values), exact)
    worst = int(errors.argmax())
    limit = MEASURED_ULP[name][dtype == "float32"]
    assert errors[worst] <= limit, f"{name} of {[array[worst] for array in values]}"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"])
def test_odd_functions_are_exactly_odd(name: str, dtype: str) -> None:
    x = samples(dtype, 3)
    x = np.concatenate([np.zeros(1, dtype), x[~np.isnan(x)]])
    found = on_gpu(getattr(te, name), np.concatenate([x, -x]))
    np.testing.assert_array_equal(found[x.size :], -found[: x.size])
    assert not np.signbit(found[0])
    assert np.signbit(found[x.size])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_remainders_are_exact(dtype: str) -> None:
    x, y = samples(dtype, 4)[::16], samples(dtype, 5)[::16]  # a step for each bit of a quotient of float64
    with np.errstate(all="ignore"):
        wanted = np.mod(x, y)
    found = on_gpu(operator.mod, x, y)
    np.testing.assert_array_equal(found, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(wanted[known]))


def test_functions_of_vectors_are_called_lane_by_lane() -> None:
    lines: list[str] = []

    def emit(instruction: str, lanes: int, dtype: str) -> Value:
        lines.append(instruction)
        return Value(f"%v{len(lines)}", lanes, dtype)

    libdevice.call(emit, "pow", [Value("%x", 2, "float32"), Value("%y", 2, "float32")])
    calls = [line for line in lines if line.startswith("call")]
    assert calls == ["call float @__nv_powf(float %v1, float %v2)", "call float @__nv_powf(float %v5, float %v6)"]
    assert libdevice.declarations("\n".join(calls)) == ["declare float @__nv_powf(float, float)"]


def test_only_kernels_with_math_functions_need_libdevice(monkeypatch: pytest.MonkeyPatch) -> None:
    libdevice._library.cache_clear()
    libdevice._part.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(on_gpu(te.sqrt, x), np.sqrt(x))
    with pytest.raises(TargetError, match=r"need NVIDIA's libdevice: pip install -e '\.\[libdevice\]'"):
        on_gpu(te.exp, x)
