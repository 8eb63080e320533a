"""The default schedule of attention: the scores of a block of rows at a time, where rows can be divided."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import HALVES
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build, build_kernel
from retune.compiler.ops import OPS
from retune.compiler.runtime.buffers import FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.row_blocks import find_row_blocks
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.task import SearchTask
from tests.support.attention import attention, attention_of

SIZES = [
    (8, 1, 8, 16),
    (24, 2, 40, 16),
    (49, 3, 49, 32),
    (60, 2, 270, 20),
    (30, 1, 1500, 64),
    (96, 4, 7, 32),
    (197, 2, 33, 16),
    (1, 4, 64, 32),
    (6, 2, 130, 17),
    (100, 2, 101, 48),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("threads", [1, 3])
def test_attention_is_right(sizes: tuple[int, int, int, int], masked: bool, threads: int) -> None:
    dag = attention(*sizes, masked=masked)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(tensor.shape, dtype=np.float32) for tensor in dag.inputs]
    function = build(dag, default_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(*given), result, threads=threads)
    np.testing.assert_allclose(np.array(result), attention_of(*given), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("width", [32, 64])
def test_attention_of_halves_is_right(sizes: tuple[int, int, int, int], dtype: str, width: int) -> None:
    dag = attention(*sizes, masked=True, dtype=dtype)
    hardware = HardwareParams(num_cores=3, vector_unit_bytes=width, vector_registers=width // 2)
    rng = np.random.default_rng(0)
    fences = [FencedArray(tensor.shape, tensor.dtype) for tensor in (*dag.inputs, *dag.outputs)]
    for fence in fences[:-1]:
        fence.array[...] = rng.standard_normal(fence.array.shape).astype(fence.array.dtype)
    task = SearchTask("attention", dag, Target.host(), hardware)
    kernel = load_kernels([build_kernel(task, default_steps(dag, hardware), "attention")])["attention"]
    kernel.bind([fence.array for fence in fences], 3)()
    assert not any(fence.damage() for fence in fences)
    *given, result = (fence.array.astype(np.float64) for fence in fences)
    np.testing.assert_allclose(result, attention_of(*given), rtol=2.0 ** (-11 if dtype == "float16" else -8), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_rows_of_a_block_share_converted_strips(dtype: str) -> None:
    dag = attention(96, 4, 128, 32, dtype=dtype)
    hardware = HardwareParams(num_cores=2, vector_unit_bytes=64, vector_registers=32)
    text = str(infer_bounds(replay(dag, default_steps(dag, hardware))))
    parts = ("q.local = ", "for j.0 ", "k.local = ", "products = ", "shares = ", "v.local = ", "result = ")
    if dtype == "float32":
        assert ".local" not in text
    else:
        assert [*parts] == sorted(parts, key=text.index)


def test_all_is_computed_inside_the_rows_of_a_block() -> None:
    dag = attention(48, 2, 400, 32)
    lines = str(replay(dag, default_steps(dag))).splitlines()[1:]
    assert [line for line in lines if not line.startswith(" ")] == ["parallel h@i.0@ (0,16)"]
    assert [line.split(" = ")[0].strip() for line in lines if "=" in line][-2:] == ["shares", "result"]


def test_the_scores_of_rows_that_no_tile_divides_are_computed_in_tiles_of_several_rows() -> None:
    dag = attention(49, 64, 49, 32)
    hardware = HardwareParams(num_cores=2, vector_unit_bytes=64, vector_registers=32)
    lines = str(infer_bounds(replay(dag, default_steps(dag, hardware)))).splitlines()
    (place,) = (number for number, line in enumerate(lines) if "products = " in line)
    assert [line.strip() for line in lines[place - 2 : place]] == ["unroll i.1 (0,5)", "vectorize j.1 (0,49)"]


@pytest.mark.parametrize(("sizes", "rows"), [((64, 1, 40, 16), 4), ((640, 8, 1024, 64), 40), ((1500, 6, 1500, 64), 30)])
def test_a_block_fits_a_cache_and_threads_share_the_blocks(sizes: tuple[int, int, int, int], rows: int) -> None:
    found = find_row_blocks(attention(*sizes))
    assert found is not None
    assert found.rows == rows


@pytest.mark.parametrize("sizes", [(1, 4, 64, 32), (197, 2, 64, 32), (64, 2, 1 << 17, 16)])
def test_rows_that_no_block_divides_or_fits_are_not_found(sizes: tuple[int, int, int, int]) -> None:
    assert find_row_blocks(attention(*sizes)) is None


Make = Callable[[te.Tensor, te.Tensor], list[te.Tensor]]


def _shares(scores: te.Tensor) -> te.Tensor:
    shares = OPS["softmax"].tensor([scores], {"axis": 1}, name="shares")
    assert isinstance(shares, te.Tensor)
    return shares


def _result(shares: te.Tensor, v: te.Tensor) -> te.Tensor:
    c = te.reduce_axis(v.shape[0], "c")
    return te.compute((shares.shape[0], v.shape[1]), lambda i, d: te.sum(shares[i, c] * v[c, d], c), "result")


def _read_twice(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    powers = te.compute(products.shape, lambda *i: te.exp(products[i]), "powers")
    scores = te.compute(products.shape, lambda *i: powers[i] / (powers[i] + products[i] * products[i]), "scores")
    return [_result(_shares(scores), v)]


def _of_columns(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    shares, c = _shares(products), te.reduce_axis(products.shape[0], "c")
    return [te.compute((products.shape[1], 16), lambda i, d: te.sum(shares[c, i] * v[c, d], c), "result")]


def _shown(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    shares = _shares(products)
    return [shares, _result(shares, v)]


def _in_float64(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    shares = _shares(te.compute(products.shape, lambda *i: te.cast("float64", products[i]), "wide"))
    return [_result(te.compute(products.shape, lambda *i: te.cast("float32", shares[i]), "back"), v)]


def _with_made_values(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    return [_result(_shares(products), te.compute(v.shape, lambda *i: te.exp(v[i]), "values"))]


def _with_the_largest(products: te.Tensor, v: te.Tensor) -> list[te.Tensor]:
    i, j = te.reduce_axis(products.shape[0], "i"), te.reduce_axis(products.shape[1], "j")
    largest = te.compute((1,), lambda _: te.max(products[i, j], [i, j]), "largest")
    scores = te.compute(products.shape, lambda *at: products[at] - largest[0], "scores")
    return [_result(_shares(scores), v)]


@pytest.mark.parametrize("make", [_read_twice, _of_columns, _shown, _in_float64, _with_made_values, _with_the_largest])
def test_rows_that_need_more_than_themselves_are_not_found(make: Make) -> None:
    q, k, r = te.placeholder((480, 16), name="q"), te.placeholder((16, 480), name="k"), te.reduce_axis(16, "r")
    v = te.placeholder((480, 16), name="v")
    products = te.compute((480, 480), lambda i, j: te.sum(q[i, r] * k[r, j], r), "products")
    dag = ComputeDAG([q, k, v, *make(products, v)])
    assert find_row_blocks(dag) is None
    build(dag, default_steps(dag))


def test_a_single_row_of_a_batch_is_not_found() -> None:
    q, k, r = te.placeholder((8, 6), name="q"), te.placeholder((8, 6, 40), name="k"), te.reduce_axis(6, "r")
    products = te.compute((8, 40), lambda b, j: te.sum(q[b, r] * k[b, r, j], r), "products")
    v = te.placeholder((40, 16), name="v")
    dag = ComputeDAG([q, k, v, _result(_shares(products), v)])
    assert find_row_blocks(dag) is None
    build(dag, default_steps(dag))


def test_a_single_product_and_two_in_a_row_are_not_found() -> None:
    a, b, r = te.placeholder((64, 32), name="a"), te.placeholder((32, 32), name="b"), te.reduce_axis(32, "r")
    one = te.compute((64, 32), lambda i, j: te.sum(a[i, r] * b[r, j], r), "one")
    again = te.reduce_axis(32, "s")
    two = te.compute((64, 32), lambda i, j: te.sum(one[i, again] * b[again, j], again), "two")
    assert find_row_blocks(ComputeDAG([a, b, one])) is None
    assert find_row_blocks(ComputeDAG([a, b, two])) is None
