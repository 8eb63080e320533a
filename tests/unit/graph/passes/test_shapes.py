"""Shapes that two shapes merge, against NumPy's reshapes."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.compiler.graph.passes.shapes import common_factors

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("before", "after", "factors", "merged"),
    [
        ((1, 128, 32, 32), (1, 32, 4096), (32, 4, 32, 32), ((), (0,), (1, 2, 3))),
        ((6, 4), (4, 6), None, None),
        ((6, 4), (2, 12), (2, 3, 4), ((0,), (1, 2))),
        ((2, 3), (2, 3), (2, 3), ((0,), (1,))),
        ((4,), (2, 1, 2), (2, 2), ((0,), (), (1,))),
        ((1, 1), (1,), (), ((),)),
        ((0, 3), (3, 0), None, None),
    ],
)
def test_common_factors(before: Shape, after: Shape, factors: Shape | None, merged: tuple[Shape, ...] | None) -> None:
    assert common_factors(before, after) == (None if factors is None else (factors, merged))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_factors_are_found_where_both_shapes_merge_neighbors(axes: list[int], data: st.DataObject) -> None:
    def merge() -> Shape:
        cuts = data.draw(st.sets(st.integers(1, len(axes) - 1))) if len(axes) > 1 else set[int]()
        bounds = [0, *sorted(cuts), len(axes)]
        return tuple(prod(axes[start:stop]) for start, stop in pairwise(bounds))

    before, after = merge(), merge()
    found = common_factors(before, after)
    if found is not None:
        factors, merged = found
        assert [place for places in merged for place in places] == list(range(len(factors)))
        assert tuple(prod(factors[place] for place in places) for places in merged) == after
        again = common_factors(after, before)
        assert again is not None
        assert again[0] == factors
