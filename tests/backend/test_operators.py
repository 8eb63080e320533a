"""Every operator as untuned machine code, against the NumPy meaning of its tensor expression."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from tests.support.operator_cases import CASES, MAX_POOL, TYPED_CASES, Attrs, Shapes, lowered, random_arrays


def _check(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> None:
    tensor, tensors, _ = lowered(op, arrays, attrs)
    task = SearchTask("task", ComputeDAG([*tensors, tensor]), Target.host(), HardwareParams(num_cores=2))
    kernel = load_kernels([build_kernel(task, default_steps(task.dag), "kernel")])["kernel"]
    found = aligned_array(tensor.shape, tensor.dtype)
    kernel.bind([*map(aligned_copy, arrays), found], threads=2)()
    (wanted,) = evaluate([tensor], dict(zip(tensors, arrays, strict=True)))
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "shapes", "attrs"), CASES)
def test_compiled_operator_matches_numpy_in_float32(op: str, shapes: Shapes, attrs: Attrs) -> None:
    _check(op, random_arrays(shapes), attrs)


@pytest.mark.parametrize(("op", "arrays", "attrs"), TYPED_CASES)
def test_compiled_operator_matches_numpy_for_other_operands(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> None:
    _check(op, arrays, attrs)


@pytest.mark.parametrize("op", ["log", "sqrt", "pow"])
def test_operators_of_positive_numbers(op: str) -> None:
    rng = np.random.default_rng(3)
    operands = [rng.uniform(0.1, 4, (3, 21)).astype(np.float32) for _ in range(2 if op == "pow" else 1)]
    _check(op, operands, {})


@pytest.mark.parametrize("op", ["exp", "tanh", "sigmoid", "erf", "round", "reduce_sum", "dense"])
def test_compiled_operator_matches_numpy_in_float64(op: str) -> None:
    rng = np.random.default_rng(4)
    shapes = [(5, 9), (9, 21)] if op == "dense" else [(3, 40)]
    attrs: Attrs = {"axes": (1,), "keepdims": False} if op == "reduce_sum" else {}
    _check(op, [rng.standard_normal(shape) for shape in shapes], attrs)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_compiled_integer_arithmetic_matches_numpy(op: str, dtype: str) -> None:
    left, right = np.array([-7, 7, 5, -8], dtype), np.array([2, -2, 5, -3], dtype)
    _check(op, [left, right], {})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("abs", {}),
        ("relu", {}),
        ("cast", {"dtype": "float32"}),
        ("max_pool2d", MAX_POOL),
        ("reduce_max", {"axes": (1,), "keepdims": False}),
        ("reduce_mean", {"axes": (1, 2), "keepdims": True}),
    ],
)
def test_compiled_pools_of_integers_match_numpy(op: str, attrs: Attrs, dtype: str) -> None:
    _check(op, [np.random.default_rng(5).integers(-50, 9, (1, 7, 7, 18)).astype(dtype)], attrs)
