"""Constants are laid out in the order in which loops read them."""

import numpy as np
import pytest

from retune.compiler.errors import ArtifactError
from retune.compiler.packing import Packing


def test_packing_moves_the_inner_tile_to_the_end() -> None:
    weights = np.arange(24, dtype=np.float32).reshape(4, 6)
    packing = Packing(dims=(4, 2, 3), order=(1, 0, 2))  # columns in two tiles of three, tile by tile
    expected = np.concatenate([weights[:, :3].ravel(), weights[:, 3:].ravel()])
    assert np.array_equal(packing.pack(weights), expected)


def test_unpacking_undoes_packing() -> None:
    weights = np.random.default_rng(0).normal(size=(3, 3, 4, 8)).astype(np.float32)
    packing = Packing(dims=(3, 3, 2, 2, 4, 2), order=(4, 2, 0, 1, 3, 5))
    packed = packing.pack(weights)
    assert packed.flags.c_contiguous
    assert not np.array_equal(packed, weights.ravel())
    assert np.array_equal(packing.unpack(packed, weights.shape), weights)


def test_packing_writes_into_the_given_memory() -> None:
    target = np.zeros(6, np.float32)
    result = Packing((2, 3), (1, 0)).pack(np.arange(6, dtype=np.float32).reshape(2, 3), out=target)
    assert result is target
    assert target.tolist() == [0, 3, 1, 4, 2, 5]


def test_packing_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(ArtifactError, match="holds 6 elements"):
        Packing((2, 3), (1, 0)).pack(np.zeros(8, np.float32))
    with pytest.raises(ArtifactError, match="no permutation"):
        Packing((2, 3), (0, 0))


def test_the_packed_shape_is_that_of_the_digits_in_memory() -> None:
    packing = Packing((2, 3, 4), (2, 0, 1))
    assert packing.shape == (4, 2, 3)
    array = np.arange(24).reshape(2, 12)
    assert np.array_equal(packing.pack(array).reshape(4, 2, 3), array.reshape(2, 3, 4).transpose(2, 0, 1))


PADDED = Packing(dims=(2, 3, 4), order=(1, 0, 2), padded=(2, 12))
"""Columns in strips of four, of which the last one is filled up with zeros."""


def test_a_padded_array_is_followed_by_zeros() -> None:
    weights = np.arange(1, 21, dtype=np.float32).reshape(2, 10)
    packed = PADDED.pack(weights)
    assert packed.size == PADDED.size == 24
    assert packed[8:].tolist() == [5, 6, 7, 8, 15, 16, 17, 18, 9, 10, 0, 0, 19, 20, 0, 0]
    assert np.array_equal(PADDED.unpack(packed, (2, 10)), weights)


def test_what_does_not_fit_a_padded_packing_is_refused() -> None:
    for shape in ((3, 10), (2, 13), (20,), (2, 5, 2)):
        with pytest.raises(ArtifactError, match=r"holds 24 elements of \(2, 12\)"):
            PADDED.pack(np.zeros(shape, np.float32))
    with pytest.raises(ArtifactError, match=r"the padded shape \(2, 11\)"):
        Packing((2, 3, 4), (1, 0, 2), (2, 11))
