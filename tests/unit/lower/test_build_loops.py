"""The loops of small schedules, checked by hand line by line."""

from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, ComputeInline, Fuse, Reorder, Split
from tests.support.small_computations import doubled, golden, loops, matmul, window

# ruff: noqa: E501 - golden text is as wide as it is


def test_a_split_that_does_not_divide_is_guarded() -> None:
    function = loops(doubled(10), Split(1, 0, 10, (4,)))
    assert str(function) == golden(
        """
        def k(x: float32[10], y: float32[10]):
          for i.0.s1 in 3:
            for i.1.s1 in 4:
              if (((i.0.s1 * 4) + i.1.s1) < 10):
                y[((i.0.s1 * 4) + i.1.s1)] = (x[((i.0.s1 * 4) + i.1.s1)] * 2.0)
        """
    )


def test_a_stage_is_computed_where_it_is_read_over_the_region_that_is_read() -> None:
    function = loops(window(), Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.0.s2 in 2:
            local a: float32[6]
            for i.s1 in 6:
              a[i.s1] = (x[(i.s1 + (i.0.s2 * 4))] + 1.0)
            for i.1.s2 in 4:
              b[((i.0.s2 * 4) + i.1.s2)] = (a[(((i.0.s2 * 4) + i.1.s2) - (i.0.s2 * 4))] + a[((((i.0.s2 * 4) + i.1.s2) + 2) - (i.0.s2 * 4))])
        """
    )


def test_a_region_past_the_edge_is_guarded() -> None:
    function = loops(window(), Split(2, 0, 8, (3,)), ComputeAt(1, 2, 0))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.0.s2 in 3:
            local a: float32[5]
            for i.s1 in 5:
              if ((i.s1 + (i.0.s2 * 3)) < 10):
                a[i.s1] = (x[(i.s1 + (i.0.s2 * 3))] + 1.0)
            for i.1.s2 in 3:
              if (((i.0.s2 * 3) + i.1.s2) < 8):
                b[((i.0.s2 * 3) + i.1.s2)] = (a[(((i.0.s2 * 3) + i.1.s2) - (i.0.s2 * 3))] + a[((((i.0.s2 * 3) + i.1.s2) + 2) - (i.0.s2 * 3))])
        """
    )


def test_an_inlined_stage_has_no_loops() -> None:
    function = loops(window(), ComputeInline(1))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.s2 in 8:
            b[i.s2] = ((x[i.s2] + 1.0) + (x[(i.s2 + 2)] + 1.0))
        """
    )


def test_a_reduction_is_initialized_before_its_outermost_loop() -> None:
    function = loops(matmul(2, 3, 4))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 3], C: float32[2, 3]):
          for i.s2 in 2:
            for j.s2 in 3:
              C[i.s2, j.s2] = 0.0
              for k.s2 in 4:
                C[i.s2, j.s2] = (C[i.s2, j.s2] + (A[i.s2, k.s2] * B[k.s2, j.s2]))
        """
    )


def test_a_reduction_outside_initializes_the_whole_result_first() -> None:
    function = loops(matmul(2, 3, 4), Reorder(2, (2, 0, 1)))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 3], C: float32[2, 3]):
          for i.s2 in 2:
            for j.s2 in 3:
              C[i.s2, j.s2] = 0.0
          for k.s2 in 4:
            for i.s2 in 2:
              for j.s2 in 3:
                C[i.s2, j.s2] = (C[i.s2, j.s2] + (A[i.s2, k.s2] * B[k.s2, j.s2]))
        """
    )


def test_the_guard_of_a_result_axis_holds_for_the_initialization_too() -> None:
    function = loops(matmul(2, 5, 4), Split(2, 1, 5, (2,)), Reorder(2, (0, 1, 3, 2)))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 5], C: float32[2, 5]):
          for i.s2 in 2:
            for j.0.s2 in 3:
              for j.1.s2 in 2:
                if (((j.0.s2 * 2) + j.1.s2) < 5):
                  C[i.s2, ((j.0.s2 * 2) + j.1.s2)] = 0.0
              for k.s2 in 4:
                for j.1.s2 in 2:
                  if (((j.0.s2 * 2) + j.1.s2) < 5):
                    C[i.s2, ((j.0.s2 * 2) + j.1.s2)] = (C[i.s2, ((j.0.s2 * 2) + j.1.s2)] + (A[i.s2, k.s2] * B[k.s2, ((j.0.s2 * 2) + j.1.s2)]))
        """
    )


def test_the_guard_of_a_reduce_axis_does_not_hold_for_the_initialization() -> None:
    function = loops(matmul(1, 2, 5), Split(2, 2, 5, (2,)))
    assert str(function) == golden(
        """
        def k(A: float32[1, 5], B: float32[5, 2], C: float32[1, 2]):
          for j.s2 in 2:
            C[0, j.s2] = 0.0
            for k.0.s2 in 3:
              for k.1.s2 in 2:
                if (((k.0.s2 * 2) + k.1.s2) < 5):
                  C[0, j.s2] = (C[0, j.s2] + (A[0, ((k.0.s2 * 2) + k.1.s2)] * B[((k.0.s2 * 2) + k.1.s2), j.s2]))
        """
    )


def test_a_fused_loop_binds_the_loops_it_was_made_from() -> None:
    function = loops(matmul(2, 3, 4), Fuse(2, (0, 1)), Annotate(2, 0, Annotation.PARALLEL))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 3], C: float32[2, 3]):
          parallel i@j@.s2 in 6:
            let i.s2 = (i@j@.s2 // 3)
            let j.s2 = (i@j@.s2 % 3)
            C[i.s2, j.s2] = 0.0
            for k.s2 in 4:
              C[i.s2, j.s2] = (C[i.s2, j.s2] + (A[i.s2, k.s2] * B[k.s2, j.s2]))
        """
    )
