"""Shapes that two shapes merge, against NumPy's reshapes."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.compiler.graph.passes.rules.shapes import common_factors

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("one", "two", "factors", "of_one", "of_two"),
    [
        (
            (1, 128, 32, 32),
            (1, 32, 4096),
            (32, 4, 32, 32),
            [range(0), range(2), range(2, 3), range(3, 4)],
            [range(0), range(1), range(1, 4)],
        ),
        ((6, 4), (2, 12), (2, 3, 4), [range(2), range(2, 3)], [range(1), range(1, 3)]),
        ((2, 3), (2, 3), (2, 3), [range(1), range(1, 2)], [range(1), range(1, 2)]),
        ((4,), (2, 1, 2), (2, 2), [range(2)], [range(1), range(1, 1), range(1, 2)]),
        ((1, 1), (1,), (), [range(0), range(0)], [range(0)]),
    ],
)
def test_common_factors(one: Shape, two: Shape, factors: Shape, of_one: list[range], of_two: list[range]) -> None:
    assert common_factors(one, two) == (factors, of_one, of_two)


@pytest.mark.parametrize(("one", "two"), [((6, 4), (4, 6)), ((0, 3), (3, 0))])
def test_shapes_that_cut_across_each_other_have_no_common_factors(one: Shape, two: Shape) -> None:
    assert common_factors(one, two) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_factors_merge_into_both_shapes(axes: list[int], data: st.DataObject) -> None:
    def merge() -> Shape:
        cuts = data.draw(st.sets(st.integers(1, len(axes) - 1))) if len(axes) > 1 else set[int]()
        bounds = [0, *sorted(cuts), len(axes)]
        return tuple(prod(axes[start:stop]) for start, stop in pairwise(bounds))

    one, two = merge(), merge()
    found = common_factors(one, two)
    if found is None:
        return
    factors, *places = found
    assert 1 not in factors
    for shape, merged in zip((one, two), places, strict=True):
        assert [place for each in merged for place in each] == list(range(len(factors)))
        assert tuple(prod(factors[place] for place in each) for each in merged) == shape
