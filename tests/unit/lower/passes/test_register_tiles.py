"""A small tile is held in registers across its reduction."""

from retune.compiler import te
from retune.compiler.lower.passes import RegisterTiles
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Pragma, Reorder, Split
from tests.unit.lower.small import golden, loops, matmul, sum_and_peak

# ruff: noqa: E501 - golden text is as wide as it is


def test_a_tile_starts_at_the_initial_value_and_is_stored_once() -> None:
    function = RegisterTiles(16).apply(
        loops(matmul(2, 8, 4), Split(2, 1, 8, (4,)), Reorder(2, (1, 3, 0, 2)), Annotate(2, 3, Annotation.VECTORIZE))
    )
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 8], C: float32[2, 8]):
          for j.0.s2 in 2:
            register C.acc0: float32[2, 4]
            unroll i.s2 in 2:
              vector j.1.s2 in 4:
                C.acc0[i.s2, j.1.s2] = 0.0
            for k.s2 in 4:
              unroll i.s2 in 2:
                vector j.1.s2 in 4:
                  C.acc0[i.s2, j.1.s2] = (C.acc0[i.s2, j.1.s2] + (A[i.s2, k.s2] * B[k.s2, ((j.0.s2 * 4) + j.1.s2)]))
            unroll i.s2 in 2:
              vector j.1.s2 in 4:
                C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = C.acc0[i.s2, j.1.s2]
        """
    )


def test_reductions_are_unrolled_within_the_limit() -> None:
    function = RegisterTiles(16).apply(
        loops(
            matmul(2, 8, 4),
            Split(2, 1, 8, (4,)),
            Reorder(2, (1, 3, 0, 2)),
            Annotate(2, 3, Annotation.VECTORIZE),
            Pragma(2, 0, "auto_unroll_max_step$8"),
        )
    )
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 8], C: float32[2, 8]):
          for j.0.s2 in 2:
            register C.acc0: float32[2, 4]
            unroll i.s2 in 2:
              vector j.1.s2 in 4:
                C.acc0[i.s2, j.1.s2] = 0.0
            unroll k.s2 in 4:
              unroll i.s2 in 2:
                vector j.1.s2 in 4:
                  C.acc0[i.s2, j.1.s2] = (C.acc0[i.s2, j.1.s2] + (A[i.s2, k.s2] * B[k.s2, ((j.0.s2 * 4) + j.1.s2)]))
            unroll i.s2 in 2:
              vector j.1.s2 in 4:
                C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = C.acc0[i.s2, j.1.s2]
        """
    )


