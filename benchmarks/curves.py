"""SVG chart of tuning curves: for each case the best speed against trials (left) and against seconds (right).

A curve is the field `curve` of a figure's details: [trials, seconds, speed] of every point. Figures without one, such
as other libraries, are horizontal lines across both panels; dots are the values of the figures themselves.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from benchmarks.plot import Shown
from retune.tasks.report.svg import LEGEND_STEP, circle, color_of, polyline, svg_document, svg_legend, svg_text

LEFT, WIDTH, HEIGHT, GAP, TOP = 70, 330, 150, 60, 60

Curve = Sequence[tuple[float, float, float]]


class Searched(Shown, Protocol):
    """The fields of a figure that this chart needs in addition."""

    @property
    def details(self) -> Mapping[str, object]: ...


def curve_chart(title: str, figures: Sequence[Searched]) -> str:
    """A row of two panels for every case and thread count, in the order of the figures."""
    backends = list(dict.fromkeys(figure.backend for figure in figures))
    colors = {backend: color_of(place) for place, backend in enumerate(backends)}
    parts = list(svg_legend(LEFT, colors))
    top = float(TOP)
    for (case, threads), group in groupby(figures, key=lambda one: (one.case, one.threads)):
        shown = [one for one in group if math.isfinite(one.value)]
        parts.append(svg_text(LEFT, top + 10, f"{case}, {threads} thread{'s' if threads > 1 else ''}"))
        for column, axis in enumerate(("trials", "seconds")):
            parts += _panel(LEFT + column * (WIDTH + GAP), top + 16, column, axis, shown, colors)
        top += HEIGHT + GAP
    width = max(LEFT + 2 * WIDTH + 2 * GAP, LEFT + LEGEND_STEP * len(backends))
    return svg_document(title, width, top + 20, parts)


def _panel(
    left: float, top: float, column: int, axis: str, figures: Sequence[Searched], colors: Mapping[str, str]
) -> Iterable[str]:
    """One frame with its curves; `column` is the place of the horizontal value in a point."""
    curves = [(figure, _curve(figure)) for figure in figures]
    places = [point[column] for _, curve in curves for point in curve if point[column] > 0]
    low, high = min(places, default=1.0), max(places, default=10.0)
    high = max(high, low * 1.1)
    most = max([figure.value for figure in figures] + [point[2] for _, curve in curves for point in curve] + [1e-9])

    def at(place: float, speed: float) -> tuple[float, float]:
        across = math.log(max(place, low) / low) / math.log(high / low)
        return left + WIDTH * across, top + HEIGHT * (1 - speed / most)

    right, bottom = left + WIDTH, top + HEIGHT
    yield polyline([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)], "var(--line)", width=1)
    yield svg_text(left, top + HEIGHT + 13, f"{low:.3g}")
    yield svg_text(left + WIDTH, top + HEIGHT + 13, f"{high:.3g} {axis}", anchor="end")
    if figures:
        yield svg_text(left - 4, top + 10, f"{most:.4g}", anchor="end")
        yield svg_text(left - 4, top + 22, figures[0].unit, anchor="end")
    for figure, curve in curves:
        color = colors[figure.backend]
        if curve:
            x, y = at(curve[-1][column], figure.value)
            yield polyline([at(point[column], point[2]) for point in curve], color)
            yield circle(x, y, 3, color)
        else:
            y = at(low, figure.value)[1]
            yield polyline([(left, y), (left + WIDTH, y)], color, dashes="5 3")


def _curve(figure: Searched) -> Curve:
    """The points of a figure's curve; none where it has no curve."""
    found = figure.details.get("curve", ())
    assert isinstance(found, Sequence)
    return [point for point in found if all(math.isfinite(number) for number in point)]
