"""The HTML page about a run: complete in itself, without scripts, everything escaped."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from retune.compiler.runtime.kernel_row import PLURALS, KernelRow, ProgramOrigin, kernel_table
from retune.compiler.runtime.readable import busy_warning, count, milliseconds
from retune.compiler.tune.report import KERNEL_HEADINGS
from retune.tasks.report.charts import latency_chart, network_chart, precision_chart, roofline_chart, task_charts
from retune.tasks.report.facts import RunFacts, moment
from retune.tasks.report.svg import STYLE

SECTIONS = {
    "latency": "Latency", "progress": "Progress", "precision": "Precision", "tasks": "Tasks", "roofline": "Roofline",
    "coverage": "Coverage", "run": "The run",
}  # fmt: skip
"""Every section of the page, by its anchor."""

Cell = str | float | int


def page(facts: RunFacts) -> str:
    """The page about a run, as text."""
    network = str(facts.info.describe.get("network", "a network"))
    bodies = {
        "latency": _latency(facts),
        "progress": _progress(facts),
        "precision": _precision(facts),
        "tasks": _tasks(facts),
        "roofline": _roofline(facts),
        "coverage": _coverage(facts),
        "run": _run(facts),
    }
    sections = (
        f'<section id="{anchor}"><h2>{SECTIONS[anchor]}</h2>\n{"".join(parts)}</section>'
        for anchor, parts in bodies.items()
    )
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in SECTIONS.items())
    title = f"{network.rpartition('/')[2]} · {facts.info.run_id}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Without it browsers ask the server, or the disk, for /favicon.ico.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(network)}</h1>",
            f'<p class="note">{escape(_subtitle(facts))}</p>',
            f'<p class="banner">{escape(warning)}</p>' if (warning := busy_warning(facts.contention)) else "",
            _figures(facts),
            f"<nav>{links}</nav>",
            *sections,
            "</body></html>",
            "",
        ]
    )


def _subtitle(facts: RunFacts) -> str:
    asked = facts.info.describe
    return f"{asked.get('device', '')} · {asked.get('threads', '?')} threads · {moment(facts.info.started)}"


def _figures(facts: RunFacts) -> str:
    """The few numbers that matter."""
    tuned, untuned = (facts.latencies.get(name, math.inf) for name in ("tuned", "untuned"))
    figures = []
    if math.isfinite(tuned):
        figures.append((f"{milliseconds(tuned)} ms", "latency, tuned"))
        figures.append((f"{untuned / tuned:.2f}×", "as fast as untuned"))
        for name, seconds in facts.latencies.items():
            if name not in ("tuned", "untuned") and math.isfinite(seconds):
                figures.append((f"{seconds / tuned:.2f}×", f"as fast as {name}"))
    elif facts.progress:
        figures.append((f"{milliseconds(facts.progress[-1][1])} ms", "estimated latency so far"))
    figures.append((f"{facts.report.get('trials', facts.trial_count)}", "trials"))
    elapsed = facts.report.get("elapsed") or (facts.progress[-1][0] if facts.progress else 0.0)
    figures.append((f"{elapsed / 60:.1f} min" if elapsed >= 90 else f"{elapsed:.0f} s", "of tuning"))
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(words)}</span></div>" for value, words in figures)
    return f'<div class="figures">{boxes}</div>'


def _latency(facts: RunFacts) -> Iterator[str]:
    comparison = facts.report.get("comparison")
    if comparison is None and facts.info.is_complete:
        yield _note("The run came to its end, but its report.json is lost: nothing is known of its comparison.")
        return
    if comparison is None:
        yield _note("The run has not come to its end: nothing is compared yet. The same command goes on with it.")
        return
    same = "reference" if comparison["reference"] else "none"
    rows = [
        (name, milliseconds(facts.latencies[name]), same if error is None else f"{error:.1e}")
        for name, error in facts.errors.items()
    ]
    explained = "All were timed in turn in one process. "
    if comparison["reference"]:
        explained += (
            f"Errors are the largest difference of the outputs from {comparison['reference']}, relative to its "
            "largest output."
        )
    else:
        explained += "What serves the operator gave the answers of its default schedule."
    yield _beside(
        latency_chart(facts.latencies),
        _table(("network", "latency ms", "error of outputs"), rows, numeric=(1, 2)),
        _note(explained),
    )
    if not facts.report.get("is_right", True):
        yield '<p class="bad">The outputs are wrong: an error is beyond what rounding explains.</p>'
    if comparison.get("note"):
        yield _note(str(comparison["note"]))


def _progress(facts: RunFacts) -> Iterator[str]:
    chart = network_chart(facts.progress, facts.latencies)
    if facts.missing_rounds:
        lines = "A round is" if facts.missing_rounds == 1 else f"{facts.missing_rounds} rounds are"
        yield f'<p class="bad">{lines} missing here: rounds.jsonl has no readable line of what records show.</p>'
    if not chart:
        yield _note("The run has not measured enough to estimate the network's latency.")
        return
    yield _beside(
        chart,
        _note(
            "The solid line is an estimate during the search: the sum of the best times of all kernels, each as often "
            "as the network uses it. It begins when every task has a time."
        ),
        _note(
            "The dashed lines are whole networks, timed at the end. They differ from the estimate, which adds up "
            "kernels that were timed alone."
        ),
    )


def _precision(facts: RunFacts) -> Iterator[str]:
    choice = facts.precision
    if choice is None:
        yield _note("All layers are in float32, or in the types of the model.")
        return
    yield _note(f"{choice.text()[:1].upper()}{choice.text()[1:]}.")
    if choice.curve:
        yield _beside(
            precision_chart(choice),
            _note(
                "Latency against tolerance: predicted for the fastest layers that a tolerance allows, by the times of "
                "kernels when precisions were chosen, before the search. The dot is the chosen network."
            ),
        )
    rows = [
        (
            layer.name,
            layer.op,
            layer.precision,
            "-" if layer.float32_seconds is None else milliseconds(layer.float32_seconds),
            "-" if layer.seconds is None else milliseconds(layer.seconds),
            "-" if layer.error is None else f"{layer.error:.1e}",
        )
        for layer in choice.layers
    ]
    headings = ("layer", "operator", "precision", "float32 ms", "ms", f"error of outputs ({choice.metric})")
    yield _table(headings, rows, numeric=(3, 4, 5))


def _tasks(facts: RunFacts) -> Iterator[str]:
    charts = task_charts(facts)
    if not charts:
        yield _note("No program was measured in this run.")
        return
    yield _note(
        "The charts show the search: a dot is a trial, red at the top if it failed; the line is the best so far, the "
        "dashed line the default schedule. The captions name two measurements: the best of the search, and the time of "
        "the program that is used, which was confirmed at the end in turn with the others. Tasks that take most of "
        "the network's time come first."
    )
    panels = "".join(
        f'<div><h3>{escape(kernel.name)}</h3>{chart}<p class="note">{escape(_caption(kernel, facts))}</p></div>'
        for kernel, chart in charts
    )
    yield f'<div class="panels">{panels}</div>'


def _caption(kernel: KernelRow, facts: RunFacts) -> str:
    """Which time is the search's, and which was confirmed at the end."""
    best = min((trial.seconds for trial in facts.trials[kernel.task_key]), default=math.inf)
    search = f"search: best {milliseconds(best)} ms"
    if not kernel.used:
        return f"{search}; not used: {kernel.note}"
    cells = kernel.cells(sum(row.weighted_seconds for row in facts.kernels))
    kind = "" if kernel.origin is ProgramOrigin.RECORD else f" ({kernel.origin_text})"
    confirmed = f"confirmed: {cells['ms']} ms, {cells['GFLOP/s']} GFLOP/s{kind}"
    return f"{cells['share']} of the time, {count(kernel.weight, 'use')}; {search}; {confirmed}"


