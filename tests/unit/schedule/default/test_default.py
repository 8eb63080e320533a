"""The default schedule: what is inlined, vectorized, blocked, left naive."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu_cases import GpuCase
from retune.compiler import te
from retune.compiler.core.target import HardwareParams
from retune.compiler.driver.build import build
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default import cpu as default
from retune.compiler.schedule.default import product_tiles
from retune.compiler.schedule.default.cpu import default_steps, reference_steps
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Split
from tests.support.small_computations import matmul


def lines(dag: ComputeDAG, vector_bytes: int = 64) -> list[str]:
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=vector_bytes)
    return [line.strip() for line in str(replay(dag, default_steps(dag, hardware))).splitlines()[1:]]


def test_an_elementwise_chain_is_one_parallel_vector_loop() -> None:
    x = te.placeholder((64, 9, 40), name="x")
    y = te.compute(x.shape, lambda i, j, k: x[i, j, k] + 1.0, "y")
    dag = ComputeDAG([x, te.compute(x.shape, lambda i, j, k: te.maximum(y[i, j, k], 0.0), "z")])
    assert lines(dag) == ["parallel i (0,64)", "for j (0,9)", "vectorize k (0,40)", "z = ..."]


def test_what_is_end_to_end_is_read_where_it_lies() -> None:
    x, y = te.placeholder((64, 40), name="x"), te.placeholder((64, 24), name="y")
    both = te.compute((64, 64), lambda i, j: te.if_then_else(j < 40, x[i, j], y[i, j - 40]), "both")
    dag = ComputeDAG([x, y, te.compute((64, 64), lambda i, j: te.maximum(both[i, j], 0.0), "z")])
    assert lines(dag) == ["parallel i (0,64)", "vectorize j (0,64)", "z = ..."]
    above = te.compute((128, 24), lambda i, j: te.if_then_else(i < 64, y[i, j], y[i - 64, j]), "above")
    dag = ComputeDAG([y, te.compute((128, 24), lambda i, j: te.maximum(above[i, j], 0.0), "z")])
    assert "above = ..." not in lines(dag)
    thin = te.compute((64, 48), lambda i, j: te.if_then_else(j < 40, x[i, j], y[i, j - 40]), "thin")
    dag = ComputeDAG([x, y, te.compute((64, 48), lambda i, j: te.maximum(thin[i, j], 0.0), "z")])
    assert "thin = ..." in lines(dag)
    odd = te.compute((64, 64), lambda i, j: te.if_then_else(j % 2 < 1, x[i, j // 2], y[i, j // 3]), "odd")
    dag = ComputeDAG([x, y, te.compute((64, 64), lambda i, j: te.maximum(odd[i, j], 0.0), "z")])
    assert "odd = ..." in lines(dag)


def test_a_turning_copy_is_blocked() -> None:
    x = te.placeholder((1, 7, 7, 64), name="x")
    dag = ComputeDAG([x, te.compute((1, 64, 7, 7), lambda n, c, h, w: x[n, h, w, c], "turned")])
    assert lines(dag) == [
        "parallel n@c.0@h@w.0@ (0,28)",
        *("for ax0 (None)", "for ax1 (None)", "for ax2 (None)", "vectorize ax3 (None)"),
        "x.local = ...",
        "for c.1 (0,16)",
        "vectorize w.1 (0,7)",
        "turned = ...",
    ]


def test_a_turning_copy_whose_axis_no_usual_block_divides_takes_the_largest_divisor() -> None:
    x = te.placeholder((1, 64, 64, 150), name="x")
    dag = ComputeDAG([x, te.compute((1, 150, 64, 64), lambda n, c, h, w: x[n, h, w, c], "turned")])
    assert lines(dag)[-3:] == ["for c.1 (0,30)", "vectorize w.1 (0,8)", "turned = ..."]


def test_a_turning_read_of_what_lies_inside_alone_is_blocked_without_a_copy() -> None:
    x = te.placeholder((1, 8, 8, 32), name="x")

    def padded(n: Expr, c: Expr, h: Expr, w: Expr) -> Expr:
        return te.if_then_else(te.logical_and(h >= 1, w >= 1), x[n, h - 1, w - 1, c], 0.0)

    turned = lines(ComputeDAG([x, te.compute((1, 32, 9, 9), padded, "turned")]))
    assert turned[-3:] == ["for c.1 (0,16)", "vectorize w.1 (0,9)", "turned = ..."]
    assert "x.local = ..." not in turned


def test_what_a_row_shares_is_no_turned_read() -> None:
    x, scale = te.placeholder((64, 48), name="x"), te.placeholder((64,), name="scale")
    dag = ComputeDAG([x, scale, te.compute((64, 48), lambda i, j: x[i, j] * scale[i], "scaled")])
    assert lines(dag) == ["parallel i (0,64)", "vectorize j (0,48)", "scaled = ..."]


def test_a_turning_copy_shifted_along_both_axes_is_blocked() -> None:
    x, rows, columns = (
        te.placeholder((16, 16)),
        te.placeholder((16,), name="rows"),
        te.placeholder((16,), name="columns"),
    )
    dag = ComputeDAG([x, rows, columns, te.compute((16, 16), lambda i, j: x[j, i] + rows[i] + columns[j], "y")])
    assert lines(dag)[-3:] == ["for i.1 (0,16)", "vectorize j.1 (0,8)", "y = ..."]
    given = [np.random.default_rng(0).normal(size=tensor.shape).astype("float32") for tensor in dag.inputs]
    function = build(dag, default_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(*given), result)
    np.testing.assert_array_equal(np.array(result), given[0].T + given[1][:, None] + given[2])


def test_a_short_turning_copy_is_left_alone() -> None:
    x = te.placeholder((1, 7, 7, 3), name="x")
    dag = ComputeDAG([x, te.compute((1, 3, 7, 7), lambda n, c, h, w: x[n, h, w, c], "turned")])
    assert lines(dag) == ["parallel n@c@h@ (0,21)", "vectorize w (0,7)", "turned = ..."]


def test_pooling_gets_vectors_and_a_matmul_naive_loops() -> None:
    x = te.placeholder((8, 10, 32), name="x")
    k = te.reduce_axis(3, "k")
    pool = te.compute((8, 8, 32), lambda n, h, c: te.max(x[n, h + k, c], k), "pool")
    assert lines(ComputeDAG([x, pool])) == ["parallel n@h@ (0,64)", "vectorize c (0,32)", "for k (0,3)", "pool = ..."]
    a, b, q = te.placeholder((80, 9), name="a"), te.placeholder((9, 3), name="b"), te.reduce_axis(9, "q")
    product = te.compute((80, 3), lambda i, j: te.sum(a[i, q] * b[q, j], q), "product")
    assert lines(ComputeDAG([a, b, product])) == ["parallel i (0,80)", "for j (0,3)", "for q (0,9)", "product = ..."]


@pytest.mark.parametrize(
    ("size", "width", "packed", "tiled"),
    [
        ((80, 7), 64, True, True),
        ((80, 7), 32, True, False),  # in parts of 4, 2 and 1 lanes
        ((80, 7), 32, False, True),
        ((2, 8), 32, True, False),  # two sums, each of which waits for the one before
        ((80, 8), 32, True, True),
        ((80, 3), 32, False, False),
    ],
)
def test_a_few_columns_are_a_tile_of_several_rows(size: tuple[int, int], width: int, packed: bool, tiled: bool) -> None:
    a, b, q = te.placeholder((size[0], 9), name="a"), te.placeholder((9, size[1]), name="b"), te.reduce_axis(9, "q")
    attrs = {"layout_free_placeholders": (b,)} if packed else {}
    dag = ComputeDAG([a, b, te.compute(size, lambda i, j: te.sum(a[i, q] * b[q, j], q), "product", attrs)])
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=width, vector_registers=32)
    assert (f"vectorize j (0,{size[1]})" in str(replay(dag, default_steps(dag, hardware)))) == tiled


def test_a_product_gets_a_register_tile() -> None:
    a, b, q = te.placeholder((3, 20, 9), name="a"), te.placeholder((3, 9, 128), name="b"), te.reduce_axis(9, "q")
    product = te.compute((3, 20, 128), lambda n, i, j: te.sum(a[n, i, q] * b[n, q, j], q), "product")
    assert lines(ComputeDAG([a, b, product])) == [
        "parallel n@i.0@j.0@ (0,24)",
        "for q (0,9)",
        "unroll i.1 (0,5)",
        "vectorize j.1 (0,64)",
        "product = ...",
    ]


def test_rows_of_a_register_tile_share_what_is_read_along_the_strip() -> None:
    a, b, q = te.placeholder((3, 20, 9), name="a"), te.placeholder((9, 3, 37), name="b"), te.reduce_axis(9, "q")
    product = te.compute((20, 3, 37), lambda i, n, j: te.sum(a[n, i, q] * b[q, n, j], q), "product")
    assert lines(ComputeDAG([a, b, product])) == [
        "parallel i.0@n@ (0,12)",
        "for q (0,9)",
        "unroll i.1 (0,5)",
        "vectorize j (0,37)",
        "product = ...",
    ]
    whole = te.placeholder((7, 9), name="whole")
    few = te.compute((7, 37), lambda i, j: te.sum(whole[i, q] * b[q, 0, j], q), "few")
    assert lines(ComputeDAG([whole, b, few])) == ["for q (0,9)", "unroll i (0,7)", "vectorize j (0,37)", "few = ..."]


@pytest.mark.parametrize(
    ("dtype", "rows", "terms", "threads", "is_copied"),
    [
        ("float16", 196, 64, 1, True),
        ("bfloat16", 196, 64, 9, True),
        ("float32", 196, 64, 1, False),
        ("float16", 28, 64, 1, False),
        ("float16", 196, 2304, 1, False),
    ],
)
def test_strips_of_halves_are_converted_once_for_many_rows(
    dtype: str, rows: int, terms: int, threads: int, is_copied: bool
) -> None:
    a, b, k = te.placeholder((rows, terms), dtype, "a"), te.placeholder((terms, 128), dtype, "b"), te.reduce_axis(terms)
    attrs = {"layout_free_placeholders": (b,)}
    product = te.compute((rows, 128), lambda i, j: te.sum(te.cast("float32", a[i, k]) * b[k, j], k), "product", attrs)
    dag = ComputeDAG([a, b, te.compute(product.shape, lambda i, j: te.cast(dtype, product[i, j]), "rounded")])
    hardware = HardwareParams(threads)
    text = str(replay(dag, default_steps(dag, hardware)))
    assert ("b.local" in text) == is_copied
    if is_copied:
        parts = ("a.local = ", "b.local = ", "for i.0", "product = ")
        assert [*parts] == sorted(parts, key=text.index)
        assert text.rindex("parallel", 0, text.index("b.local = ")) > text.index("a.local = ")
    dots = replace(hardware, has_bfloat16_dots=True)
    assert ("b.local" in str(replay(dag, default_steps(dag, dots)))) == (is_copied and dtype == "float16")


@pytest.mark.parametrize("size", [4, 8, 12, 16, 48, 64, 80])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_strip_stays_inside_a_group_of_a_grouped_product(size: int, lanes: int) -> None:
    a, b, q = te.placeholder((7, 54), name="a"), te.placeholder((9, 6 * size), name="b"), te.reduce_axis(9, "q")
    product = te.compute((7, 6 * size), lambda i, j: te.sum(a[i, j // size * 9 + q] * b[q, j], q), "product")
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=4 * lanes, vector_registers=16)
    dag = ComputeDAG([a, b, product])
    (strip,) = (line for line in str(replay(dag, default_steps(dag, hardware))).splitlines() if "vectorize" in line)
    assert size % int(strip.rpartition(",")[2].rstrip(")")) == 0
    (rows,) = (line for line in str(replay(dag, default_steps(dag, hardware))).splitlines() if "unroll" in line)
    assert rows.strip() == "unroll i (0,7)" or size > lanes


def depthwise(step: int) -> ComputeDAG:
    """A 3 x 3 window over an image with a border of zeros."""
    x, w = te.placeholder((20 * step, 20 * step, 64), name="x"), te.placeholder((3, 3, 64), name="w")
    size, p, q = 20 * step, te.reduce_axis(3, "p"), te.reduce_axis(3, "q")

    def padded(i: Expr, j: Expr, c: Expr) -> Expr:
        inside = te.logical_and(i >= 1, i < size + 1, j >= 1, j < size + 1)
        return te.if_then_else(inside, x[i - 1, j - 1, c], 0.0)

    pad = te.compute((size + 2, size + 2, 64), padded, "pad")
    return ComputeDAG(
        [
            x,
            w,
            te.compute(
                (20, 20, 64), lambda i, j, c: te.sum(pad[i * step + p, j * step + q, c] * w[p, q, c], [p, q]), "y"
            ),
        ]
    )


def test_places_of_a_window_that_moves_by_one_share_what_they_read() -> None:
    assert lines(depthwise(1)) == [
        *("parallel i@j.0@ (0,80)", "for p (0,3)", "for q (0,3)"),
        *("unroll j.1 (0,5)", "vectorize c (0,64)", "y = ..."),
    ]


def test_a_border_that_is_read_a_few_times_is_not_stored() -> None:
    assert "pad = ..." not in lines(depthwise(2))
    assert "pad = ..." in lines(depthwise(1), 32)
    assert "pad = ..." not in lines(depthwise(2), 32)


@pytest.mark.parametrize("step", [1, 2])
def test_a_depthwise_convolution_is_right(step: int) -> None:
    dag = depthwise(step)
    x, w = (np.random.default_rng(0).standard_normal(tensor.shape, dtype=np.float32) for tensor in dag.inputs)
    function = build(dag, default_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(x, w), result)
    padded, end = np.pad(x, ((1, 1), (1, 1), (0, 0))), 19 * step + 1
    taps = (padded[p : p + end : step, q : q + end : step] * w[p, q] for p, q in np.ndindex(3, 3))
    np.testing.assert_allclose(np.array(result), sum(taps), rtol=1e-5, atol=1e-5)


def test_products_without_a_read_along_the_last_axis_keep_naive_loops() -> None:
    a, b, q = te.placeholder((80, 9), name="a"), te.placeholder((32, 9), name="b"), te.reduce_axis(9, "q")
    rows = te.compute((80, 32), lambda i, j: te.sum(a[i, q] * b[j, q], q), "rows")
    naive = ["parallel i (0,80)", "for j (0,32)", "for q (0,9)"]
    assert lines(ComputeDAG([a, b, rows])) == [*naive, "rows = ..."]


def test_a_product_of_bytes_gets_a_register_tile() -> None:
    q = te.reduce_axis(9, "q")
    c, d = te.placeholder((80, 9), "int8", "c"), te.placeholder((9, 32), "int8", "d")
    whole = te.compute((80, 32), lambda i, j: te.sum(te.cast("int32", c[i, q]) * te.cast("int32", d[q, j]), q), "whole")
    # Many rows share the bytes of a strip, which are interleaved for each tile.
    loops = ["parallel i.0 (0,10)", "for q (0,9)", "unroll i.1 (0,8)", "vectorize j (0,32)"]
    assert lines(ComputeDAG([c, d, whole])) == [*loops, "whole = ..."]


def products(monkeypatch: pytest.MonkeyPatch) -> list[ComputeDAG]:
    """A product, one of halves, and one with a batch and a bias, all of them large by what counts as large here."""
    monkeypatch.setattr(default, "_CACHE_BYTES", 1 << 12)
    monkeypatch.setattr(default, "_MANY_ROWS", 8)
    monkeypatch.setattr(default, "_DEPTHS", (32, 16))
    halves = GpuCase("matmul", (24, 128, 96)).graph("f16")
    a, b, q = te.placeholder((3, 20, 48), name="a"), te.placeholder((3, 48, 192), name="b"), te.reduce_axis(48, "q")
    bias = te.placeholder((192,), name="bias")
    product = te.compute((3, 20, 192), lambda n, i, j: te.sum(a[n, i, q] * b[n, q, j], q), "product")
    shifted = te.compute(product.shape, lambda n, i, j: product[n, i, j] + bias[j], "shifted")
    return [GpuCase("matmul", (24, 128, 96)).graph("fp32"), halves, ComputeDAG([a, b, bias, shifted])]


def test_the_reference_computes_the_same_bits_as_the_untuned_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for dag in products(monkeypatch):
        assert "local" in str(replay(dag, reference_steps(dag)))
        rng = np.random.default_rng(0)
        given = [rng.normal(size=tensor.shape).astype(tensor.dtype) for tensor in dag.inputs]
        found = []
        for steps in (default_steps(dag), reference_steps(dag)):
            function = build(dag, steps)
            (result,) = function.outputs()
            function(*function.prepared(*given), result, threads=2)
            found.append(np.array(result))
        np.testing.assert_array_equal(found[0], found[1])


def test_the_reference_of_a_large_product_copies_strips_of_one_factor() -> None:
    dag = GpuCase("matmul", (8192, 8192, 8192)).graph("fp32")
    assert [line.strip() for line in str(replay(dag, reference_steps(dag))).splitlines()[1:]] == [
        "parallel j.0 (0,256)",
        "for k.0 (0,32)",
        "for ax0 (None)",
        "vectorize ax1 (None)",
        "b.local = ...",
        "for i.0 (0,1024)",
        "for k.1 (0,256)",
        "unroll i.1 (0,8)",
        "vectorize j.1 (0,32)",
        "c = ...",
    ]


@pytest.mark.parametrize("case", [GpuCase("matmul", (512, 512, 512)), GpuCase("softmax", (64, 64))])
def test_reference_of_a_small_task_is_the_default_schedule(case: GpuCase) -> None:
    assert reference_steps(case.graph("fp32")) == default_steps(case.graph("fp32"))


@pytest.mark.parametrize(
    ("width", "registers", "size", "tile"),
    [
        (64, 32, (28, 128), (14, 32)),
        (64, 32, (28, 64), (14, 32)),
        (64, 32, (49, 1000), (7, 40)),
        (32, 16, (28, 128), (4, 16)),
        (32, 16, (14, 256), (14, 8)),
        (32, 16, (7, 512), (7, 8)),
        (32, 16, (1, 1000), (1, 40)),
        (16, 32, (28, 128), (14, 8)),
        (16, 16, (128, 384), (4, 8)),
        (32, 16, (128, 384), (4, 24)),
        (32, 16, (28, 37), (1, 37)),
        (32, 16, (1500, 1500), (4, 20)),
        (32, 16, (196, 196), (2, 28)),
        (64, 32, (1500, 1500), (6, 60)),
        (64, 32, (137, 137), (1, 137)),
        (64, 32, (28, 134), (4, 67)),
        (32, 16, (28, 134), (1, 134)),
    ],
)
def test_a_register_tile_fits_the_registers(
    width: int, registers: int, size: tuple[int, int], tile: tuple[int, int]
) -> None:
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=width, vector_registers=registers)
    assert product_tiles.register_tile(*size, hardware, "float32") == tile


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tile"),
    [
        (17, 120, 720, (6, 16)),
        (289, 120, 720, (4, 24)),
        (49, 768, 768, (5, 16)),
        (49, 768, 3072, (4, 24)),  # what smaller tiles read again lies far, but there is one in twelve
        (9, 768, 3072, (3, 24)),
        (128, 384, 1536, (4, 24)),
        (1, 1000, 512, (1, 40)),
        (7, 2048, 512, (4, 16)),  # strips of 24 are not packed
        (49, 257, 256, (5, 16)),  # no strip divides them
    ],
)
def test_smaller_tiles_are_left_at_the_ends_where_that_pays(
    rows: int, columns: int, depth: int, tile: tuple[int, int]
) -> None:
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=32, vector_registers=16)
    assert product_tiles.register_tile(rows, columns, hardware, "float32", depth) == tile


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "tile"),
    [
        (19, 728, 728, (4, 24)),
        (7, 2048, 512, (4, 24)),
        (49, 1032, 256, (5, 16)),
    ],
)
def test_a_packed_factor_has_narrower_last_strips_even_if_its_rows_are_long(
    rows: int, columns: int, depth: int, tile: tuple[int, int]
) -> None:
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=32, vector_registers=16)
    assert product_tiles.register_tile(rows, columns, hardware, "float32", depth, packs=True) == tile
    _, strip = product_tiles.register_tile(rows, columns, hardware, "float32", depth)
    assert columns % strip == 0


@pytest.mark.parametrize(("free", "turned", "strip"), [(True, False, 24), (False, False, 8), (True, True, 8)])
def test_only_a_constant_that_is_packed_is_taken_as_packed(free: bool, turned: bool, strip: int) -> None:
    a, b = te.placeholder((19, 728), name="A"), te.placeholder((728, 728), name="B")
    k = te.reduce_axis(728, "k")
    attrs = {"layout_free_placeholders": (b,)} if free else {}
    c = te.compute((19, 728), lambda i, j: te.sum(a[i, k] * b[727 - k if turned else k, j], k), "C", attrs)
    hardware = HardwareParams(num_cores=1, vector_unit_bytes=32, vector_registers=16)
    splits = [step for step in default_steps(ComputeDAG([a, b, c]), hardware) if isinstance(step, Split)]
    assert splits[0].lengths == (strip,)


@pytest.mark.parametrize(("rows", "columns"), [(17, 120), (33, 88), (7, 160), (5, 1000)])
def test_products_with_smaller_tiles_at_the_ends_are_right(rows: int, columns: int) -> None:
    dag = matmul(rows, columns, 40)
    left, right = (np.random.default_rng(0).standard_normal(tensor.shape, dtype=np.float32) for tensor in dag.inputs)
    kernel = build(dag, default_steps(dag, HardwareParams(num_cores=2, vector_unit_bytes=32, vector_registers=16)))
    (result,) = kernel.outputs()
    for threads in (1, 2):
        result[:] = np.nan
        kernel(*kernel.prepared(left, right), result, threads=threads)
        np.testing.assert_allclose(result, left @ right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [1, 31, 137, 257])
def test_a_batched_product_builds_where_no_strip_divides_its_rows(width: int) -> None:
    x, y, k = te.placeholder((2, 19, 8), name="x"), te.placeholder((2, 8, width), name="y"), te.reduce_axis((0, 8), "k")
    dag = ComputeDAG([x, y, te.compute((2, 19, width), lambda b, i, j: te.sum(x[b, i, k] * y[b, k, j], axis=k), "z")])
    kernel, rng = build(dag, default_steps(dag)), np.random.default_rng(0)
    left, right = rng.random((2, 19, 8), "float32"), rng.random((2, 8, width), "float32")
    (result,) = kernel.outputs()
    kernel(*kernel.prepared(left, right), result)
    np.testing.assert_allclose(result, left @ right, rtol=1e-5)


def test_strips_meet_all_rows_where_blocks_would_read_more() -> None:
    a, b, q = te.placeholder((7, 7, 2048), name="a"), te.placeholder((2048, 2048), name="b"), te.reduce_axis(2048, "q")
    product = te.compute((7, 7, 2048), lambda y, x, j: te.sum(a[y, x, q] * b[q, j], q), "product")
    assert lines(ComputeDAG([a, b, product]))[:2] == ["parallel j.0 (0,64)", "for y (0,7)"]


def test_a_block_of_rows_meets_the_strips_of_a_factor_that_no_near_cache_holds() -> None:
    assert lines(GpuCase("matmul", (1024, 512, 1024)).graph("fp32")) == [
        "parallel i.0.0@j.0@ (0,256)",
        "for i.0.1 (0,8)",
        "for k (0,1024)",
        "unroll i.1 (0,8)",
        "vectorize j.1 (0,32)",
        "c = ...",
    ]


def conv(height: int, width: int, channels: int, outputs: int) -> ComputeDAG:
    x = te.placeholder((2, height + 2, width + 2, channels), name="x")
    w = te.placeholder((3, 3, channels, outputs), name="w")
    r, s, c = te.reduce_axis(3, "r"), te.reduce_axis(3, "s"), te.reduce_axis(channels, "c")
    return ComputeDAG(
        [
            x,
            w,
            te.compute(
                (2, height, width, outputs),
                lambda n, i, j, o: te.sum(x[n, i + r, j + s, c] * w[r, s, c, o], (r, s, c)),
                "y",
            ),
        ]
    )


def batched(batch: int, rows: int, inner: int, columns: int) -> ComputeDAG:
    a, b = te.placeholder((batch, rows, inner), name="a"), te.placeholder((batch, inner, columns), name="b")
    q = te.reduce_axis(inner, "q")
    return ComputeDAG(
        [a, b, te.compute((batch, rows, columns), lambda n, i, j: te.sum(a[n, i, q] * b[n, q, j], q), "c")]
    )


@pytest.mark.parametrize("near", [64, 512, 4096])
@pytest.mark.parametrize(
    "dag",
    [
        conv(7, 7, 8, 64),
        conv(6, 14, 4, 33),
        conv(1, 12, 8, 32),
        batched(3, 24, 16, 64),
        batched(1, 15, 7, 48),
        batched(2, 1, 40, 96),
        GpuCase("matmul", (60, 64, 24)).graph("fp32"),
    ],
    ids=["conv7", "conv14", "conv1", "batch3", "batch1", "row", "product"],
)
def test_blocks_of_rows_compute_the_same_bits(dag: ComputeDAG, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=tensor.shape).astype(tensor.dtype) for tensor in dag.inputs]
    found = []
    for size in (1 << 30, near):
        monkeypatch.setattr(product_tiles, "NEAR_BYTES", size)
        function = build(dag, default_steps(dag))
        (result,) = function.outputs()
        function(*function.prepared(*given), result, threads=2)
        found.append(np.array(result))
    np.testing.assert_array_equal(found[0], found[1])


def with_epilogue(rows: int, inner: int, columns: int, function: Callable[[Expr], Expr]) -> ComputeDAG:
    """A product whose only reader applies a function element by element."""
    a, b, bias = te.placeholder((rows, inner), name="a"), te.placeholder((inner, columns), name="b"), (columns,)
    added, q = te.placeholder(bias, name="bias"), te.reduce_axis(inner, "q")
    product = te.compute((rows, columns), lambda i, j: te.sum(a[i, q] * b[q, j], q), "product")
    shifted = te.compute((rows, columns), lambda i, j: product[i, j] + added[j], "shifted")
    gate = te.compute((rows, columns), lambda i, j: function(shifted[i, j]), "gate")
    return ComputeDAG([a, b, added, te.compute((rows, columns), lambda i, j: gate[i, j] * 2.0, "result")])


def test_a_tile_of_a_product_is_used_before_the_next_one_is_computed() -> None:
    # The exponential is read once per element, so it is inlined too.
    assert lines(with_epilogue(20, 9, 64, lambda x: 1.0 / (te.exp(-x) + 1.0))) == [
        "parallel i.0 (0,4)",
        "for q (None)",
        "unroll i (None)",
        "vectorize j (None)",
        "product = ...",
        "unroll i.1 (0,5)",
        "vectorize j (0,64)",
        "result = ...",
    ]


@pytest.mark.parametrize("near", [256, 1 << 30])
@pytest.mark.parametrize("size", [(20, 9, 64), (1, 40, 96), (7, 5, 33), (4, 8, 16), (60, 24, 48)])
def test_products_with_epilogues_are_right(
    size: tuple[int, int, int], near: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_tiles, "NEAR_BYTES", near)
    dag, rng = with_epilogue(*size, lambda x: 1.0 / (te.exp(-x) + 1.0)), np.random.default_rng(0)
    a, b, bias = (rng.normal(size=tensor.shape).astype("float32") for tensor in dag.inputs)
    function = build(dag, default_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(a, b, bias), result, threads=2)
    shifted = a @ b + bias
    np.testing.assert_allclose(result, 2.0 / (1.0 + np.exp(-shifted)), rtol=2e-5, atol=2e-5)


def test_rows_that_are_reduced_stay_out_of_vectors() -> None:
    x, k = te.placeholder((6, 40), name="x"), te.reduce_axis(40, "k")
    rows = te.compute((6,), lambda i: te.max(x[i, k], k), "rows")
    assert lines(ComputeDAG([x, rows])) == ["parallel i (0,6)", "for k (0,40)", "rows = ..."]
    q = te.reduce_axis(6, "q")
    columns = te.compute((40,), lambda j: te.max(x[q, j], q), "columns")
    assert "vectorize j (0,40)" in lines(ComputeDAG([x, columns]))


@pytest.mark.parametrize("size", [(20, 9, 64), (1, 40, 96), (4, 8, 16), (7, 5, 33)])
def test_two_products_that_one_stage_reads_are_right(size: tuple[int, int, int]) -> None:
    rows, inner, columns = size
    a, q = te.placeholder((rows, inner), name="a"), te.reduce_axis(inner, "q")
    b, c = te.placeholder((inner, columns), name="b"), te.placeholder((inner, columns), name="c")
    gate = te.compute((rows, columns), lambda i, j: te.sum(a[i, q] * b[q, j], q), "gate")
    up = te.compute((rows, columns), lambda i, j: te.sum(a[i, q] * c[q, j], q), "up")
    dag = ComputeDAG([a, b, c, te.compute((rows, columns), lambda i, j: te.maximum(gate[i, j], 0.0) * up[i, j], "y")])
    given = [np.random.default_rng(0).normal(size=tensor.shape).astype("float32") for tensor in dag.inputs]
    function = build(dag, default_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(*given), result, threads=2)
    np.testing.assert_allclose(
        result, np.maximum(given[0] @ given[1], 0.0) * (given[0] @ given[2]), rtol=1e-4, atol=1e-4
    )


def test_a_product_that_the_strips_of_a_large_one_are_copied_from_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_CACHE_BYTES", 1 << 12)
    monkeypatch.setattr(default, "_MANY_ROWS", 40)
    monkeypatch.setattr(default, "_DEPTHS", (32, 16))
    a, b, c = (te.placeholder(shape, name=name) for shape, name in (((32, 16), "a"), ((16, 96), "b"), ((64, 32), "c")))
    q, r = te.reduce_axis(16, "q"), te.reduce_axis(32, "r")
    right = te.compute((32, 96), lambda i, j: te.sum(a[i, q] * b[q, j], q), "right")
    dag = ComputeDAG([a, b, c, te.compute((64, 96), lambda i, j: te.sum(c[i, r] * right[r, j], r), "y")])
    assert "right.local" in str(replay(dag, reference_steps(dag)))
    given = [np.random.default_rng(0).normal(size=tensor.shape).astype("float32") for tensor in dag.inputs]
    function = build(dag, reference_steps(dag))
    (result,) = function.outputs()
    function(*function.prepared(*given), result, threads=2)
    np.testing.assert_allclose(result, given[2] @ (given[0] @ given[1]), rtol=1e-3, atol=1e-3)
