"""The HTML page about kernels: complete in itself, without scripts, everything escaped."""

from collections.abc import Iterator, Sequence
from html import escape

from retune.compiler.tune.explain import Explanation
from retune.compiler.tune.hot_loop import mark
from retune.tasks.report.svg import STYLE

_DIFFERENCE = {"+": "ins", "-": "del"}
"""Elements of the lines of a difference, by their first letter."""

_STYLE = "pre{overflow-x:auto;white-space:pre}ins{text-decoration:none;color:var(--c3)}del{color:var(--bad)}"


def kernel_page(explained: Sequence[Explanation]) -> str:
    """The page about one kernel or several, as text."""
    title = ", ".join(explanation.name for explanation in explained)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}{_STYLE}</style></head><body>",
            *(part for explanation in explained for part in _kernel(explanation)),
            "</body></html>",
            "",
        ]
    )


def _kernel(explanation: Explanation) -> Iterator[str]:
    yield f'<h1>{escape(explanation.name)}</h1><p class="note">{escape(explanation.title)}</p>'
    yield f'<p class="banner">{escape(explanation.limit[:1].upper() + explanation.limit[1:])}.</p>'
    for title, text in explanation.sections():
        yield f"<section><h2>{escape(title)}</h2><pre>{escape(text)}</pre></section>"
    yield "<section><h2>Passes</h2>"
    for index, stage in enumerate(explanation.stages):
        lines = stage.difference or "no change"
        # The first stage is whole IR and no difference: its lines may begin with "-" or "+".
        body = escape(lines) if index == 0 else "\n".join(map(_difference_line, lines.splitlines()))
        yield _fold(f"{stage.kernel}: after {stage.name}", body)
    yield "</section><section><h2>Code</h2>"
    yield _fold("Loop IR", escape(explanation.stage("loops")))
    yield _fold("LLVM IR", escape(explanation.stage("llvm")))
    listing = mark(explanation.listing, explanation.hot_loop) if explanation.hot_loop else explanation.listing
    yield _fold({"ptx": "PTX"}.get(explanation.listing_stage, "Assembly"), escape(listing))
    yield "</section>"


def _difference_line(line: str) -> str:
    element = _DIFFERENCE.get(line[:1])
    return f"<{element}>{escape(line)}</{element}>" if element else escape(line)


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{body}</pre></details>"
