"""The default schedule of attention: the scores of a block of rows at a time, where rows can be divided."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.driver.build import build
from retune.compiler.ops import OPS
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default import default_steps
from retune.compiler.schedule.row_blocks import find_row_blocks
from retune.compiler.schedule.state import replay
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


def test_all_is_computed_inside_the_rows_of_a_block() -> None:
    dag = attention(48, 2, 400, 32)
    lines = str(replay(dag, default_steps(dag))).splitlines()[1:]
    assert [line for line in lines if not line.startswith(" ")] == ["parallel h@i.0@ (0,16)"]
    assert [line.split(" = ")[0].strip() for line in lines if "=" in line][-2:] == ["shares", "result"]


@pytest.mark.parametrize(("sizes", "rows"), [((48, 1, 40, 16), 4), ((640, 8, 1024, 64), 40), ((1500, 6, 1500, 64), 30)])
def test_a_block_fits_a_cache_and_threads_share_the_blocks(sizes: tuple[int, int, int, int], rows: int) -> None:
    found = find_row_blocks(attention(*sizes))
    assert found is not None
    assert found.rows == rows


@pytest.mark.parametrize("sizes", [(1, 4, 64, 32), (197, 2, 64, 32), (64, 2, 1 << 17, 16)])
def test_rows_that_no_block_divides_or_fits_are_not_found(sizes: tuple[int, int, int, int]) -> None:
    assert find_row_blocks(attention(*sizes)) is None


def test_a_block_has_room_for_all_scores_that_are_needed_at_a_time() -> None:
    q, k, v = (
        te.placeholder(shape, name=name) for name, shape in (("q", (480, 16)), ("k", (16, 4000)), ("v", (4000, 16)))
    )
    r, c = te.reduce_axis(16, "r"), te.reduce_axis(4000, "c")
    products = te.compute((480, 4000), lambda i, j: te.sum(q[i, r] * k[r, j], r), "products")
    powers = te.compute(products.shape, lambda *i: te.exp(products[i]), "powers")
    scores = te.compute(products.shape, lambda *i: powers[i] / (powers[i] + products[i] * products[i]), "scores")
    shares = OPS["softmax"].tensor([scores], {"axis": 1}, name="shares")
    dag = ComputeDAG([q, k, v, te.compute((480, 16), lambda i, d: te.sum(shares[i, c] * v[c, d], c), "result")])
    found, plain = find_row_blocks(dag), find_row_blocks(attention(480, 1, 4000, 16))
    assert found is not None
    assert plain is not None
    assert found.rows < plain.rows
    build(dag, default_steps(dag))


def test_a_single_product_and_two_in_a_row_are_not_found() -> None:
    a, b, r = te.placeholder((64, 32), name="a"), te.placeholder((32, 32), name="b"), te.reduce_axis(32, "r")
    one = te.compute((64, 32), lambda i, j: te.sum(a[i, r] * b[r, j], r), "one")
    again = te.reduce_axis(32, "s")
    two = te.compute((64, 32), lambda i, j: te.sum(one[i, again] * b[again, j], again), "two")
    assert find_row_blocks(ComputeDAG([a, b, one])) is None
    assert find_row_blocks(ComputeDAG([a, b, two])) is None
