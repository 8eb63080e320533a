"""In: the facts of a run. Out: one HTML page. Always: complete in itself, no script, nothing fetched, all escaped."""

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tasks.pages.charts import (
    calibration_chart,
    latency_chart,
    network_chart,
    ranking_chart,
    roofline_chart,
    task_charts,
)
from tasks.pages.facts import RunFacts, moment
from tasks.pages.style import STYLE

SECTIONS = {
    "latency": "Latency",
    "progress": "Progress",
    "tasks": "Tasks",
    "roofline": "Roofline",
    "calibration": "Search calibration",
    "failures": "Failures by cause",
    "coverage": "Coverage",
    "run": "The run",
}
"""Every section of the page, by its anchor."""

Cell = str | float | int


def page(facts: RunFacts) -> str:
    """The page about a run, as text."""
    network = str(facts.info.describe.get("network", "a network"))
    bodies = {
        "latency": _latency(facts),
        "progress": _progress(facts),
        "tasks": _tasks(facts),
        "roofline": _roofline(facts),
        "calibration": _calibration(facts),
        "failures": _failures(facts),
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
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(network)}</h1>",
            f'<p class="note">{escape(_subtitle(facts))}</p>',
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
        figures.append((f"{tuned * 1e3:.3f} ms", "latency, tuned"))
        figures.append((f"{untuned / tuned:.2f}×", "as fast as untuned"))
        for name, seconds in facts.latencies.items():
            if name not in ("tuned", "untuned") and math.isfinite(seconds):
                figures.append((f"{seconds / tuned:.2f}×", f"as fast as {name}"))
    elif facts.course:
        figures.append((f"{facts.course[-1][1] * 1e3:.3f} ms", "estimated latency so far"))
    figures.append((f"{facts.report.get('trials', facts.trial_count)}", "trials"))
    elapsed = facts.report.get("elapsed") or (facts.course[-1][0] if facts.course else 0.0)
    figures.append((f"{elapsed / 60:.1f} min" if elapsed >= 90 else f"{elapsed:.0f} s", "of tuning"))
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(words)}</span></div>" for value, words in figures)
    return f'<div class="figures">{boxes}</div>'


def _latency(facts: RunFacts) -> Iterator[str]:
    comparison = facts.report.get("comparison")
    if comparison is None:
        yield _note("The run has not come to its end: nothing is compared yet. The same command goes on with it.")
        return
    yield _figure(latency_chart(facts.latencies))
    yield _note(
        "All were timed in turn in one process. Errors are the largest difference of the outputs from "
        f"{comparison['reference']}, relative to its largest output."
    )
    rows = [
        (name, _ms(facts.latencies[name]), "reference" if error is None else f"{error:.1e}")
        for name, error in facts.errors.items()
    ]
    yield _table(("network", "latency ms", "error of outputs"), rows, numeric=(1, 2))
    if not facts.report.get("is_right", True):
        yield '<p class="bad">The outputs are wrong: an error is beyond what rounding explains.</p>'
    if comparison.get("note"):
        yield _note(str(comparison["note"]))


def _progress(facts: RunFacts) -> Iterator[str]:
    chart = network_chart(facts.course, facts.latencies)
    if chart:
        yield _figure(chart)
    yield _note(
        "The estimate is the sum of the best times of all kernels, each as often as the network uses it; it begins "
        "when every task has a time. Levels are what the compiled networks took at the end."
        if chart
        else "The run has not measured enough to estimate the network's latency."
    )


def _tasks(facts: RunFacts) -> Iterator[str]:
    charts = task_charts(facts)
    if not charts:
        yield _note("No program was measured in this run.")
        return
    yield _note(
        "A dot is a trial, red at the top if it failed; the line is the best so far, the dashed line the untuned "
        "program. Tasks that take most of the network's time come first."
    )
    panels = "".join(
        f"<div><h3>{escape(kernel.name)}</h3>{chart}"
        f'<p class="note">{kernel.share:.1%} of the time, {kernel.weight} uses, {_ms(kernel.best_seconds)} ms, '
        f"{_speed(kernel.gflops)} GFLOP/s</p></div>"
        for kernel, chart in charts
    )
    yield f'<div class="panels">{panels}</div>'


