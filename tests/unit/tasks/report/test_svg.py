"""Scales, ticks and files of charts."""

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from retune.tasks.report.svg import Scale, number, rect, svg_document, svg_figure, svg_legend, svg_text


def test_a_straight_scale_maps_ends_to_ends() -> None:
    scale = Scale.over([2.0, 4.0, math.inf], 0.0, 100.0)
    assert [scale(value) for value in (2.0, 3.0, 4.0, 9.0)] == [0.0, 50.0, 100.0, 100.0]
    assert Scale.over([4.0], 0.0, 100.0, zero=True)(1.0) == 25.0


def test_a_logarithmic_scale_gives_factors_the_same_room() -> None:
    scale = Scale.over([1.0, 100.0, 0.0, -3.0], 0.0, 100.0, log=True)
    assert scale(10.0) == pytest.approx(50.0)
    assert scale(100.0) - scale(10.0) == pytest.approx(scale(10.0) - scale(1.0))


@pytest.mark.parametrize("values", [[], [math.inf], [0.0], [3.0, 3.0]])
@pytest.mark.parametrize("log", [False, True])
def test_a_scale_of_little_is_still_one(values: list[float], log: bool) -> None:
    scale = Scale.over(values, 0.0, 100.0, log=log)
    assert 0.0 <= scale(1.0) <= 100.0
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks())


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 230.0), (3e-4, 7e-4), (-5.0, 5.0)])
def test_ticks_are_round_and_few(low: float, high: float) -> None:
    ticks = Scale(low, high, 0.0, 1.0).ticks(5)
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-12 <= tick <= high + 1e-12 for tick in ticks)
    steps = {round(after - before, 12) for before, after in pairwise(ticks)}
    assert len(steps) == 1
    assert f"{steps.pop():.0e}"[0] in "125"


@pytest.mark.parametrize(("low", "high"), [(1.0, 1000.0), (0.7, 1.4), (1e-6, 1e9)])
def test_logarithmic_ticks_are_few(low: float, high: float) -> None:
    ticks = Scale(low, high, 0.0, 1.0, log=True).ticks(5)
    assert 1 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.0, 0.25, 1234.0, 2e-7, 3e9)] == ["0", "0.25", "1234", "2e-7", "3e9"]


def test_words_are_escaped_and_files_are_xml() -> None:
    parts = [rect(0, 0, 5, 5, "red", 'a < b & "c"'), svg_text(0, 0, "<b>"), *svg_legend(0, {"x & y": "red"})]
    for text in (svg_document("a < b", 10, 10, parts), svg_figure('say "a < b"', 10, 10, parts)):
        tree = ElementTree.fromstring(text)
        words = [piece.text for piece in tree.iter() if piece.text]
        assert "<b>" in words
        assert "x & y" in words
