"""A packing puts each element of a weight where the loops read it."""

import numpy as np

from retune.compiler.packing import Packing


def test_the_packing_puts_each_element_where_it_is_read() -> None:
    # By hand: B[k, j] with j = 4 j.0 + j.1 lies at (4 j.0 + k) * 4 + j.1.
    weight = np.arange(32).reshape(4, 8)
    packed = Packing((4, 2, 4), (1, 0, 2)).pack(weight)
    for k in range(4):
        for j in range(8):
            assert packed[(j // 4 * 4 + k) * 4 + j % 4] == weight[k, j]
