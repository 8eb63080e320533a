"""The loops of steps that add a stage, pad a buffer or follow splits, checked by hand line by line."""

from retune.compiler.schedule.steps import (
    CacheRead,
    ComputeAt,
    FollowFusedSplit,
    Reorder,
    Rfactor,
    Split,
    StorageAlign,
)
from tests.support.small_computations import golden, loops, matmul, sum_and_peak, window

# ruff: noqa: E501 - golden text is as wide as it is


def test_a_read_cache_is_filled_inside_the_loop_that_reads_it() -> None:
    function = loops(matmul(4, 6, 8), CacheRead(0, "local", (2,)), Split(3, 2, 8, (4,)), ComputeAt(1, 3, 2))
    assert str(function) == golden(
        """
        def k(A: float32[4, 8], B: float32[8, 6], C: float32[4, 6]):
          for i.s3 in 4:
            for j.s3 in 6:
              C[i.s3, j.s3] = 0.0
              for k.0.s3 in 2:
                local A.local: float32[1, 4]
                for ax1.s1 in 4:
                  A.local[0, ax1.s1] = A[i.s3, (ax1.s1 + (k.0.s3 * 4))]
                for k.1.s3 in 4:
                  C[i.s3, j.s3] = (C[i.s3, j.s3] + (A.local[(i.s3 - i.s3), (((k.0.s3 * 4) + k.1.s3) - (k.0.s3 * 4))] * B[((k.0.s3 * 4) + k.1.s3), j.s3]))
        """
    )


def test_a_factored_reduction_is_two_nests() -> None:
    function = loops(matmul(4, 6, 10), Split(2, 2, 10, (4,)), Rfactor(2, 3, 2))
    assert str(function) == golden(
        """
        def k(A: float32[4, 10], B: float32[10, 6], C: float32[4, 6]):
          workspace C.rf: float32[4, 6, 4]
          for i.s2 in 4:
            for j.s2 in 6:
              for k_1.s2 in 4:
                C.rf[i.s2, j.s2, k_1.s2] = 0.0
                for k_0.s2 in 3:
                  C.rf[i.s2, j.s2, k_1.s2] = (C.rf[i.s2, j.s2, k_1.s2] + select((((k_0.s2 * 4) + k_1.s2) < 10), (A[i.s2, ((k_0.s2 * 4) + k_1.s2)] * B[((k_0.s2 * 4) + k_1.s2), j.s2]), 0.0))
          for ax0.s3 in 4:
            for ax1.s3 in 6:
              C[ax0.s3, ax1.s3] = 0.0
              for k_1_v.s3 in 4:
                C[ax0.s3, ax1.s3] = (C[ax0.s3, ax1.s3] + C.rf[ax0.s3, ax1.s3, k_1_v.s3])
        """
    )


def test_elements_of_an_aligned_region_are_apart() -> None:
    function = loops(window(), Split(2, 0, 8, (2,)), ComputeAt(1, 2, 0), StorageAlign(1, 0, 4, 3))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.0.s2 in 4:
            local a: float32[12]
            for i.s1 in 4:
              a[(i.s1 * 3)] = (x[(i.s1 + (i.0.s2 * 2))] + 1.0)
            for i.1.s2 in 2:
              b[((i.0.s2 * 2) + i.1.s2)] = (a[((((i.0.s2 * 2) + i.1.s2) - (i.0.s2 * 2)) * 3)] + a[(((((i.0.s2 * 2) + i.1.s2) + 2) - (i.0.s2 * 2)) * 3)])
        """
    )


def test_rows_of_an_aligned_region_are_padded() -> None:
    function = loops(
        matmul(4, 6, 8),
        CacheRead(1, "local", (2,)),
        Reorder(3, (2, 0, 1)),
        Split(3, 0, 8, (4,)),
        ComputeAt(2, 3, 0),
        StorageAlign(2, 0, 16, 1),
    )
    assert str(function) == golden(
        """
        def k(A: float32[4, 8], B: float32[8, 6], C: float32[4, 6]):
          for i.s3 in 4:
            for j.s3 in 6:
              C[i.s3, j.s3] = 0.0
          for k.0.s3 in 2:
            local B.local: float32[68]
            for ax0.s2 in 4:
              for ax1.s2 in 6:
                B.local[((ax0.s2 * 17) + ax1.s2)] = B[(ax0.s2 + (k.0.s3 * 4)), ax1.s2]
            for k.1.s3 in 4:
              for i.s3 in 4:
                for j.s3 in 6:
                  C[i.s3, j.s3] = (C[i.s3, j.s3] + (A[i.s3, ((k.0.s3 * 4) + k.1.s3)] * B.local[(((((k.0.s3 * 4) + k.1.s3) - (k.0.s3 * 4)) * 17) + j.s3)]))
        """
    )


def test_a_fused_split_follows_several_splits() -> None:
    function = loops(window(), Split(1, 0, 10, (2,)), FollowFusedSplit(2, 0, (0, 0), 0))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          workspace a: float32[10]
          for i.0.s1 in 5:
            for i.1.s1 in 2:
              a[((i.0.s1 * 2) + i.1.s1)] = (x[((i.0.s1 * 2) + i.1.s1)] + 1.0)
          for i.0.s2 in 2:
            for i.1.s2 in 4:
              b[((i.0.s2 * 4) + i.1.s2)] = (a[((i.0.s2 * 4) + i.1.s2)] + a[(((i.0.s2 * 4) + i.1.s2) + 2)])
        """
    )


def test_a_reduction_of_several_values_reads_all_before_it_writes_one() -> None:
    assert str(loops(sum_and_peak(8, 3))) == golden(
        """
        def k(x: float32[8, 3], t.v0: float32[8], t.v1: float32[8]):
          for i.s1 in 8:
            t.v0[i.s1] = 0.0
            t.v1[i.s1] = 0.0
            for k.s1 in 3:
              register t.v0.new: float32[]
              register t.v1.new: float32[]
              register t.v0.old: float32[]
              register t.v1.old: float32[]
              t.v0.new[] = x[i.s1, k.s1]
              t.v1.new[] = x[i.s1, k.s1]
              t.v0.old[] = t.v0[i.s1]
              t.v1.old[] = t.v1[i.s1]
              t.v0[i.s1] = (t.v0.old[] + t.v0.new[])
              t.v1[i.s1] = max(t.v1.old[], t.v1.new[])
        """
    )
