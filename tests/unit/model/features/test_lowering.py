"""What features say of the innermost loops, beside what the passes make of them."""

from collections.abc import Sequence

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dot import Pair
from retune.compiler.ir.expr import Dot
from retune.compiler.ir.stmt import Allocate, LoopFunction, exprs_of, walk_stmt
from retune.compiler.ir.visit import walk
from retune.compiler.lower.pipeline import lower
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.model.features.estimate import operation_cost
from retune.compiler.model.features.lowering import vector_count
from retune.compiler.model.features.table import FLAG_NAMES
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.counts import OpCounts, count_operations
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Split, Step
from retune.compiler.te.tensor import ComputeOp

HARDWARE = HardwareParams(num_cores=2)
BYTES: Pair = ("uint8", "int8")


def found_in(state: State, dots: Sequence[Pair] = (), stage: int = -1) -> dict[str, float]:
    """The unscaled features of one statement."""
    row = extract(statement_nests(state), choices_of(state), HARDWARE, dots=dots)[0, stage]
    return {
        name: float(value) if name in FLAG_NAMES else 2.0 ** float(value) - 1
        for name, value in zip(FEATURE_NAMES, row, strict=True)
    }


def lowered(state: State, dots: Sequence[Pair] = ()) -> LoopFunction:
    return lower(state, "kernel", HARDWARE, dots=dots)


def row_sums(shape: tuple[int, int], along: int, dtype: str = "float32") -> ComputeDAG:
    x = te.placeholder(shape, dtype, name="x")
    k = te.reduce_axis(shape[along], "k")
    at = (lambda i: x[i, k]) if along else (lambda i: x[k, i])
    return ComputeDAG([x, te.compute((shape[1 - along],), lambda i: te.sum(at(i), k), "s")])


