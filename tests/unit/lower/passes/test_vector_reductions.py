"""A reduction over neighbouring elements runs in lanes; any other stays as it is."""

import pytest

from retune.compiler import te
from retune.compiler.ir.verify import verify
from retune.compiler.lower.passes import VectorReductions
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Reorder
from retune.compiler.te.tensor import Tensor
from tests.unit.lower.small import golden, loops, matmul


def test_partial_results_lie_in_lanes_and_are_folded() -> None:
    x, k = te.placeholder((3, 150), name="x"), te.reduce_axis(150, "k")
    top = te.compute((3,), lambda i: te.max(te.exp(x[i, k]), k), "y")
    assert str(VectorReductions(16).apply(loops(ComputeDAG([x, top])))) == golden(
        """
        def k(x: float32[3, 150], y: float32[3]):
          for i.s1 in 3:
            y[i.s1] = -inf
            register y.part0: float32[16]
            vector k.s1.lane in 16:
              y.part0[k.s1.lane] = -inf
            for k.s1.turn in 9:
              vector k.s1.lane in 16:
                y.part0[k.s1.lane] = max(y.part0[k.s1.lane], exp(x[i.s1, ((k.s1.turn * 16) + k.s1.lane)]))
            vector k.s1.lane in 6:
              y.part0[k.s1.lane] = max(y.part0[k.s1.lane], exp(x[i.s1, (k.s1.lane + 144)]))
            vector k.s1.lane in 8:
              y.part0[k.s1.lane] = max(y.part0[k.s1.lane], y.part0[(k.s1.lane + 8)])
            vector k.s1.lane in 4:
              y.part0[k.s1.lane] = max(y.part0[k.s1.lane], y.part0[(k.s1.lane + 4)])
            vector k.s1.lane in 2:
              y.part0[k.s1.lane] = max(y.part0[k.s1.lane], y.part0[(k.s1.lane + 2)])
            y[i.s1] = max(y[i.s1], max(y.part0[0], y.part0[1]))
        """
    )


def test_a_window_of_whole_rows_is_one_loop() -> None:
    x, a, b = te.placeholder((2, 3, 5), "int32", "x"), te.reduce_axis(3, "a"), te.reduce_axis(5, "b")
    total = te.compute((2,), lambda i: te.sum(x[i, a, b], [a, b]), "y")
    assert str(VectorReductions(16).apply(loops(ComputeDAG([x, total])))) == golden(
        """
        def k(x: int32[2, 3, 5], y: int32[2]):
          for i.s1 in 2:
            y[i.s1] = int32(0)
            register y.part0: int32[8]
            vector b.s1.lane in 8:
              y.part0[b.s1.lane] = int32(0)
            vector b.s1.lane in 8:
              y.part0[b.s1.lane] = (y.part0[b.s1.lane] + x[i.s1, 0, b.s1.lane])
            vector b.s1.lane in 7:
              y.part0[b.s1.lane] = (y.part0[b.s1.lane] + x[i.s1, 0, (b.s1.lane + 8)])
            vector b.s1.lane in 4:
              y.part0[b.s1.lane] = (y.part0[b.s1.lane] + y.part0[(b.s1.lane + 4)])
            vector b.s1.lane in 2:
              y.part0[b.s1.lane] = (y.part0[b.s1.lane] + y.part0[(b.s1.lane + 2)])
            y[i.s1] = (y[i.s1] + (y.part0[0] + y.part0[1]))
        """
    )


def _summed(read: str) -> Tensor:
    x, n, k = te.placeholder((64, 64), name="x"), te.placeholder((64,), "int64", "n"), te.reduce_axis(32, "k")
    reads = {
        "across rows": lambda i: x[k, i],
        "every second": lambda i: x[i, 2 * k],
        "backwards": lambda i: x[i, 63 - k],
        "through an index": lambda i: x[i, n[k]],
        "by a choice": lambda i: te.if_then_else(k < 7, x[i, k], 0.0),
        "nothing": lambda i: te.cast("float32", i + k),
    }
    return te.compute((64,), lambda i: te.sum(reads[read](i), k), "y")


@pytest.mark.parametrize(
    "read", ["across rows", "every second", "backwards", "through an index", "by a choice", "nothing"]
)
def test_elements_that_are_no_neighbours_are_left(read: str) -> None:
    output = _summed(read)
    function = loops(ComputeDAG([output]))
    assert str(VectorReductions(16).apply(function)) == str(function)


def test_a_short_one_and_one_inside_a_vector_loop_are_left() -> None:
    for function in (
        loops(matmul(4, 4, 7)),
        loops(matmul(4, 64, 64), Reorder(2, (0, 1, 2)), Annotate(2, 1, Annotation.VECTORIZE)),
    ):
        assert str(VectorReductions(16).apply(function)) == str(function)


def test_a_loop_over_the_result_is_never_joined_with_the_reduction_inside() -> None:
    x = te.placeholder((2, 3, 16), name="x")
    p, q = te.reduce_axis(2, "p"), te.reduce_axis(16, "q")
    dag = ComputeDAG([x, te.compute((3,), lambda i: te.sum(x[p, i, q], [p, q]), "y")])
    text = str(VectorReductions(64).apply(loops(dag, Reorder(1, (1, 0, 2)))))
    assert "for i.s1 in 3:\n      register y.part0" in text
    verify(VectorReductions(64).apply(loops(dag, Reorder(1, (1, 0, 2)))), "vector-reductions")
