"""In: figures. Out: one chart of them as SVG text, which needs no plotting library. Always: a bar a figure.

Where figures are shares of a peak the bars are these shares; the others are as long as their value is large next to
the largest one of the same unit.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol
from xml.sax.saxutils import escape

ROW, GAP, LABELS, BARS, VALUES = 14, 10, 330, 420, 190
ENTRY = 130
"""Width of a name in the legend."""

COLOURS = ("#2b6cb0", "#a0aec0", "#dd6b20", "#38a169", "#805ad5", "#d69e2e")


class Bar(Protocol):
    """What a chart needs of a figure."""

    @property
    def case(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def unit(self) -> str: ...
    @property
    def peak_ratio(self) -> float | None: ...


def bar_chart(title: str, figures: Sequence[Bar]) -> str:
    """Bars in the order of the figures, grouped by case, metric and threads."""
    backends = list(dict.fromkeys(figure.backend for figure in figures))
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
        colour = colour_of(backends.index(figure.backend))
        width = BARS * min(1.0, max(0.0, share))
        parts.append(f'<rect x="{LABELS}" y="{top:g}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}"/>')
        ratio = "" if figure.peak_ratio is None else f" ({figure.peak_ratio:.0%})"
        parts.append(svg_text(LABELS + width + 4, top + ROW - 4, f"{figure.value:.4g} {figure.unit}{ratio}"))
        top += ROW
    width = max(LABELS + BARS + VALUES, LABELS + ENTRY * len(backends))
    return svg_document(title, width, top + 20, [*svg_legend(LABELS, backends), *parts])


def svg_document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A white sheet with a title above the parts; sizes are in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif">'
    frame = f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20" font-size="15">{escape(title)}</text>'
    return "\n".join([head, frame, *parts, "</svg>", ""])


def svg_legend(left: float, names: Sequence[str]) -> Iterator[str]:
    """The names in a row below the title, each with its colour."""
    for place, name in enumerate(names):
        x = left + ENTRY * place
        yield f'<rect x="{x:g}" y="26" width="10" height="10" fill="{colour_of(place)}"/>'
        yield svg_text(x + 14, 35, name)


def svg_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A line of text that starts at x, or ends there for the anchor "end"."""
    return f'<text x="{x:.1f}" y="{y:g}" font-size="11" text-anchor="{anchor}">{escape(text)}</text>'


def colour_of(place: int) -> str:
    """The colour of the contender that is named in that place."""
    return COLOURS[place % len(COLOURS)]
