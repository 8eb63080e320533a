"""Untuned programs on a GPU: right, and spread over threads that read side by side, however the work is shaped."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default import gpu as default_gpu
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay
from retune.compiler.te.evaluate import evaluate
from tests.support.property.computations import random_computation
from tests.support.property.programs import inputs_of, random_program
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.simt_operators import conv
from tests.support.small_computations import sum_and_peak
from tests.support.workloads import GPU, conv_bn_relu, matmul, softmax


def untuned(dag: ComputeDAG) -> DeviceFunction:
    """The kernels of the default schedule."""
    return lower_for_gpu(replay(dag, default_gpu_steps(dag)), "k", GPU, check=True)


def extents(dag: ComputeDAG) -> list[tuple[int, tuple[int, int]]]:
    """Blocks, and threads along x and y, of every kernel."""
    return [(kernel.grid[0], kernel.block[:2]) for kernel in untuned(dag).kernels]


def assert_right(dag: ComputeDAG) -> None:
    """Executed thread by thread the program computes the definition."""
    values = inputs_of(dag, np.random.default_rng(4))
    function = untuned(dag)
    with np.errstate(all="ignore"):
        wanted = evaluate(dag.outputs, values)
    for one, other in zip(execute(function, [values[each] for each in dag.inputs]), wanted, strict=True):
        half = one.dtype.itemsize == 2
        np.testing.assert_allclose(
            np.asarray(one, np.float64),
            np.asarray(other, np.float64),
            rtol=2e-3 if half else 1e-4,
            atol=2e-2 if half else 1e-5,
            err_msg=str(function),
        )


def lengths(shape: Sequence[int], along: Sequence[int]) -> ComputeDAG:
    """Roots of sums over some axes."""
    x = te.placeholder(shape, name="x")
    terms = {place: te.reduce_axis(shape[place], f"k{place}") for place in along}
    left = [place for place in range(len(shape)) if place not in terms]
    out = tuple(shape[place] for place in left)

    def total(*at: Expr) -> Expr:
        known = {**dict(zip(left, at, strict=True)), **terms}
        point = tuple(known[place] for place in range(len(shape)))
        return te.sum(x[point] * x[point], list(terms.values()))

    found = te.compute(out, total, "total")
    return ComputeDAG([x, te.compute(out, lambda *at: te.sqrt(found[at]), "length")])


def turned_product(n: int, m: int, k: int) -> ComputeDAG:
    """Both factors lie along the sum."""
    a, b, r = te.placeholder((n, k), name="a"), te.placeholder((m, k), name="b"), te.reduce_axis(k, "k")
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[j, r], r), "c")])


CASES: dict[str, tuple[Callable[[], ComputeDAG], list[tuple[int, tuple[int, int]]]]] = {
    "a million terms of one result": (lambda: lengths((1, 1000000), [1]), [(125, (1024, 1)), (1, (32, 1))]),
    "long rows": (lambda: lengths((4, 5000), [1]), [(4, (1024, 1))]),
    "many rows": (lambda: lengths((5000, 64), [1]), [(1250, (32, 4))]),
    "rows of a softmax": (lambda: softmax(512, 1000), [(512, (128, 1)), (512, (128, 1)), (4000, (128, 1))]),
    "images, channels first": (lambda: lengths((1, 2048, 7, 7), [2, 3]), [(512, (32, 4))]),
    "images, channels last": (lambda: lengths((1, 7, 7, 2048), [1, 2]), [(64, (32, 8))]),
    "columns": (lambda: lengths((1000, 96), [0]), [(3, (32, 16))]),
    "a few columns": (lambda: lengths((60, 3), [0]), [(1, (3, 8))]),
    "columns that fill no block": (lambda: lengths((1000, 100), [0]), [(4, (32, 16))]),
    "a row times a matrix": (lambda: matmul(1, 1024, 2048), [(32, (32, 16))]),
    "a large product": (lambda: matmul(512, 512, 512), [(512, (128, 1))]),
    "one of rows that no number divides": (lambda: matmul(509, 512, 512), [(2036, (128, 1))]),
    "a convolution": (lambda: conv((56, 56), (16, 64), 3), [(392, (128, 1))]),
    "a product of rows": (lambda: turned_product(128, 128, 256), [(4096, (32, 4))]),
    "a convolution of few points": (lambda: conv_bn_relu(1, 7, 512, 512, 3, 1, 1), [(784, (32, 4))]),
}
"""Computations, and the kernels that they become."""


@pytest.mark.parametrize("name", CASES)
def test_threads_are_many_and_neighbors_read_neighbors(name: str) -> None:
    make, wanted = CASES[name]
    assert extents(make()) == wanted


def test_every_way_to_spread_a_reduction_computes_the_definition() -> None:
    for dag in (
        lengths((1, 9000), [1]),
        lengths((4, 300), [1]),
        lengths((2050, 40), [1]),
        lengths((300, 96), [0]),
        lengths((60, 3), [0]),
        lengths((200, 100), [0]),
        lengths((2, 30, 5, 7), [0, 2, 3]),
        lengths((9, 8192), [1]),
        softmax(6, 200),
        matmul(3, 40, 70),
        turned_product(5, 7, 90),
        sum_and_peak(3, 200),
    ):
        assert_right(dag)


def test_threads_that_compute_a_few_rows_compute_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_gpu, "_ENOUGH", 1)
    monkeypatch.setattr(default_gpu, "_BUSY", 1)
    product, image, halves = matmul(12, 40, 9), conv((7, 7), (3, 20), 3), matmul(6, 16, 40, "float16")
    for dag, held in ((product, "float32[4, 1]"), (image, "float32[1, 1, 7, 1]"), (halves, "float32[6, 1]")):
        assert f".local: {held}" in str(untuned(dag))
        assert_right(dag)
    values = inputs_of(product, np.random.default_rng(4))
    function = untuned(product)
    found = run_ptx(ptx(function, Target("cuda")), function, [values[each] for each in product.inputs])
    np.testing.assert_allclose(found[0], evaluate(product.outputs, values)[0], rtol=1e-4, atol=1e-5)
    for seed in range(12):
        assert_right(random_computation(np.random.default_rng(seed)))


@pytest.mark.parametrize("seed", range(12))
def test_untuned_programs_of_random_computations_are_right(seed: int) -> None:
    for make in (random_computation, random_program):
        assert_right(make(np.random.default_rng(seed)))


@pytest.mark.parametrize("dag", [lengths((4, 300), [1]), lengths((300, 96), [0]), softmax(6, 200)])
def test_the_ptx_of_untuned_programs_computes_the_definition(dag: ComputeDAG) -> None:
    values = inputs_of(dag, np.random.default_rng(4))
    function = untuned(dag)
    found = run_ptx(ptx(function, Target("cuda")), function, [values[each] for each in dag.inputs])
    np.testing.assert_allclose(found[0], evaluate(dag.outputs, values)[0], rtol=1e-4, atol=1e-5)
