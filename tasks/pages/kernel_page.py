"""The HTML page about kernels: complete in itself, without scripts, everything escaped."""

from collections.abc import Iterator, Sequence
from html import escape

from retune.compiler.driver.explain import Explanation
from retune.compiler.driver.hot_loop import mark
from retune.tasks.pages.style import STYLE

_DIFFERENCE = {"+": "ins", "-": "del"}
"""Elements of the lines of a difference, by their first letter."""

_STYLE = "pre{overflow-x:auto;white-space:pre}ins{text-decoration:none;color:var(--c3)}del{color:var(--bad)}"


def kernel_page(explained: Sequence[Explanation]) -> str:
    """The page about one kernel or several, as text."""
    title = ", ".join(one.name for one in explained)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}{_STYLE}</style></head><body>",
            *(part for one in explained for part in _kernel(one)),
            "</body></html>",
            "",
        ]
    )


def _kernel(one: Explanation) -> Iterator[str]:
    yield f'<h1>{escape(one.name)}</h1><p class="note">{escape(one.title)}</p>'
    yield f'<p class="banner">{escape(one.limit[:1].upper() + one.limit[1:])}.</p>'
    for title, text in one.sections():
        yield f"<section><h2>{escape(title)}</h2><pre>{escape(text)}</pre></section>"
    yield "<section><h2>Passes</h2>"
    for place, stage in enumerate(one.stages):
        lines = stage.difference or "no change"
        # The first stage is whole IR and no difference: its lines may begin with "-" or "+".
        body = escape(lines) if place == 0 else "\n".join(map(_difference_line, lines.splitlines()))
        yield _folded(f"{stage.kernel}: after {stage.name}", body)
    yield "</section><section><h2>Code</h2>"
    yield _folded("Loop IR", escape(one.stage("loops")))
    yield _folded("LLVM IR", escape(one.stage("llvm")))
    listing = mark(one.listing, one.hot_loop) if one.hot_loop else one.listing
    yield _folded({"ptx": "PTX"}.get(one.listing_stage, "Assembly"), escape(listing))
    yield "</section>"


def _difference_line(line: str) -> str:
    element = _DIFFERENCE.get(line[:1])
    return f"<{element}>{escape(line)}</{element}>" if element else escape(line)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{body}</pre></details>"
