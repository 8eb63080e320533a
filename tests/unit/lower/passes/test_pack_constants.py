"""A weight is laid out in the order of the loops that read it, where its indices are digits."""

import numpy as np

from retune.compiler.lower.passes import PackConstants
from retune.compiler.packing import Packing
from retune.compiler.schedule.steps import Reorder, Split
from tests.unit.lower.small import golden, loops, matmul

# ruff: noqa: E501 - golden text is as wide as it is


def test_a_weight_is_read_in_loop_order() -> None:
    function = PackConstants().apply(loops(matmul(2, 8, 4), Split(2, 1, 8, (4,)), Reorder(2, (1, 3, 0, 2))))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[32], C: float32[2, 8]):
          packed B: [4, 2, 4] by [1, 0, 2]
          for j.0.s2 in 2:
            for i.s2 in 2:
              for j.1.s2 in 4:
                C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = 0.0
            for k.s2 in 4:
              for i.s2 in 2:
                for j.1.s2 in 4:
                  C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = (C[i.s2, ((j.0.s2 * 4) + j.1.s2)] + (A[i.s2, k.s2] * B[((((j.0.s2 * 4) + k.s2) * 4) + j.1.s2)]))
        """
    )


def test_a_split_that_does_not_divide_keeps_the_layout() -> None:
    function = PackConstants().apply(loops(matmul(2, 5, 4), Split(2, 1, 5, (2,))))
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[4, 5], C: float32[2, 5]):
          for i.s2 in 2:
            for j.0.s2 in 3:
              for j.1.s2 in 2:
                if (((j.0.s2 * 2) + j.1.s2) < 5):
                  C[i.s2, ((j.0.s2 * 2) + j.1.s2)] = 0.0
                if (((j.0.s2 * 2) + j.1.s2) < 5):
                  for k.s2 in 4:
                    C[i.s2, ((j.0.s2 * 2) + j.1.s2)] = (C[i.s2, ((j.0.s2 * 2) + j.1.s2)] + (A[i.s2, k.s2] * B[k.s2, ((j.0.s2 * 2) + j.1.s2)]))
        """
    )


def test_the_packing_puts_each_element_where_it_is_read() -> None:
    # By hand: B[k, j] with j = 4 j.0 + j.1 lies at (4 j.0 + k) * 4 + j.1.
    weight = np.arange(32).reshape(4, 8)
    packed = Packing((4, 2, 4), (1, 0, 2)).pack(weight)
    for k in range(4):
        for j in range(8):
            assert packed[(j // 4 * 4 + k) * 4 + j % 4] == weight[k, j]
