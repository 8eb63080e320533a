"""Moves in arrays: products are preserved, limits are kept, one thing changes at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.search import mutation
from retune.compiler.search.factorize import sample_factorizations
from retune.compiler.search.genome import Layout, Rows, keys_of

LAYOUT = Layout.of(((0, 96, 4), (1, 49, 4), (2, 36, 2), (3, 1, 4)), (4, 6), (4,))


def rows_of(rng: np.random.Generator, count: int) -> Rows:
    """Valid random rows of the test layout."""
    rows = np.zeros((count, LAYOUT.width), dtype=np.int64)
    for split in LAYOUT.splits:
        rows[:, split.columns] = sample_factorizations(rng, count, split.extent, split.parts - 1, 16)
    rows[:, LAYOUT.placement] = rng.integers(3, size=count)
    for _, column in (*LAYOUT.parallel, *LAYOUT.vector):
        rows[:, column] = rng.integers(2, size=count)
    for _, column in LAYOUT.unroll:
        rows[:, column] = rng.choice([0, 16, 64], size=count)
    return rows


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_tile_moves_keep_products_and_the_innermost_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rows_of(rng, 64)
    before = rows.copy()
    children = mutation.move_tile_factors(rng, rows, LAYOUT, 16)
    assert (rows == before).all()
    for split in LAYOUT.splits:
        assert (children[:, split.columns].prod(axis=1) == split.extent).all()
        assert (children[:, split.columns] >= 1).all()
        assert (children[:, split.start + split.parts - 1] <= 16).all()
    assert (children[:, LAYOUT.placement :] == rows[:, LAYOUT.placement :]).all()
    changed = [(children[:, s.columns] != rows[:, s.columns]).any(axis=1) for s in LAYOUT.splits]
    assert (np.sum(changed, axis=0) == 1).all()


def test_tile_moves_reach_every_factorisation() -> None:
    layout = Layout.of(((0, 12, 3),), (), ())
    rng = np.random.default_rng(0)
    rows = np.array([[12, 1, 1, 0]] * 64, dtype=np.int64)
    found: set[tuple[int, ...]] = set()
    for _ in range(60):
        rows = mutation.move_tile_factors(rng, rows, layout, 6)
        found.update(tuple(row[:3]) for row in rows.tolist())
    expected = {(12 // (b * c), b, c) for b in range(1, 13) for c in range(1, 7) if 12 % (b * c) == 0}
    assert found == expected


def test_a_stuck_split_stays_as_it_is() -> None:
    layout = Layout.of(((0, 7, 2),), (), ())
    rows = np.array([[7, 1, 0]], dtype=np.int64)
    assert (mutation.move_tile_factors(np.random.default_rng(0), rows, layout, 6) == rows).all()


def test_redraws_change_one_column_of_every_row() -> None:
    rng = np.random.default_rng(3)
    rows = rows_of(rng, 50)
    for children in (
        mutation.redraw_unroll(rng, rows, LAYOUT, (0, 16, 64)),
        mutation.redraw_placement(rng, rows, LAYOUT, np.arange(3)),
        mutation.redraw_parallel(rng, rows, LAYOUT, 4),
        mutation.flip_vector(rng, rows, LAYOUT),
    ):
        assert ((children != rows).sum(axis=1) == 1).all()


def test_a_redraw_without_alternative_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    rows = rows_of(rng, 5)
    rows[:, LAYOUT.placement] = 0
    assert (mutation.redraw_placement(rng, rows, LAYOUT, np.arange(1)) == rows).all()


def test_crossover_takes_whole_splits_from_either_parent() -> None:
    rng = np.random.default_rng(5)
    rows, mates = rows_of(rng, 200), rows_of(rng, 200)
    children = mutation.exchange_columns(rng, rows, mates, LAYOUT)
    from_mate = 0
    for group in LAYOUT.groups():
        mine = (children[:, group] == rows[:, group]).all(axis=1)
        other = (children[:, group] == mates[:, group]).all(axis=1)
        assert (mine | other).all()
        from_mate += int((other & ~mine).sum())
    assert from_mate > 0


@pytest.mark.parametrize("space", [0, 1])
def test_keys_tell_rows_apart(space: int) -> None:
    rows = np.unique(rows_of(np.random.default_rng(1), 2000), axis=0)
    keys = keys_of(space, rows)
    assert len(set(keys.tolist())) == len(rows)
    assert (keys_of(space, rows) == keys).all()
    assert not set(keys.tolist()) & set(keys_of(space + 1, rows).tolist())