@pytest.mark.parametrize(
    ("shape", "along", "dtype", "lanes"),
    [
        ((8, 4096), 1, "float32", 64),
        ((8, 1000), 1, "float32", 64),
        ((8, 20), 1, "float32", 16),
        ((8, 8), 1, "float32", 8),
        ((8, 7), 1, "float32", 0),
        ((4096, 8), 0, "float32", 0),
        ((8, 4096), 1, "float16", 64),
        ((8, 4096), 1, "float64", 32),
    ],
)
def test_reductions_over_neighbors_run_in_lanes(shape: tuple[int, int], along: int, dtype: str, lanes: int) -> None:
    state = replay(row_sums(shape, along, dtype), ())
    partial = {
        stmt.buffer.shape[0]
        for stmt in walk_stmt(lowered(state).body)
        # The sum of floats of two bytes, which is a register, has no lanes.
        if isinstance(stmt, Allocate) and ".part" in stmt.buffer.name and stmt.buffer.shape
    }
    found = found_in(state)
    assert partial == ({lanes} if lanes else set())
    assert found["tile_in_lanes"] == (lanes > 0)
    if lanes:
        held = 8 if dtype == "float64" else 16
        assert found["tile_vectors"] == pytest.approx(-(-lanes // held))
        assert found["tile_reduction"] == pytest.approx(-(-shape[1] // lanes), rel=1e-5)


def test_a_sum_in_lanes_takes_a_lane_of_the_cycles() -> None:
    rows, columns = (found_in(replay(row_sums(*case), ())) for case in (((64, 4096), 1), ((4096, 64), 0)))
    assert rows["estimate_arithmetic"] < columns["estimate_arithmetic"] / 8


def tiled(dtype: str, wide: str, depth: int, inner: int, vector: bool = True) -> State:
    """A product of narrow numbers over 64 x 64: i = 8 * 8, j = 2 * 32, k cut by `inner`."""
    a = te.placeholder((64, depth), "uint8" if dtype == "int8" else dtype, name="a")
    b = te.placeholder((depth, 64), dtype, name="b")
    k = te.reduce_axis(depth, "k")
    dag = ComputeDAG(
        [
            a,
            b,
            te.compute(
                (64, 64),
                lambda i, j: te.sum(te.cast(wide, a[i, k]) * te.cast(wide, b[k, j]), k),
                "c",
                attrs={"layout_free_placeholders": (b,)},
            ),
        ]
    )
    steps: list[Step] = [
        Split(2, 0, 64, (8,)),
        Split(2, 2, 64, (32,)),
        Split(2, 4, depth, (inner,)),
        Reorder(2, (0, 2, 4, 5, 1, 3)),
    ]
    if vector:
        steps.append(Annotate(2, 5, int(Annotation.VECTORIZE)))
    return replay(dag, steps)


@pytest.mark.parametrize(
    ("dtype", "wide", "dots", "depth", "vector", "width"),
    [
        ("int8", "int32", [BYTES], 64, True, 4),
        ("int8", "int32", [BYTES], 63, True, 1),
        ("int8", "int32", [BYTES], 64, False, 1),
        ("int8", "int32", [], 64, True, 1),
        ("bfloat16", "float32", [("bfloat16", "bfloat16")], 64, True, 2),
        ("bfloat16", "float32", [BYTES], 64, True, 1),
        ("int8", "float32", [BYTES], 64, True, 1),
    ],
)
def test_dot_products_shorten_the_reduction(
    dtype: str, wide: str, dots: list[Pair], depth: int, vector: bool, width: int
) -> None:
    state = tiled(dtype, wide, depth, 1 if depth == 63 else 16, vector)
    found = found_in(state, dots)
    widths = {
        node.width
        for stmt in walk_stmt(lowered(state, dots).body)
        for expr in exprs_of(stmt)
        for node in walk(expr)
        if isinstance(node, Dot)
    }
    assert widths == ({width} if width > 1 else set())
    assert found["tile_dot_width"] == pytest.approx(width)
    assert found["tile_reduction"] == pytest.approx(depth / width, rel=1e-5)
    if vector:
        assert found["tile_vector_operations"] == pytest.approx(64 * 64 * depth / 16 / width, rel=1e-5)


def test_dot_products_are_worth_what_they_save() -> None:
    state = tiled("int8", "int32", 1024, 16)
    plain, dotted = found_in(state), found_in(state, [BYTES])
    assert plain["tile_conversions"] > 0
    assert dotted["tile_conversions"] == 0
    # A product of wide integers takes three operations, a dot product does four products in one.
    assert plain["estimate_arithmetic"] > 8 * dotted["estimate_arithmetic"]


def test_half_floats_are_held_in_float32() -> None:
    def held(dtype: str) -> dict[str, float]:
        x, y = te.placeholder((64, 64), dtype, name="x"), te.placeholder((64, 64), dtype, name="y")
        k = te.reduce_axis(64, "k")
        dag = ComputeDAG([x, y, te.compute((64, 64), lambda i, j: te.sum(x[i, k] * y[k, j], k), "z")])
        steps = [Split(2, 1, 64, (32,)), Reorder(2, (0, 1, 3, 2)), Annotate(2, 3, int(Annotation.VECTORIZE))]
        return found_in(replay(dag, steps))

    single, half, double = held("float32"), held("float16"), held("float64")
    assert half["tile_vectors"] == single["tile_vectors"] == pytest.approx(2)
    assert double["tile_vectors"] == pytest.approx(4)
    assert half["tile_conversions"] == pytest.approx(3)
    assert single["tile_conversions"] == 0


def test_a_ragged_vector_is_masked_or_cut_into_shorter_ones() -> None:
    lengths = np.array([16.0, 25.0, 15.0, 1.0])
    assert vector_count(lengths, 16, HARDWARE).tolist() == [1, 2, 1, 1]
    short = HardwareParams(num_cores=2, vector_unit_bytes=32, vector_registers=16)
    assert vector_count(lengths, 8, short).tolist() == [2, 4, 4, 1]


def test_costs_of_operations() -> None:
    x = te.placeholder((4,), name="x")
    op = te.compute((4,), lambda i: te.exp(x[i]) / (x[i] + 1.0), "y").op
    assert isinstance(op, ComputeOp)
    assert operation_cost(count_operations(op.body, None), True) == 20 + 16 + 1
    assert operation_cost(OpCounts(), True) == 1
    assert operation_cost(OpCounts(int_mad=1, int_other=2), False) == 3


def test_buffers_of_all_results_are_allocated() -> None:
    x = te.placeholder((8, 64), name="x")
    both = te.compute((8, 64), lambda i, j: (x[i, j] + 1.0, te.cast("int8", x[i, j])), "both")
    outer = te.compute((8, 64), lambda i, j: both[0][i, j] + te.cast("float32", both[1][i, j]), "outer")
    state = replay(ComputeDAG([x, outer]), [ComputeAt(1, 2, 0)])
    assert found_in(state, stage=0)["alloc_size"] == pytest.approx(64 * (4 + 1), rel=1e-5)
