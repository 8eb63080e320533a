"""Figures for people."""

import math

import pytest

from retune.compiler.runtime.readable import BUSY, busy_warning, count, milliseconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (34.3524e-3, "34.4"),
        (5.641e-3, "5.64"),
        (226.4e-3, "226"),
        (0.9996e-3, "1.00"),
        (18.66e-6, "0.0187"),
        (1.1037, "1100"),
        (0.0, "0"),
        (math.inf, "-"),
        (None, "-"),
    ],
)
def test_times_have_three_digits(seconds: float | None, text: str) -> None:
    assert milliseconds(seconds) == text


def test_only_a_busy_machine_is_warned_of() -> None:
    assert busy_warning(None) == busy_warning(BUSY) == ""
    assert "contention 34%" in busy_warning(0.34)
    assert "`retune doctor`" in busy_warning(0.34)


@pytest.mark.parametrize(("number", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks")])
def test_a_single_thing_has_no_plural(number: int, text: str) -> None:
    assert count(number, "task") == text
