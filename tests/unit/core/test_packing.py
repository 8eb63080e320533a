"""Constants are laid out in the order in which loops read them."""

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.packing import Packing


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


PADDED = Packing(dims=(2, 3, 4), order=(1, 0, 2), extents=(2, 11))
"""Columns in strips of four, of which the last one is padded."""


def test_pack_pads_each_dimension_with_zeros() -> None:
    weights = np.arange(1, 23, dtype=np.float32).reshape(2, 11)
    packed = PADDED.pack(weights)
    assert packed.size == PADDED.size == 24
    assert PADDED.padded == (2, 12)
    assert packed[8:].tolist() == [5, 6, 7, 8, 16, 17, 18, 19, 9, 10, 11, 0, 20, 21, 22, 0]
    assert np.array_equal(PADDED.unpack(packed, (2, 11)), weights)


def test_two_dimensions_are_padded() -> None:
    packing = Packing((3, 6, 1, 31, 2), (3, 0, 1, 4, 2), (17, 61))
    weights = np.random.default_rng(0).normal(size=(17, 61)).astype(np.float32)
    packed = packing.pack(weights)
    assert packing.padded == (18, 62)
    assert (packed != 0).sum() == weights.size
    assert np.array_equal(packing.unpack(packed, (17, 61)), weights)


def test_what_does_not_fit_a_padded_packing_is_refused() -> None:
    for shape in ((2, 10), (2, 12), (22,), (2, 11, 1)):
        with pytest.raises(ArtifactError, match=r"holds 22 of \(2, 11\)"):
            PADDED.pack(np.zeros(shape, np.float32))
    for extents in ((2, 13), (3, 11), (2, 10), (2, 11, 0)):
        with pytest.raises(ArtifactError, match="does not pad an array"):
            Packing((2, 3, 4), (1, 0, 2), extents)
