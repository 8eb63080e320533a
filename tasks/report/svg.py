"""Pieces of SVG as text, scales and axes, and the style sheet of a page. Words are escaped, colors are CSS variables.

A page gives the variables a value, light or dark as the reader has it, light on paper; a picture's own file
(`svg_document`) brings them along.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

LIGHT = "--ink:#1a202c;--paper:#fff;--muted:#596577;--line:#cbd5e0;--bad:#c53030;" + ";".join(
    f"--c{index}:{color}"
    for index, color in enumerate(("#2b6cb0", "#8593a8", "#c05621", "#2f855a", "#6b46c1", "#b7791f"))
)
DARK = "--ink:#e2e8f0;--paper:#171c26;--muted:#9aa7b8;--line:#3b4656;--bad:#fc8181;" + ";".join(
    f"--c{index}:{color}"
    for index, color in enumerate(("#63b3ed", "#8a97aa", "#f6ad55", "#68d391", "#b794f4", "#f6e05e"))
)
"""Values of the variables: ink, paper, and the colors of up to six contenders."""

COLORS = 6

LEGEND_STEP = 130.0
"""Room for a name in a legend."""


def color_of(index: int) -> str:
    return f"var(--c{index % COLORS})"


def svg_document(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A file: a sheet with a title above the parts; sizes are in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif">'
    dark = f"@media (prefers-color-scheme: dark){{:root{{{DARK}}}}}"
    style = f"<style>:root{{{LIGHT}}} {dark} text{{fill:var(--ink)}}</style>"
    frame = '<rect width="100%" height="100%" style="fill:var(--paper)"/>'
    heading = f'<text x="10" y="20" font-size="15">{escape(title)}</text>'
    return "\n".join([head, style, frame, heading, *parts, "</svg>", ""])


def svg_figure(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A chart inside a page, as wide as there is room; `title` is for those who cannot see it."""
    label = escape(title, {'"': "&quot;"})
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    return "\n".join([head, *parts, "</svg>"])


def svg_legend(left: float, entries: Mapping[str, str], step: float = LEGEND_STEP, dashes: str = "") -> Iterator[str]:
    """Names in a row, each with its color, as a box or as a dashed line; `step` is the room that each has."""
    for index, (name, color) in enumerate(entries.items()):
        x = left + step * index
        if dashes:
            yield polyline([(x - 6, 9), (x + 10, 9)], color, width=2.5, dashes=dashes)
        else:
            yield rect(x, 4, 10, 10, color)
        yield svg_text(x + 14, 13, name)


def svg_text(x: float, y: float, text: str, anchor: str = "start", *, muted: bool = False, size: float = 11) -> str:
    """A line of text that starts at x, or ends there for the anchor "end"."""
    style = ' style="fill:var(--muted)"' if muted else ""
    return f'<text x="{x:.1f}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def rect(x: float, y: float, width: float, height: float, color: str, tip: str = "") -> str:
    """A filled box; `tip` is shown under the pointer."""
    position = f'x="{x:.1f}" y="{y:g}" width="{max(0.0, width):.1f}" height="{height:g}"'
    return f'<rect {position} style="fill:{color}"{_close("rect", tip)}'


def circle(x: float, y: float, radius: float, color: str, tip: str = "", opacity: float = 1.0) -> str:
    style = f"fill:{color}" + (f";fill-opacity:{opacity:g}" if opacity < 1 else "")
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" style="{style}"{_close("circle", tip)}'


def polyline(points: Iterable[tuple[float, float]], color: str, *, width: float = 1.5, dashes: str = "") -> str:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{text}" style="fill:none;stroke:{color}" stroke-width="{width:g}"{dashed}/>'


def _close(tag: str, tip: str) -> str:
    return f"><title>{escape(tip)}</title></{tag}>" if tip else "/>"


