"""Ordered factorisations: exact, and drawn uniformly."""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.search.factorize import covering, divisors, sample_factorizations


def test_divisors_of_a_composite() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(1) == (1,)
    assert divisors(97) == (1, 97)


def test_extents_without_a_divisor_to_tile_by_are_covered() -> None:
    rows = {extent: covering(extent, 64, is_vector=False) for extent in (1, 13, 17, 22, 31, 37, 49, 62, 197, 211, 1000)}
    assert rows == {1: 1, 13: 13, 17: 18, 22: 22, 31: 32, 37: 40, 49: 49, 62: 64, 197: 208, 211: 224, 1000: 1000}
    columns = {extent: covering(extent, 64, is_vector=True) for extent in (3, 61, 64, 77, 197, 1000, 1001)}
    assert columns == {3: 3, 61: 61, 64: 64, 77: 80, 197: 208, 1000: 1000, 1001: 1008}


@given(st.integers(1, 4096), st.integers(1, 4), st.integers(1, 64), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_samples_keep_the_product_and_the_limit(extent: int, levels: int, max_last: int, seed: int) -> None:
    rows = sample_factorizations(np.random.default_rng(seed), 50, extent, levels, max_last)
    assert rows.shape == (50, levels + 1)
    assert (rows.prod(axis=1) == extent).all()
    assert (rows[:, -1] <= max_last).all()
    assert (rows >= 1).all()


def test_samples_are_uniform_over_every_factorisation() -> None:
    listed = [pair for pair in product(divisors(24), repeat=2) if 24 % prod(pair) == 0 and pair[1] <= 6]
    rows = sample_factorizations(np.random.default_rng(7), 40_000, 24, 2, 6)
    counts = dict.fromkeys(listed, 0)
    for row in rows[:, 1:]:
        counts[(int(row[0]), int(row[1]))] += 1
    expected = 40_000 / len(listed)
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 2.0 * len(listed)
