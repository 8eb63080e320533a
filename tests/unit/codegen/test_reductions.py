"""Reductions in lanes: every operation, type and length, in fenced buffers."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel, kernel_source
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Fuse, Reorder, Rfactor, Split
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.fenced import fenced


def computed(dag: ComputeDAG, values: list[np.ndarray], vector_bytes: int = 64) -> np.ndarray:
    task = SearchTask("t", dag, Target.host(), HardwareParams(1, vector_unit_bytes=vector_bytes))
    assert ".part0" in kernel_source(task, (), "loops")
    artifact = build_kernel(task, (), "kernel")
    return fenced(artifact, values)


def of_rows(combiner: str, dtype: str, length: int) -> tuple[Tensor, Tensor]:
    x, k = te.placeholder((3, length), dtype, "x"), te.reduce_axis(length, "k")
    return x, te.compute((3,), lambda i: getattr(te, combiner)(x[i, k], k), "y")


def sample(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype.startswith("float"):
        return rng.uniform(0.9, 1.1, shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("combiner", ["sum", "max", "min", "prod"])
def test_every_operation_and_type(combiner: str, dtype: str) -> None:
    x, y = of_rows(combiner, dtype, 203)
    values = sample(dtype, x.shape)
    expected = evaluate([y], {x: values})[0]
    found = computed(ComputeDAG([x, y]), [values])
    np.testing.assert_allclose(found, expected, rtol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("length", [8, 9, 13, 16, 31, 33, 64, 65, 100, 127, 128, 129, 200])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_sums_of_rows_of_every_length_are_exact(length: int, vector_bytes: int) -> None:
    x, y = of_rows("sum", "int32", length)
    values = sample("int32", x.shape)
    np.testing.assert_array_equal(computed(ComputeDAG([x, y]), [values], vector_bytes), values.sum(1))


def test_an_inlined_producer_and_a_second_row() -> None:
    x, w, k = te.placeholder((3, 77), name="x"), te.placeholder((77,), name="w"), te.reduce_axis(77, "k")
    y = te.compute((3,), lambda i: te.sum(te.exp(x[i, k] - x[i, 0]) * w[k], k), "y")
    values = [
        np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32") for seed, shape in ((0, (3, 77)), (1, 77))
    ]
    expected = evaluate([y], dict(zip([x, w], values, strict=True)))[0]
    np.testing.assert_allclose(computed(ComputeDAG([x, w, y]), values), expected, rtol=2e-5)


def test_the_inner_part_of_two_fused_axes_is_read_by_whole_vectors() -> None:
    x, i, j = te.placeholder((8, 256), name="x"), te.reduce_axis(8, "i"), te.reduce_axis(256, "j")
    dag = ComputeDAG([x, te.compute((1,), lambda _: te.sum(x[i, j], [i, j]), "y")])
    task = SearchTask("t", dag, Target.host(), HardwareParams(1, vector_unit_bytes=32))
    factored = (Fuse(1, (1, 2)), Split(1, 1, 2048, (32,)), Rfactor(1, 2, 1))
    steps = (*factored, Reorder(1, (0, 2, 1)), Annotate(1, 2, Annotation.VECTORIZE))
    assert "x[(i_j__0.s1 // 8), (((i_j__0.s1 % 8) * 32) + i_j__1.s1)]" in kernel_source(task, steps, "loops")
    assert "insertelement" not in kernel_source(task, steps, "llvm")
    values = np.random.default_rng(0).uniform(-1, 1, x.shape).astype("float32")
    found = fenced(build_kernel(task, steps, "kernel"), [values])
    np.testing.assert_allclose(found, [values.sum(dtype="float64")], rtol=1e-4)


def test_a_sum_of_narrow_values_is_as_wide_as_its_result() -> None:
    x, k = te.placeholder((3, 150), "int8", "x"), te.reduce_axis(150, "k")
    y = te.compute((3,), lambda i: te.sum(te.cast("int32", x[i, k]), k), "y")
    values = np.full((3, 150), 127, np.int8)
    np.testing.assert_array_equal(computed(ComputeDAG([x, y]), [values]), [127 * 150] * 3)
