"""How far the first element of a vector is aligned: never more than it is, and as much as the indices show."""

import numpy as np
import pytest

from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.alignment import element_alignment, first_alignment
from retune.compiler.ir.expr import Buffer, Expr, Load, Var

V, A, B = Var("v"), Var("i"), Var("j")
FLAT = Buffer("x", (4096,), "float32")
WIDE = Buffer("w", (64, 12), "float32")


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (A * 4 + V, 16),
        (A * 2 + V, 8),
        (A * 8 + B * 4 + V, 16),
        (A * 8 + B * 6 + V, 8),
        (A * 4 + V + 1, 4),
        (A * 4 + V + 2, 8),
        ((A % 8) * 4 + V, 16),
        ((A * 4) % 8 + V, 16),
        ((A * 4) // 8 + V, 4),
        (A * 4 + V * 2, 4),
        ((A * 4 + V) % 8, 4),
        (V, 16),
    ],
)
def test_what_the_indices_show(index: Expr, expected: int) -> None:
    assert first_alignment(FLAT, (index,), V) == expected


def test_rows_and_types_count() -> None:
    assert first_alignment(WIDE, (A, V), V) == 16
    assert first_alignment(Buffer("w", (64, 6), "float32"), (A, V), V) == 8
    assert first_alignment(Buffer("h", (64, 4), "float16"), (A, V), V) == 8
    assert first_alignment(Buffer("b", (64,), "int8"), (A * 16 + V,), V) == 16
    assert first_alignment(FLAT, (Load(Buffer("t", (8,), "int64"), (A,)) + V,), V) == 4


@pytest.mark.parametrize(
    ("index", "value", "expected"),
    [
        (A * 4, 1, 16),
        (A * 4 + V, 1, 4),
        (A * 4 + V, 2, 8),
        (A * 4 + V, 4, 16),
        (A * 4 + V * 2, 2, 16),
        (A * 8 + V + 1, 1, 8),
        (A * 6 + V, 0, 8),
        (A + V, 4, 4),
        ((A % 4) * 2 + V, 0, 8),
    ],
)
def test_of_an_element_the_values_of_variables_may_be_known(index: Expr, value: int, expected: int) -> None:
    known: dict[Expr, int] = {V: value}
    assert element_alignment(FLAT, flat_index(FLAT.shape, (index,)), known.get) == expected


def test_no_element_is_less_aligned_than_said() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        step, other, most, start, known = (int(number) for number in rng.integers(0, 9, 5))
        index = A * step + (B * other) % (most + 1) + V * 3 + start
        values: dict[Expr, int] = {V: known}
        said = element_alignment(FLAT, flat_index(FLAT.shape, (index,)), values.get) // 4
        places = [i * step + (j * other) % (most + 1) + 3 * known + start for i in range(6) for j in range(6)]
        assert all(place % said == 0 for place in places), index


def test_no_place_is_less_aligned_than_said() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        step, other, most, start = (int(number) for number in rng.integers(0, 9, 4))
        form = A * step + (B * other) % (most + 1) + start + V
        said = first_alignment(FLAT, (form,), V) // 4
        places = [i * step + (j * other) % (most + 1) + start for i in range(6) for j in range(6)]
        assert all(place % said == 0 for place in places), form
