"""The float64 functions of GPUs, run on this processor: against more precise ones of NumPy, over the whole range."""

import ctypes
import math
import operator
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.codegen.device_library import FUNCTIONS, REMAINDER, definitions

Floats = NDArray[Any]
COUNT = 20_000
PRECISE = np.finfo(np.longdouble).nmant > 60
"""Whether a long double has the bits to tell."""
OVERFLOW = np.longdouble(2.0) ** 1024
MEASURED_ULP = {
    "exp": 1.0,
    "log": 0.85,
    "pow": 1.3,
    "tanh": 2.7,
    "erf": 1.1,
    "sin": 0.8,
    "cos": 0.8,
    "tan": 2.2,
    "asin": 1.8,
    "acos": 1.1,
    "atan": 2.0,
    "sinh": 2.7,
    "cosh": 2.7,
    "asinh": 1.9,
    "acosh": 2.4,
    "atanh": 1.9,
}
"""What the functions keep to today; they promise three."""
REFERENCES: dict[str, Callable[..., Any]] = {
    "pow": np.power,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    **{name: getattr(np, name) for name in ("exp", "log", "tanh", "sin", "cos", "tan", "sinh", "cosh")},
}
ODD = [0.0, 1.0, 0.5, 2.0, 5e-324, 2.0**-1022, 1.7e308, math.inf, math.nan, 710.0, 1e22, math.pi / 4, 3.0, 2.5]
ODD += [6381956970095103 * 2.0**797, math.nextafter(math.pi / 4, 1), 4503599627370497.0]
ODD += list(map(operator.neg, ODD))

_LOOP = """define void @{name}(ptr %x, ptr %y, ptr %z, i64 %count) {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %px = getelementptr double, ptr %x, i64 %i
  %py = getelementptr double, ptr %y, i64 %i
  %pz = getelementptr double, ptr %z, i64 %i
  %a = load double, ptr %px
  %b = load double, ptr %py
  %found = call double @own.{name}({args})
  store double %found, ptr %pz
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %head, label %done
done:
  ret void
}}"""


@pytest.fixture(name="engine", scope="module")
def _engine() -> Any:
    """All functions, each in a loop over arrays, as code for this processor."""
    two = {"pow", REMAINDER}
    loops = [
        _LOOP.format(name=name, args="double %a, double %b" if name in two else "double %a")
        for name in (*FUNCTIONS, REMAINDER)
    ]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join([*definitions("\n".join(loops)), *loops]))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def run(engine: Any, name: str, x: Floats, y: Floats) -> Floats:
    """A function of every element."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(engine.get_function_address(name))
    x, y, found = np.ascontiguousarray(x), np.ascontiguousarray(y), np.empty(x.shape)
    call(x.ctypes.data, y.ctypes.data, found.ctypes.data, x.size)
    return found


def ulp_errors(got: Floats, exact: Floats) -> Floats:
    """Distances in float64 ulp, overflow counted as 2**1024; infinite where only one is a NaN."""
    wide, exact = np.clip(got.astype(np.longdouble), -OVERFLOW, OVERFLOW), np.clip(exact, -OVERFLOW, OVERFLOW)
    _, exponent = np.frexp(exact)
    errors: Floats = np.ldexp(np.abs(wide - exact), 53 - np.maximum(exponent, -1021))
    errors[np.isnan(got) & np.isnan(exact)] = 0
    errors[np.isnan(got) != np.isnan(exact)] = np.inf
    return errors


def samples(seed: int) -> Floats:
    """Float64 of every exponent, of usual sizes, near one, and odd ones."""
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 1 << 64, COUNT, dtype=np.uint64).view(np.float64)
    usual = [rng.uniform(-1, 1, COUNT), rng.uniform(-10, 10, COUNT), rng.uniform(-750, 750, COUNT)]
    return np.concatenate([anything, *usual, 1 + rng.normal(0, 1e-3, COUNT), rng.uniform(0.3, 3, COUNT), ODD])


@pytest.mark.skipif(not PRECISE, reason="long doubles are no longer than doubles here")
@pytest.mark.parametrize("name", REFERENCES)
def test_three_ulp_over_the_whole_range(name: str, engine: Any) -> None:
    x, y = samples(0), samples(1)
    with np.errstate(all="ignore"):
        if name == "pow":
            x = np.concatenate([np.abs(x), x, np.repeat(ODD, len(ODD))])
            y = np.concatenate([y, np.rint(y), np.tile(ODD, len(ODD))])
        wide = x.astype(np.longdouble)
        exact = REFERENCES[name](wide, y.astype(np.longdouble)) if name == "pow" else REFERENCES[name](wide)
        errors = ulp_errors(run(engine, name, x, y), exact)
    worst = int(errors.argmax())
    assert errors[worst] <= min(3.0, MEASURED_ULP[name]), f"{name} of {x[worst]!r} and {y[worst]!r}"


def test_the_error_function_is_as_good_as_its_library(engine: Any) -> None:
    x = samples(2)[::7]
    wanted = np.array([math.erf(value) for value in x]).astype(np.longdouble)
    assert ulp_errors(run(engine, "erf", x, x), wanted).max() <= MEASURED_ULP["erf"] + 1


@pytest.mark.parametrize("name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"])
def test_odd_functions_are_exactly_odd(name: str, engine: Any) -> None:
    x = samples(3)
    x = x[~np.isnan(x)]
    found = run(engine, name, x, x)
    np.testing.assert_array_equal(run(engine, name, -x, x), -found)
    zeros = np.array([0.0, -0.0])
    assert np.signbit(run(engine, name, zeros, zeros)).tolist() == [False, True]


def test_remainders_are_exact(engine: Any) -> None:
    x, y = samples(4), samples(5)
    x, y = np.concatenate([x, np.repeat(ODD, len(ODD))]), np.concatenate([y, np.tile(ODD, len(ODD))])
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    found = run(engine, REMAINDER, x, y)
    np.testing.assert_array_equal(found, wanted)
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(wanted[there]))
