"""Symbolic dimensions: their arithmetic, what comparisons decide, and their form as data."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import Dim, dim_from_json, dim_to_json, integers, is_certain, may_be_positive, substitute
from retune.compiler.ir.guards import Assumptions

n, m = Dim.symbol("n"), Dim.symbol("m")

_STEPS: tuple[Callable[[int, int], int], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: b - a,
    lambda a, b: a * b,
    lambda a, b: a // (abs(b) + 1) if not isinstance(b, Dim) else a // (b * b + 1),
    lambda a, b: a % (abs(b) + 1) if not isinstance(b, Dim) else a % (b * b + 1),
    lambda a, b: (a * b) // b if b else a,
)


def _random(draw: Random) -> int:
    """A dimension of a few steps over n, m and numbers."""
    value: int = draw.choice((n, m))
    for _ in range(draw.randrange(1, 6)):
        value = draw.choice(_STEPS)(value, draw.choice((n, m, 2, 3, -4, 7)))
    return value


@pytest.mark.parametrize("seed", range(40))
def test_arithmetic_agrees_with_integers(seed: int) -> None:
    with Assumptions({"n": 5, "m": 3}) as assumed:
        dim = _random(Random(seed))
    draw = Random(seed)
    for _ in range(8):
        numbers = {"n": draw.randrange(1, 50), "m": draw.randrange(1, 50)}
        if all(guard.fits(numbers) for guard in assumed.guards):
            replayed = _replayed(Random(seed), numbers)
            assert substitute(dim, numbers) == replayed, f"{dim} for {numbers}"


def _replayed(draw: Random, numbers: dict[str, int]) -> int:
    """As `_random`, on the numbers."""
    value = numbers[str(draw.choice((n, m)))]
    for _ in range(draw.randrange(1, 6)):
        step, other = draw.choice(_STEPS), draw.choice((n, m, 2, 3, -4, 7))
        if isinstance(other, Dim) and step in _STEPS[4:6]:
            number = numbers[str(other)]
            value = value // (number**2 + 1) if step is _STEPS[4] else value % (number**2 + 1)
        else:
            value = step(value, numbers[str(other)] if isinstance(other, Dim) else other)
    return value


@pytest.mark.parametrize("seed", range(20))
def test_dimensions_come_back_from_json(seed: int) -> None:
    with Assumptions({"n": 5, "m": 3}):
        dim = _random(Random(seed))
        again = dim_from_json(json.loads(json.dumps(dim_to_json(dim))))
        assert again == dim
    assert str(again) == str(dim)


@pytest.mark.parametrize("data", ["n", 1.5, None, {"dim": [["n"]]}, {"dim": [[1, ["+", 1, 2]]]}, {"dim": 3}, {}])
def test_other_json_is_no_dimension(data: object) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        dim_from_json(data)


def test_symbols_cancel() -> None:
    assert type(n - n + 3) is int
    assert str(12 * n * m // 4 - 2 * m * n) == "m*n"
    assert (6 * n + 3) % 3 == 0
    assert str((6 * n + 4) // 3) == "2*n + 1"


def test_comparisons_that_hold_always_need_no_assumption() -> None:
    assert n >= 0
    assert n + 1 > 0
    assert n != -1
    assert n * m + 1 != 0
    assert n < 2**40
    assert n == Dim.symbol("n")
    assert ((n - 1) // 2 + 1) // 7 >= 0
    assert n % 4 - 4 < 0
    with pytest.raises(DefinitionError, match="whether n - 1 is zero is not known before the run"):
        bool(n == 1)


def test_decisions_are_kept_as_guards() -> None:
    with Assumptions({"n": 7, "m": 4}) as assumed:
        smaller = m if m < n else n
        assert n * m != 0
        assert bool(n == 1) is False
    assert smaller is m
    assert [str(guard) for guard in assumed.guards] == ["n > m", "m != 0", "n != 0", "n != 1"]
    fits = {pair: all(g.fits(dict(zip("nm", pair, strict=True))) for g in assumed.guards) for pair in ((3, 2), (2, 3))}
    assert fits == {(3, 2): True, (2, 3): False}


@pytest.mark.parametrize("seed", range(40))
def test_comparisons_without_a_guard_hold_for_all_numbers(seed: int) -> None:
    with Assumptions({"n": 5, "m": 3}):
        dim = _random(Random(seed))
    with Assumptions({"n": 5, "m": 3}) as assumed:
        is_positive, is_zero = dim > 0, dim == 0
    draw = Random(seed)
    for _ in range(20):
        numbers = {"n": draw.randrange(30), "m": draw.randrange(30)}
        if all(guard.fits(numbers) for guard in assumed.guards):
            number = substitute(dim, numbers)
            assert (number > 0, number == 0) == (is_positive, is_zero), f"{dim} for {numbers}"


def test_a_sign_is_guarded_where_facts_do_not_decide_it() -> None:
    with Assumptions({"n": 5, "m": 3}, ()) as assumed:
        assert n * m > 0
    assert [str(guard) for guard in assumed.guards] == ["m > 0", "n > 0"]


def test_elements_may_be_negative() -> None:
    element = Dim.symbol("target[0]")
    with Assumptions({"target[0]": -1}) as assumed:
        assert element == -1
        assert element < 0
    assert len(assumed.guards) == 2


@pytest.mark.parametrize("convert", [int, float, range, lambda dim: np.zeros(dim), lambda dim: np.asarray([dim], "i8")])
def test_a_dimension_is_never_taken_for_a_number(convert: Callable[[int], object]) -> None:
    with Assumptions({"n": 7}), pytest.raises(TypeError):
        convert(n)


def test_integers_are_an_array_of_numbers_where_they_can_be() -> None:
    assert integers((1, 2)).dtype == "int64"
    assert integers((1, n)).dtype == object
    assert integers(n).shape == ()


def test_what_numpy_numbers_decide_is_data_too() -> None:
    five: Any = np.int64(5)
    with Assumptions({"n": five}) as assumed:
        assert n > 3
    assert [type(guard.holds) for guard in assumed.guards] == [bool]


def test_strided_windows_leave_no_more_than_their_stride() -> None:
    n = Dim.symbol("n")
    for stride in (2, 3, 4):
        windows = (n - 1) // stride + 1
        covered = (windows - 1) * stride + 1
        assert not may_be_positive(covered - n)
        assert may_be_positive(covered + 1 - n)
        assert is_certain(stride - (n - covered))
        assert not is_certain(stride - 1 - (n - covered))
        halves = windows // 2
        assert not may_be_positive(2 * halves - windows)
        assert may_be_positive(2 * halves + 1 - windows)


def test_dimensions_of_opposite_signs_are_keys_of_their_own() -> None:
    n = Dim.symbol("n")
    assert {-n: "minus one", -2 * n: "minus two"}[-2 * n] == "minus two"


def test_a_divisor_is_guarded_in_each_context() -> None:
    n, m = Dim.symbol("n"), Dim.symbol("m")
    for _ in range(2):
        with Assumptions({"n": 7, "m": 2}) as assumed:
            assert str(n // (m - 1)) == "((n) // (m - 1))"
        assert [str(guard) for guard in assumed.guards] == ["m != 1"]


def test_division_decides_nothing_about_other_quotients() -> None:
    n, m = Dim.symbol("n"), Dim.symbol("m")
    with Assumptions({"n": 7, "m": 7}) as assumed:
        assert str(3 * (n // 2) // (m // 2)) == "((3*((n) // (2))) // (((m) // (2))))"
    assert [str(guard) for guard in assumed.guards] == ["((m) // (2)) != 0"]
