"""Bar charts of figures as SVG text, without a plotting library; one bar per figure.

Where figures are fractions of a peak the bars are these fractions; the others are as long as their value relative to
the largest one of the same unit.
"""

from collections.abc import Sequence
from typing import Protocol

from retune.tasks.report.svg import LEGEND_STEP, color_of, rect, svg_document, svg_legend, svg_text

ROW, GAP, LABELS, BARS, VALUES = 14, 10, 330, 420, 190


class Shown(Protocol):
    """The fields of a figure that every chart needs."""

    @property
    def case(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def unit(self) -> str: ...


class Bar(Shown, Protocol):
    """The fields of a figure that a bar chart needs in addition."""

    @property
    def metric(self) -> str: ...
    @property
    def peak_ratio(self) -> float | None: ...


def bar_chart(title: str, figures: Sequence[Bar]) -> str:
    """Bars in the order of the figures, grouped by case, metric and threads."""
    backends = list(dict.fromkeys(figure.backend for figure in figures))
    colors = {backend: color_of(place) for place, backend in enumerate(backends)}
    longest: dict[str, float] = {}
    for figure in figures:
        longest[figure.unit] = max(longest.get(figure.unit, 0.0), figure.value)
    parts: list[str] = []
    top = 40.0
    last: tuple[object, ...] | None = None
    for figure in figures:
        group = (figure.case, figure.metric, figure.threads)
        if group != last:
            top += GAP
            label = f"{figure.case}, {figure.metric}, {figure.threads} thread{'s' if figure.threads > 1 else ''}"
            parts.append(svg_text(LABELS - 6, top + ROW - 4, label, anchor="end"))
            last = group
        share = figure.value / (longest[figure.unit] or 1.0) if figure.peak_ratio is None else figure.peak_ratio
        width = BARS * min(1.0, max(0.0, share))
        parts.append(rect(LABELS, top, width, ROW - 2, colors[figure.backend]))
        ratio = "" if figure.peak_ratio is None else f" ({figure.peak_ratio:.0%})"
        parts.append(svg_text(LABELS + width + 4, top + ROW - 4, f"{figure.value:.4g} {figure.unit}{ratio}"))
        top += ROW
    width = max(LABELS + BARS + VALUES, LABELS + LEGEND_STEP * len(backends))
    return svg_document(title, width, top + 20, [*svg_legend(LABELS, colors), *parts])
