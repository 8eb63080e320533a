"""Ranks by a merge sort are those that counting gives."""

from math import prod
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import retune
from retune import compiler
from retune.compiler import auto_scheduler, te
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Value
from retune.compiler.ir.stmt import For, Stmt, inner_stmts
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.ops import OPS
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import replay

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "uint64")


def _top_k(x: Array, axis: int, k: int, *, largest: bool) -> Array:
    builder = GraphBuilder("case", [Value("x", x.shape, x.dtype.name)])
    result = builder.emit("top_k", ["x"], {"axis": axis, "k": k, "largest": largest})
    executor = GraphExecutor(compile_graph(builder.finish({"y": result}), Target.host()))
    executor.set_input("x", x)
    executor.run()
    return executor.get_output(0)


def _sorted_indices(x: Array, axis: int, *, largest: bool) -> Array:
    """A NaN is above all numbers, and of equal elements the first one comes first."""
    line = np.moveaxis(x, axis, -1)
    result = np.empty(line.shape, "int64")
    for row in np.ndindex(line.shape[:-1]):
        values = [float("inf") if value != value else float(value) for value in line[row]]
        above = [bool(value != value) for value in line[row]]
        sign = -1 if largest else 1
        keys = [(sign * nan, sign * value) for nan, value in zip(above, values, strict=True)]
        result[row] = sorted(range(len(keys)), key=keys.__getitem__)
    return np.moveaxis(result, -1, axis)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_nans_and_signed_zeros_are_ranked_in_order(dtype: str, largest: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 40, (2, 337, 2)).astype(np.dtype(dtype))
    if x.dtype.kind not in "iu":
        x = np.where(rng.random(x.shape) < 0.5, -x, x)  # with -0
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(x.shape) < 0.1] = value
    indices = _top_k(x, 1, 200, largest=largest)
    np.testing.assert_array_equal(indices, _sorted_indices(x, 1, largest=largest)[:, :200])


@pytest.mark.parametrize("largest", [True, False])
def test_the_fill_of_the_last_block_is_no_element(largest: bool) -> None:
    # Blocks of 240: the last one has a single element, and all elements equal the fill.
    x = np.full((1, 721), -np.inf if largest else np.nan, "float32")
    np.testing.assert_array_equal(_top_k(x, 1, 60, largest=largest), np.arange(60)[None])


@pytest.mark.parametrize(("extent", "k"), [(191, 191), (192, 1), (193, 193), (224, 100), (513, 512), (1601, 400)])
def test_every_length_of_a_run_is_merged(extent: int, k: int) -> None:
    rng = np.random.default_rng(extent)
    for x in (rng.permutation(extent), np.arange(extent), -np.arange(extent), np.zeros(extent, "int64")):
        indices = _top_k(x.astype("int32"), 0, k, largest=True)
        np.testing.assert_array_equal(indices, _sorted_indices(x, 0, largest=True)[:k])


def _with_ties_and_nans(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    x = rng.integers(-50, 50, shape).astype("float32")
    x[rng.random(shape) < 0.05] = np.nan
    return x


# Ranks of 2^14 elements run in parallel over the first axis of more than one element, wherever that axis is.
@pytest.mark.parametrize(
    ("shape", "axis", "k"),
    [
        ((1, 192, 90), 1, 100),
        ((1000, 31), 0, 796),
        ((1000, 1, 17, 1), 0, 400),
        ((1, 1, 1000, 1, 33), 2, 204),
        ((1, 3, 1, 700, 1, 9), 3, 350),
        ((2, 1, 8200), 2, 5000),
        ((1, 16400, 1), 1, 9000),
    ],
)
def test_axes_of_one_element_before_and_after_the_ranked_axis(shape: tuple[int, ...], axis: int, k: int) -> None:
    x = _with_ties_and_nans(np.random.default_rng(k), shape)
    expected = np.moveaxis(np.moveaxis(_sorted_indices(x, axis, largest=True), axis, 0)[:k], 0, axis)
    np.testing.assert_array_equal(_top_k(x, axis, k, largest=True), expected)


@pytest.mark.parametrize("seed", range(8))
def test_top_k_of_onnx_over_random_shapes_with_axes_of_one_element(seed: int) -> None:
    rng = np.random.default_rng(seed)
    extent, largest = int(rng.integers(192, 1200)), bool(rng.integers(2))
    # In three cases of four, all axes before the ranked axis have one element.
    before = [1 if seed % 4 < 3 or rng.random() < 0.5 else 3 for _ in range(rng.integers(3))]
    after = [1 if rng.random() < 0.5 else int(rng.integers(2, 5)) for _ in range(rng.integers(3))]
    after.append(-(-(1 << 14) // (extent * prod((*before, *after)))))
    shape, axis, k = (*before, extent, *after), len(before), int(rng.integers(extent // 2, extent + 1))
    node = helper.make_node("TopK", ["x", "k"], ["values", "indices"], axis=axis - len(shape), largest=int(largest))
    result_shape = (*before, k, *after)
    graph = helper.make_graph(
        [node],
        "top_k",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [
            helper.make_tensor_value_info("values", TensorProto.FLOAT, result_shape),
            helper.make_tensor_value_info("indices", TensorProto.INT64, result_shape),
        ],
        [numpy_helper.from_array(np.array([k], "int64"), "k")],
    )
    x = _with_ties_and_nans(rng, shape)
    values, indices = retune.compile(helper.make_model(graph), threads=2)(x)
    expected = np.moveaxis(np.moveaxis(_sorted_indices(x, axis, largest=largest), axis, 0)[:k], 0, axis)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis))


def _iterations(stmt: Stmt) -> int:
    count = sum(map(_iterations, inner_stmts(stmt))) or 1
    return count * stmt.extent if isinstance(stmt, For) else count


@pytest.mark.parametrize("k", [100, 5_000, 25_000, 50_000])
def test_the_loops_of_ranks_do_not_grow_with_the_square_of_the_elements(k: int) -> None:
    x = te.placeholder((50_000,), "float32", "x")
    dag = ComputeDAG([x, OPS["top_k"].tensor((x,), {"axis": 0, "k": k, "largest": True})])
    function = build_loops(replay(dag, default_steps(dag)), "top_k")
    assert _iterations(function.body) < 200 * 50_000


@pytest.mark.parametrize("position", [0, 2, 3])
def test_ranks_are_right_where_a_schedule_factors_their_count(position: int) -> None:
    tensor = te.placeholder((2, 500), "float32", "x")
    dag = auto_scheduler.ComputeDAG([tensor, OPS["top_k"].tensor((tensor,), {"axis": 1, "k": 400, "largest": True})])
    state = dag.get_init_state()
    _, inner = state.split("top_k_rank", "r", [4])
    state.rfactor("top_k_rank", inner, position)
    schedule, args = dag.apply_steps_from_state(state)
    x, indices = np.random.default_rng(0).integers(0, 50, (2, 500)).astype("float32"), np.zeros((2, 400), "int64")
    compiler.build(schedule, args, "llvm")(x, indices)
    np.testing.assert_array_equal(indices, _sorted_indices(x, 1, largest=True)[:, :400])