def _roofline(facts: RunFacts) -> Iterator[str]:
    chart = roofline_chart(facts.kernels, facts.limits)
    if not chart:
        yield _note("This run did not measure what the machine can do at best; a run of this version does.")
        return
    yield _figure(chart)
    yield _note(
        "How fast each kernel is against what it computes for every byte that it has to read and write. Dots are as "
        "large as the kernel's share of the network's time. The limits were measured in this run: multiply-adds and "
        "nothing else, streams through memory and through the caches."
    )


def _calibration(facts: RunFacts) -> Iterator[str]:
    scatter, ranking = calibration_chart(facts.programs), ranking_chart(facts.ranking)
    if not (scatter or ranking):
        yield _note("The cost model scored no program before it was measured.")
        return
    yield f'<div class="pair">{_figure(scatter)}{_figure(ranking)}</div>'
    yield _note(
        f"What the cost model foretold of {len(facts.programs)} programs before they were measured, and how well it "
        "ranked those of each round. 1 is the best program of a task, 0 one that failed. The search takes what is "
        "foretold to be best, so most dots lie to the right."
    )


def _failures(facts: RunFacts) -> Iterator[str]:
    if not facts.failures:
        yield _note(f"None of {facts.trial_count} trials failed.")
        return
    for failure in facts.failures:
        share = failure.count / max(1, facts.trial_count)
        yield (
            f"<details><summary><b>{failure.count}</b> ({share:.1%}) {escape(failure.status)}: {escape(failure.cause)}"
            f"</summary>{_note(', '.join(failure.tasks))}<pre>{escape(failure.example)}</pre></details>"
        )


def _coverage(facts: RunFacts) -> Iterator[str]:
    if not facts.kernels:
        yield _note("No kernels are known yet.")
        return
    if facts.origins:
        shares = [
            (one.name, one.kernels, f"{one.share_of_calls:.1%}", f"{one.share_of_flops:.1%}") for one in facts.origins
        ]
        yield _table(("programs from", "kernels", "of the calls", "of the operations"), shares, numeric=(1, 2, 3))
    yield _note("Shares of time are those of the kernels, each as often as the network uses it.")
    rows = [
        (
            kernel.name,
            kernel.weight,
            f"{kernel.share:.1%}",
            kernel.trials,
            _ms(kernel.default_seconds),
            _ms(kernel.best_seconds),
            _speed(kernel.gflops),
            f"{kernel.served_by}{f' ({kernel.note})' if kernel.note else ''}",
        )
        for kernel in sorted(facts.kernels, key=lambda one: -one.share)
    ]
    headings = ("kernel", "uses", "share", "trials", "default ms", "best ms", "GFLOP/s", "served by")
    yield _table(headings, rows, numeric=(1, 2, 3, 4, 5, 6))


def _run(facts: RunFacts) -> Iterator[str]:
    info = facts.info
    rows: list[tuple[Cell, ...]] = [
        ("run", info.run_id),
        ("begun", moment(info.started)),
        ("ended", moment(info.completed) if info.completed else "not yet: the same command goes on with it"),
        ("resumed", f"{len(info.resumed)} times"),
        *((name, str(value)) for name, value in info.describe.items() if value not in (None, "")),
        ("versions", facts.versions or "-"),
        ("contention", f"{facts.contention:.1%} of a typical timing was taken by other processes"),
        *((name, str(value)) for name, value in facts.report.items() if name in ("artifact", "records")),
    ]
    yield _table(("", ""), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], numeric: Sequence[int] = ()) -> str:
    """A table in a box that scrolls by itself where it is too wide."""
    kinds = ['class="n"' if place in numeric else 'class="w"' for place in range(len(headings))]
    head = "".join(f"<th {kind}>{escape(text)}</th>" for text, kind in zip(headings, kinds, strict=True))
    lines = (
        "".join(f"<td {kind}>{escape(str(cell))}</td>" for cell, kind in zip(row, kinds, strict=True)) for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    top = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _figure(chart: str) -> str:
    return f"<figure>{chart}</figure>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4f}" if math.isfinite(seconds) else "-"


def _speed(gflops: float) -> str:
    return f"{gflops:.1f}" if gflops else "-"