def test_a_tile_between_reductions_is_loaded_and_stored() -> None:
    function = RegisterTiles(16).apply(loops(matmul(2, 2, 4), Split(2, 2, 4, (2,)), Reorder(2, (2, 0, 3, 1))))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 2], C: float32[2, 2]):
          for i.s2 in 2:
            for j.s2 in 2:
              C[i.s2, j.s2] = 0.0
          for k.0.s2 in 2:
            for i.s2 in 2:
              register C.acc0: float32[2]
              unroll j.s2 in 2:
                C.acc0[j.s2] = C[i.s2, j.s2]
              for k.1.s2 in 2:
                unroll j.s2 in 2:
                  C.acc0[j.s2] = (C.acc0[j.s2] + (A[i.s2, ((k.0.s2 * 2) + k.1.s2)] * B[((k.0.s2 * 2) + k.1.s2), j.s2]))
              unroll j.s2 in 2:
                C[i.s2, j.s2] = C.acc0[j.s2]
        """
    )


def test_a_guarded_update_stays_in_memory() -> None:
    function = RegisterTiles(16).apply(loops(matmul(1, 5, 4), Split(2, 1, 5, (2,)), Reorder(2, (0, 1, 3, 2))))
    assert str(function) == golden(
        """
        def k(A: float32[1, 4], B: float32[4, 5], C: float32[1, 5]):
          for j.0.s2 in 3:
            for j.1.s2 in 2:
              if (((j.0.s2 * 2) + j.1.s2) < 5):
                C[0, ((j.0.s2 * 2) + j.1.s2)] = 0.0
            for k.s2 in 4:
              for j.1.s2 in 2:
                if (((j.0.s2 * 2) + j.1.s2) < 5):
                  C[0, ((j.0.s2 * 2) + j.1.s2)] = (C[0, ((j.0.s2 * 2) + j.1.s2)] + (A[0, k.s2] * B[k.s2, ((j.0.s2 * 2) + j.1.s2)]))
        """
    )


def test_a_tile_of_too_many_vectors_stays_in_memory() -> None:
    function = RegisterTiles(16).apply(loops(matmul(65, 1, 4), Reorder(2, (2, 0, 1))))
    assert str(function) == golden(
        """
        def k(A: float32[65, 4], B: float32[4, 1], C: float32[65, 1]):
          for i.s2 in 65:
            C[i.s2, 0] = 0.0
          for k.s2 in 4:
            for i.s2 in 65:
              C[i.s2, 0] = (C[i.s2, 0] + (A[i.s2, k.s2] * B[k.s2, 0]))
        """
    )


def test_several_values_have_an_accumulator_each() -> None:
    function = RegisterTiles(16).apply(
        loops(sum_and_peak(8, 3), Split(1, 0, 8, (4,)), Reorder(1, (0, 2, 1)), Annotate(1, 2, Annotation.VECTORIZE))
    )
    assert str(function) == golden(
        """
        def k(x: float32[8, 3], t.v0: float32[8], t.v1: float32[8]):
          for i.0.s1 in 2:
            register t.v0.acc0: float32[4]
            register t.v1.acc0: float32[4]
            vector i.1.s1 in 4:
              t.v0.acc0[i.1.s1] = 0.0
              t.v1.acc0[i.1.s1] = 0.0
            for k.s1 in 3:
              vector i.1.s1 in 4:
                register t.v0.new: float32[]
                register t.v1.new: float32[]
                register t.v0.old: float32[]
                register t.v1.old: float32[]
                t.v0.new[] = x[((i.0.s1 * 4) + i.1.s1), k.s1]
                t.v1.new[] = x[((i.0.s1 * 4) + i.1.s1), k.s1]
                t.v0.old[] = t.v0.acc0[i.1.s1]
                t.v1.old[] = t.v1.acc0[i.1.s1]
                t.v0.acc0[i.1.s1] = (t.v0.old[] + t.v0.new[])
                t.v1.acc0[i.1.s1] = max(t.v1.old[], t.v1.new[])
            vector i.1.s1 in 4:
              t.v0[((i.0.s1 * 4) + i.1.s1)] = t.v0.acc0[i.1.s1]
              t.v1[((i.0.s1 * 4) + i.1.s1)] = t.v1.acc0[i.1.s1]
        """
    )


def test_several_values_of_one_point_are_held_without_loops() -> None:
    text = str(RegisterTiles(16).apply(loops(sum_and_peak(8, 3))))
    assert "t.v0.acc0[] = 0.0\n    t.v1.acc0[] = 0.0\n    for k.s1 in 3:" in text
    assert text.endswith("    t.v0[i.s1] = t.v0.acc0[]\n    t.v1[i.s1] = t.v1.acc0[]")


def test_a_join_that_needs_its_operands_twice_is_held_too() -> None:
    x, k = te.placeholder((8, 3), name="x"), te.reduce_axis(3, "k")
    smaller = te.comm_reducer(lambda a, b: te.if_then_else(a < b, a, b), float("inf"), "smaller")
    dag = ComputeDAG([x, te.compute((8,), lambda i: smaller(x[i, k], axis=k), "low")])
    text = str(RegisterTiles(16).apply(loops(dag)))
    assert "low.acc0[] = select((low.old[] < low.new[]), low.old[], low.new[])" in text