@dataclass(frozen=True, slots=True)
class Scale:
    """From numbers between `low` and `high` to pixels between `start` and `end`, straight or by logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(
        cls, values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False
    ) -> "Scale":
        """A scale that has room for all finite values (those above 0 when it is logarithmic), and for 0 if asked."""
        known = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
        low, high = min(known), max(known)
        if log:
            # 15% beyond the ends, so that no dot lies on the frame; a single value gets a scale that is not empty, too.
            return cls(low / 1.15, high * 1.15, start, end, log=True)
        low = 0.0 if zero else low
        return cls(low, high if high > low else low + 1.0, start, end)

    def __call__(self, value: float) -> float:
        """The place of a value; what lies outside is put at the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers within the scale, about `most` of them."""
        return _log_ticks(self.low, self.high, most) if self.log else _ticks(self.low, self.high, most)


def _ticks(low: float, high: float, most: int) -> list[float]:
    raw = (high - low) / max(1, most)
    unit = 10.0 ** math.floor(math.log10(raw))
    # Heckbert's nice numbers (Graphics Gems, 1990): steps of 1, 2 or 5 times a power of ten.
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    # 1e-9: a bound that is a multiple of the step up to rounding keeps its tick.
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: -(-len(ticks) // most)]


@dataclass(frozen=True, slots=True)
class Frame:
    """The room of a chart, in pixels, and what its axes say."""

    left: float
    top: float
    right: float
    bottom: float
    across: str = ""
    up: str = ""

    def axes(self, x: Scale, y: Scale, ticks: tuple[int, int] = (5, 5)) -> Iterator[str]:
        """Grid lines with their numbers, and the names of the axes."""
        for value in y.ticks(ticks[1]):
            yield polyline([(self.left, y(value)), (self.right, y(value))], "var(--line)", width=0.5)
            yield svg_text(self.left - 5, y(value) + 4, number(value), "end", muted=True)
        for value in x.ticks(ticks[0]):
            yield polyline([(x(value), self.top), (x(value), self.bottom)], "var(--line)", width=0.5)
            yield svg_text(x(value), self.bottom + 14, number(value), "middle", muted=True)
        yield svg_text(self.right, self.bottom + 28, self.across, "end", muted=True)
        yield svg_text(self.left, self.top - 6, self.up, muted=True)


def number(value: float) -> str:
    """A number of a few letters."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}"


STYLE = (
    f":root{{{LIGHT};color-scheme:light dark}}"
    f"@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:1040px;padding:16px;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.2em 0}
h2{font-size:1.15rem;margin:2em 0 .5em;border-bottom:1px solid var(--line);padding-bottom:.2em}
h3{font-size:.85rem;font-weight:600;margin:0 0 .2em}
p{margin:.4em 0;max-width:75ch}
.note{color:var(--muted);font-size:.87rem}
.bad{color:var(--bad);font-weight:600}
.banner{border:2px solid var(--c5);border-radius:6px;padding:8px 12px;max-width:none;font-weight:600}
.beside{display:grid;grid-template-columns:minmax(0,8fr) minmax(0,5fr);gap:24px;align-items:center}
@media (max-width:760px){.beside{grid-template-columns:minmax(0,1fr)}}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,150px),1fr));gap:12px;margin:1em 0}
.figures div{border:1px solid var(--line);border-radius:6px;padding:8px 12px}
.figures b{display:block;font-size:1.35rem}
.figures span{color:var(--muted);font-size:.82rem}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,280px),1fr));gap:18px}
figure{margin:0}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font-family:inherit}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;white-space:nowrap}
td.w{min-width:9em}
pre{white-space:pre-wrap;font-size:.8rem;margin:.3em 0}
nav a{color:inherit;margin-right:1em;font-size:.87rem}
summary{cursor:pointer}
@media print{"""
    f":root{{{LIGHT};color-scheme:light}}"
    """
body{max-width:none;font-size:11px}
nav{display:none}
figure,section.keep,.panels>div,tr{break-inside:avoid}
.panels{grid-template-columns:repeat(3,1fr)}
.wide{overflow:visible}
}
"""
)
