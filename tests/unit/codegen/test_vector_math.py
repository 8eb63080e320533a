"""Our own float32 functions over the whole range of float32, against float64; the other types beside them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.codegen.intrinsics import call_instruction
from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.values import Value
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.runtime.buffers import FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Step
from retune.compiler.schedule.task import SearchTask

Floats = NDArray[Any]
Function = Callable[[Floats], Floats]

COUNT = 1 << 20
STRIDE = 4099
"""Bits between the sampled float32: about 2000 samples of every exponent and sign."""
VECTOR = (Annotate(1, 0, Annotation.VECTORIZE),)
MOST_ULP = 4.0
OVERFLOW = 2.0**128


def compiled(name: str, dtype: str, count: int, steps: tuple[Step, ...] = VECTOR, width: int = 64) -> Function:
    """The te function `name` over `count` numbers, as a kernel for registers of `width` bytes."""
    x = te.placeholder((count,), dtype, "x")
    y = te.compute((count,), lambda i: getattr(te, name)(x[i]), "y")
    task = SearchTask("t", ComputeDAG([x, y]), Target.host(), HardwareParams(1, width))
    kernel = load_kernels([build_kernel(task, steps, "kernel")])["kernel"]
    fences = [FencedArray((count,), dtype), FencedArray((count,), y.dtype)]
    call = kernel.bind([fence.array for fence in fences], 1)

    def run(values: Floats) -> Floats:
        fences[0].array[...] = values
        call()
        assert not any(fence.damage() for fence in fences)
        return fences[1].array.copy()

    return run


def erf(x: Floats) -> Floats:
    """The error function in float64: term by term where two terms do, one where it rounds to one."""
    size = np.abs(x)
    result = np.where(size < 1, 2 / math.sqrt(math.pi) * x * (1 - x * x / 3), np.copysign(1.0, x))
    between = (size >= 2.0**-14) & (size < 7)
    result[between] = np.vectorize(math.erf, otypes=[np.float64])(x[between])
    result[np.isnan(x)] = np.nan
    return result


def sigmoid(x: Floats) -> Floats:
    decay = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, decay, 1.0) / (1 + decay))


REFERENCES: dict[str, Function] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
MEASURED_ULP = {"exp": 1.1, "log": 1.0, "tanh": 2.6, "sigmoid": 2.7, "erf": 2.5, "rsqrt": 1.5}
"""What the functions keep to today; they promise four."""


def reference(name: str, x: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return REFERENCES[name](x.astype(np.float64))


def float32_reference(name: str, x: Floats) -> Floats:
    """As `reference`, but an `exp` that is subnormal in float32 is 0."""
    result = reference(name, x)
    return np.where(result < LEAST, 0.0, result) if name in ("exp", "sigmoid") else result


def ulp_errors(got: Floats, exact: Floats) -> Floats:
    """Distances in float32 ulp, overflow counted as 2**128; infinite where only one is a NaN."""
    with np.errstate(invalid="ignore"):
        wide = np.clip(got.astype(np.float64), -OVERFLOW, OVERFLOW)
        exact = np.clip(exact, -OVERFLOW, OVERFLOW)
        _, exponent = np.frexp(exact)
        errors: Floats = np.ldexp(np.abs(wide - exact), 24 - np.maximum(exponent, -125))
    errors[np.isnan(got) & np.isnan(exact)] = 0
    errors[np.isnan(got) != np.isnan(exact)] = np.inf
    return errors


def sample() -> Floats:
    """Float32 of every sign and exponent, subnormals, infinities and NaN."""
    return (np.arange(COUNT, dtype=np.uint32) * np.uint32(STRIDE)).view(np.float32)


@pytest.mark.parametrize("name", REFERENCES)
def test_four_ulp_over_the_whole_range(name: str) -> None:
    x = sample()
    errors = ulp_errors(compiled(name, "float32", COUNT)(x), float32_reference(name, x))
    worst = int(errors.argmax())
    assert errors[worst] <= min(MOST_ULP, MEASURED_ULP[name]), f"{name}({x[worst]!r}) is {errors[worst]:.2f} ulp off"


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_four_ulp_for_every_float32(name: str) -> None:
    run = compiled(name, "float32", COUNT)
    for first in range(0, 1 << 32, COUNT):
        x = np.arange(first, first + COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
        errors = ulp_errors(run(x), float32_reference(name, x))
        worst = int(errors.argmax())
        assert errors[worst] <= MOST_ULP, f"{name}({x[worst]!r}) is {errors[worst]:.2f} ulp off"


@pytest.mark.parametrize("width", [32, 64])
def test_exp_is_zero_exactly_where_its_value_is_subnormal(width: int) -> None:
    bits = np.float32(math.log(LEAST)).view(np.uint32) + np.arange(-1000, 1000).astype(np.uint32)
    x = np.concatenate([bits.view(np.float32), np.linspace(-150, -80, 2000, dtype=np.float32)])
    got = compiled("exp", "float32", x.size, width=width)(x)
    np.testing.assert_array_equal(got == 0, np.exp(x.astype(np.float64)) < LEAST)
    assert not ((got > 0) & (got < LEAST)).any()


@pytest.mark.parametrize("name", REFERENCES)
def test_scalars_and_odd_widths_give_the_same_bits(name: str) -> None:
    x = sample()[:: COUNT // 61][:61]
    for steps in ((), VECTOR):
        single = compiled(name, "float32", 61, steps)(x)
        np.testing.assert_array_equal(single, compiled(name, "float32", COUNT)(np.resize(x, COUNT))[:61])


TINY, LEAST, LARGEST = 2.0**-149, 2.0**-126, float(np.finfo(np.float32).max)
INF, NAN = math.inf, math.nan
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (TINY, 1.0), (88.73, INF), (-104.0, 0.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-INF, NAN), (NAN, NAN), (-1.0, NAN), (-TINY, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (TINY, TINY), (-LEAST, -LEAST)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (-LARGEST, 0.0), (TINY, 0.5)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (TINY, TINY), (-LARGEST, -1.0)],
    "rsqrt": [(1.0, 1.0), (0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN), (LEAST, 2.0**63)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_vector_math_returns_special_values(name: str, dtype: str) -> None:
    pairs = [pair for pair in SPECIAL[name] if dtype == "float32" or pair[0] not in (88.73, -104.0, TINY, -LEAST)]
    x, expected = (np.resize(np.array(side, dtype), 32) for side in zip(*pairs, strict=True))
    for steps in ((), VECTOR):
        got = compiled(name, dtype, 32, steps)(x)
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(expected)]))


def test_results_stay_within_their_bounds() -> None:
    x = sample()
    x = x[~np.isnan(x)]
    for name, low, high in (("tanh", -1, 1), ("erf", -1, 1), ("sigmoid", 0, 1), ("exp", 0, np.inf)):
        got = compiled(name, "float32", x.size)(x)
        assert got.min() >= low
        assert got.max() <= high


def test_odd_functions_are_exactly_odd() -> None:
    x = sample()
    for name in ("tanh", "erf"):
        run = compiled(name, "float32", COUNT)
        np.testing.assert_array_equal(run(-x), -run(x))


@pytest.mark.parametrize("name", REFERENCES)
def test_float64_is_as_good_as_its_library(name: str) -> None:
    x = np.random.default_rng(0).uniform(-750, 750, 4001) * np.logspace(-12, 0, 4001)
    x = np.abs(x) if name in ("log", "rsqrt") else x
    got = compiled(name, "float64", x.size)(x)
    np.testing.assert_allclose(got, reference(name, x), rtol=2e-15, atol=1e-320)


@pytest.mark.parametrize("name", [*REFERENCES, "sqrt"])
def test_float16_is_rounded_from_float32(name: str) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = compiled(name, "float16", x.size)(x)
    with np.errstate(all="ignore"):
        exact = np.sqrt(x.astype(np.float64)) if name == "sqrt" else reference(name, x)
        expected = exact.astype(np.float16)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    steps = np.abs(got[finite].view(np.int16).astype(int) - expected[finite].view(np.int16).astype(int))
    assert steps.max() <= 1
    assert (steps > 0).mean() < 1e-3


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("name", [*REFERENCES, "sqrt"])
def test_bfloat16_becomes_valid_code(name: str, lanes: int) -> None:
    """NumPy has no such type to compute with: the code is compiled, not run."""
    lines: list[str] = []

    def emit(instruction: str, lanes: int, dtype: str) -> Value:
        lines.append(f"  %v{len(lines)} = {instruction}")
        return Value(f"%v{len(lines) - 1}", lanes, dtype)

    result = call_instruction(emit, name, [Value("%x", lanes, "bfloat16")], "bfloat16")
    kind = llvm_type("bfloat16", lanes)
    function = [f"define {kind} @f({kind} %x) {{", *lines, f"  ret {result.typed}", "}"]
    assert compile_module("\n".join(function), Target.host())


@pytest.mark.parametrize("name", ["exp", "sigmoid"])
def test_narrow_registers_are_as_exact_as_wide_ones(name: str) -> None:
    x = sample()
    errors = ulp_errors(compiled(name, "float32", COUNT, width=32)(x), float32_reference(name, x))
    assert errors.max() <= MEASURED_ULP[name]


def test_only_wide_registers_look_up_and_scale_by_one_instruction() -> None:
    x = te.placeholder((64,), name="x")
    dag = ComputeDAG([x, te.compute((64,), lambda i: te.exp(x[i]), "y")])
    wide, narrow = (
        kernel_source(SearchTask("t", dag, Target(cpu=cpu), HardwareParams(1, width)), VECTOR, "asm")
        for cpu, width in (("znver5", 64), ("haswell", 32))
    )
    assert "vscalefps" in wide
    assert "vpermps" in wide
    assert "ldexp" not in narrow
