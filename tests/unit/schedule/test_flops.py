"""What counts as an operation, one case a rule."""

from collections.abc import Callable

import pytest

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG

F = te.placeholder((10,), "float32", "F")
S = te.placeholder((10,), "int32", "S")
U = te.placeholder((10,), "uint8", "U")
BOOLS = te.placeholder((10,), "bool", "BOOLS")


@pytest.mark.parametrize(
    ("body", "each"),
    [
        (lambda i: F[i], 0),
        (lambda i: F[i] + 1.0, 1),
        (lambda i: F[i] * 2.0 - F[9 - i], 2),  # index arithmetic is free
        (lambda i: te.maximum(F[i], 0.0), 1),
        (lambda i: te.exp(F[i] + 1.0), 1),  # a call is free, its argument is not
        (lambda i: te.pow(F[i] + 1.0, F[i] * 2.0), 2),
        (lambda i: te.cast("int32", F[i]), 0),
        (lambda i: te.cast("float32", S[i]) + 1.0, 1),
        (lambda i: te.cast("float32", S[i] + 1), 0),  # of another class than the result
        (lambda i: te.cast("int32", F[i] + 1.0), 0),
        (lambda i: S[i] + 1, 1),
        (lambda i: te.cast("int64", S[i]) * 3, 1),  # the width does not matter
        (lambda i: te.cast("int32", U[i] + U[9 - i]), 0),  # unsigned is its own class
        (lambda i: U[i] + U[9 - i], 1),
        (lambda i: F[i] > 0.0, 0),  # a bool is unsigned, its operands are floats
        (lambda i: te.logical_and(BOOLS[i], BOOLS[9 - i]), 1),
        (lambda i: te.logical_not(BOOLS[i]), 1),
        (lambda i: te.if_then_else(te.logical_not(BOOLS[i]), F[i], 0.0), 0),
        (lambda i: te.if_then_else(i > 3, F[i], 0.0), 0),
        (lambda i: te.if_then_else(i > 3, S[i], 0), 1),  # an index is signed, as is the result
        (lambda i: te.if_then_else(F[i] > 0.0, F[i] + 1.0 + 2.0 * F[i], F[i] * 2.0), 4),  # the costlier side
    ],
)
def test_operations_of_each_element(body: Callable[..., Expr], each: int) -> None:
    assert ComputeDAG([F, S, U, BOOLS, te.compute((10,), body, "T")]).flop_count == 10 * each


def test_a_reduction_counts_joining_and_source_at_every_point() -> None:
    x = te.placeholder((4, 6), name="x")
    k = te.reduce_axis(6, "k")
    assert ComputeDAG([x, te.compute((4,), lambda i: te.sum(x[i, k] * x[i, k], k), "y")]).flop_count == 48
    assert ComputeDAG([x, te.compute((4,), lambda i: te.max(x[i, k], k), "y")]).flop_count == 24
    growth = te.comm_reducer(lambda a, b: a + b + a * b, lambda _: 0.0)
    assert ComputeDAG([x, te.compute((4,), lambda i: growth(x[i, k], k), "y")]).flop_count == 72


def test_all_results_count_and_an_attribute_overrides() -> None:
    low, high = te.compute((10,), lambda i: (F[i] - 1.0, F[i] * 2.0 + 1.0), "ends")
    assert ComputeDAG([F, low, high]).flop_count == 30
    total = te.compute((10,), lambda i: low[i] + high[i], "total", {"FLOP": 1234})
    assert ComputeDAG([F, total]).flop_count == 1264
    called = te.extern((10,), [F], lambda ins, outs: te.call_packed("f", ins[0], outs[0]), "called")
    assert ComputeDAG([F, called]).flop_count == 0