def _roofline(facts: RunFacts) -> Iterator[str]:
    chart = roofline_chart(facts.kernels, facts.limits)
    if not chart:
        yield _note("This run did not measure what the machine can do at best; a run of this version does.")
        return
    yield _beside(
        chart,
        _note(
            "How fast each kernel is against what it computes for every byte that it has to read and write. Dots are "
            "as large as the kernel's share of the network's time. The limits were measured in this run: multiply-adds "
            "and nothing else, streams through memory and through the caches."
        ),
    )


def _coverage(facts: RunFacts) -> Iterator[str]:
    if not facts.kernels:
        yield _note("No kernels are known yet.")
        return
    if facts.coverage.kernels:
        shares = [
            (
                PLURALS[part.origin],
                part.kernels,
                part.tunable,
                f"{part.share_of_calls:.1%}",
                f"{part.share_of_flops:.1%}",
            )
            for part in facts.coverage.shares
        ]
        origins = ("programs from", "kernels", "worth tuning", "of the calls", "of the operations")
        yield _table(origins, shares, numeric=(1, 2, 3, 4))
        if fallen := facts.coverage.fallback_text():
            yield _note(f"{fallen}.")
    yield _note(
        "Shares of time are those of the kernels, each as often as the network uses it. Times are those of the "
        "confirmation at the end."
    )
    yield _table(KERNEL_HEADINGS, kernel_table(facts.tuned, KERNEL_HEADINGS), numeric=(1, 2, 3, 4, 5, 6))
    yield f"<p>The programs: <code>retune explain {facts.info.run_id} KERNEL</code></p>"


def _run(facts: RunFacts) -> Iterator[str]:
    info = facts.info
    rows: list[tuple[Cell, ...]] = [
        ("run", info.run_id),
        ("begun", moment(info.started)),
        ("ended", moment(info.completed) if info.completed else "not yet: the same command goes on with it"),
        ("resumed", f"{len(info.resumed)} times"),
        *((name, str(value)) for name, value in info.describe.items() if value not in (None, "")),
        ("failures", f"{facts.failures} of {facts.trial_count} trials"),
        ("versions", facts.versions or "-"),
        ("contention", f"{facts.contention:.1%} of the timings was lost to other processes or a slow CPU"),
        *((name, str(value)) for name, value in facts.report.items() if name in ("artifact", "records")),
    ]
    yield _table(("", ""), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], numeric: Sequence[int] = ()) -> str:
    """A table in a box that scrolls by itself where it is too wide."""
    kinds = ['class="n"' if index in numeric else 'class="w"' for index in range(len(headings))]
    head = "".join(f"<th {kind}>{escape(text)}</th>" for text, kind in zip(headings, kinds, strict=True))
    lines = (
        "".join(f"<td {kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    top = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _beside(chart: str, *words: str) -> str:
    """A chart with what is to be said of it beside it, or below it where there is no room."""
    return f'<div class="beside">{_figure(chart)}<div>{"".join(words)}</div></div>'


def _figure(chart: str) -> str:
    return f"<figure>{chart}</figure>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
