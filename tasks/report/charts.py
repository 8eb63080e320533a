"""The charts of the HTML report and of Prefect's UI, as SVG text; a chart that has nothing to show is empty text.

What is tuned, untuned and ONNX Runtime's has one color each in all charts. A solid line is the search, a dashed line a
time to compare with.
"""

import math
from collections.abc import Mapping, Sequence

from retune.compiler.measure.record import DEFAULT_SCHEDULE, MeasureRecord
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.precision.request import PrecisionChoice
from retune.compiler.tune.tuning import cause_of
from retune.tasks.report.facts import RunFacts
from retune.tasks.report.svg import (
    Frame,
    Scale,
    circle,
    color_of,
    polyline,
    rect,
    svg_document,
    svg_figure,
    svg_legend,
    svg_text,
)

WIDE, TALL = 540.0, 320.0
PANEL, PANEL_HEIGHT = 300.0, 170.0
BAR = 22.0
"""Pixels: width and height of a chart and of the small chart of a task, and the height of a bar."""
DASHES = "5 3"

CONTENDERS = {"tuned": 0, "untuned": 1, "ONNX Runtime": 2}
"""Ways to run the network, and the numbers of their colors."""
TUNED, UNTUNED = map(color_of, (0, 1))


def contender_color(name: str, index: int = 0) -> str:
    """The color of a way to run the network, the same in all charts; others differ by their `index`."""
    return color_of(CONTENDERS.get(name, 3 + index % 3))


def latency_chart(latencies: Mapping[str, float], *, alone: bool = False) -> str:
    """A bar for each way to run the network, by its latency in seconds; `alone` makes it a picture file."""
    known = {name: seconds for name, seconds in latencies.items() if math.isfinite(seconds)}
    if not known:
        return ""
    scale = Scale.over(known.values(), 100, WIDE - 90, zero=True)
    parts = []
    for index, (name, seconds) in enumerate(known.items()):
        top = 6 + index * (BAR + 8)
        label = f"{milliseconds(seconds)} ms"
        parts.append(svg_text(94, top + 15, name, "end", size=12))
        parts.append(rect(100, top, scale(seconds) - 100, BAR, contender_color(name, index), f"{name}: {label}"))
        parts.append(svg_text(scale(seconds) + 6, top + 15, label, size=12))
    return _draw_figure("Latency of the network", WIDE, 6 + len(known) * (BAR + 8), parts, alone)


def network_chart(course: Sequence[tuple[float, float]], levels: Mapping[str, float], *, alone: bool = False) -> str:
    """The estimated latency over the seconds spent, a pair each in `course`, with `levels` to compare with. All times
    are in seconds; `alone` makes it a picture file.
    """
    if len(course) < 2:
        return ""
    frame = Frame(52, 40, WIDE - 14, TALL - 36, "seconds of tuning", "ms")
    shown = {name: seconds for name, seconds in levels.items() if math.isfinite(seconds)}
    x = Scale.over([0.0, *(elapsed for elapsed, _ in course)], frame.left, frame.right)
    y = Scale.over(
        [latency * 1e3 for _, latency in course] + [s * 1e3 for s in shown.values()], frame.bottom, frame.top, log=True
    )
    colors = {name: contender_color(name, index) for index, name in enumerate(shown)}
    parts = [*svg_legend(frame.left, {"estimate": TUNED}), *frame.axes(x, y)]
    parts += svg_legend(frame.left + 110, colors, 110, DASHES)
    for name, seconds in shown.items():
        level = y(seconds * 1e3)
        parts.append(polyline([(frame.left, level), (frame.right, level)], colors[name], dashes=DASHES))
    line = _make_steps([(x(elapsed), y(latency * 1e3)) for elapsed, latency in course])
    parts.append(polyline(line, TUNED, width=2))
    return _draw_figure("Estimated latency of the network while it was tuned", WIDE, TALL, parts, alone)


def precision_chart(choice: PrecisionChoice) -> str:
    """Predicted latency over the tolerance, the chosen network as a dot, and float32 as a level."""
    if len(choice.curve) < 2 or choice.seconds is None or choice.float32_seconds is None:
        return ""
    frame = Frame(52, 40, WIDE - 14, TALL - 36, f"tolerance ({choice.metric}), %", "ms")
    tolerances = [tolerance * 100 for tolerance, _ in choice.curve]
    latencies = [seconds * 1e3 for _, seconds in choice.curve]
    level, dot = choice.float32_seconds * 1e3, (max(choice.error * 100, tolerances[0] / 2), choice.seconds * 1e3)
    x = Scale.over([*tolerances, dot[0]], frame.left, frame.right, log=True)
    y = Scale.over([*latencies, level, dot[1]], frame.bottom, frame.top, zero=True)
    parts = [*svg_legend(frame.left, {"predicted": TUNED}), *frame.axes(x, y)]
    parts += svg_legend(frame.left + 110, {"float32": UNTUNED}, 110, DASHES)
    parts.append(polyline([(frame.left, y(level)), (frame.right, y(level))], UNTUNED, dashes=DASHES))
    parts.append(polyline(_make_steps([*zip(map(x, tolerances), map(y, latencies), strict=True)]), TUNED, width=2))
    label = f"chosen: {milliseconds(choice.seconds)} ms, error {choice.error:.2%}"
    parts.append(circle(x(dot[0]), y(dot[1]), 5, TUNED, label))
    return svg_figure("Latency of the network against the tolerance", WIDE, TALL, parts)


def task_chart(name: str, trials: Sequence[MeasureRecord]) -> str:
    """Every trial of a task in turn, the best so far, and the time of the default schedule among them."""
    timed = [trial for trial in trials if math.isfinite(trial.seconds)]
    default = min((trial.seconds for trial in trials if trial.mutation == DEFAULT_SCHEDULE), default=math.inf)
    if not timed:
        return ""
    frame = Frame(46, 22, PANEL - 8, PANEL_HEIGHT - 34, "trial", "ms")
    x = Scale.over([1.0, float(len(trials))], frame.left, frame.right)
    y = Scale.over([trial.seconds * 1e3 for trial in timed] + [default * 1e3], frame.bottom, frame.top, log=True)
    parts = list(frame.axes(x, y, (5, 4)))
    best, course = math.inf, []
    for number, trial in enumerate(trials, 1):
        if math.isfinite(trial.seconds):
            best = min(best, trial.seconds)
            tip = f"trial {number}: {milliseconds(trial.seconds)} ms, {trial.mutation or 'sampled'}"
            parts.append(circle(x(number), y(trial.seconds * 1e3), 2, TUNED, tip, 0.5))
        else:
            tip = f"trial {number}: {trial.status.name}: {cause_of(trial.error)}"
            parts.append(circle(x(number), frame.top, 2.5, "var(--bad)", tip))
        if math.isfinite(best):
            course.append((x(number), y(best * 1e3)))
    if math.isfinite(default):
        level = y(default * 1e3)
        parts.append(polyline([(frame.left, level), (frame.right, level)], UNTUNED, dashes=DASHES))
    parts.append(polyline(_make_steps(course), TUNED, width=2))
    return svg_figure(f"Trials of {name}", PANEL, PANEL_HEIGHT, parts)


def roofline_chart(kernels: Sequence[KernelRow], limits: MachineLimits | None) -> str:
    """Kernels by operations for each byte and by speed, under the machine's limits. Dots are as large as the share of
    the network's time.
    """
    sized = [kernel for kernel in kernels if kernel.used and kernel.moved_bytes and kernel.flops]
    points = [kernel for kernel in sized if math.isfinite(kernel.best_seconds)]
    if limits is None or not points:
        return ""
    frame = Frame(52, 40, WIDE - 14, TALL - 36, "operations for each byte that has to be moved", "GFLOP/s")
    reach = [kernel.flops / kernel.moved_bytes for kernel in points]
    x = Scale.over([*reach, limits.peak_gflops / limits.memory_gbs], frame.left, frame.right, log=True)
    speeds = [kernel.gflops for kernel in points]
    y = Scale.over([*speeds, limits.peak_gflops], frame.bottom, frame.top, log=True)
    names = [f"memory, {limits.memory_gbs:.0f} GB/s", f"caches, {limits.cache_gbs:.0f} GB/s"]
    colors = {name: color_of(index) for index, name in enumerate(names, 3)}
    parts = [*frame.axes(x, y), *svg_legend(frame.left, {"kernels": TUNED})]
    parts += svg_legend(frame.left + 90, colors, 140, DASHES)
    for color, rate in zip(colors.values(), (limits.memory_gbs, limits.cache_gbs), strict=True):
        # The roofline (Williams, Waterman, Patterson, 2009): bandwidth x intensity up to the ridge, the peak from there
        # on.
        ridge = limits.peak_gflops / rate
        foot = max(x.low, y.low / rate)
        corners = [(foot, foot * rate), (ridge, limits.peak_gflops), (x.high, limits.peak_gflops)]
        line = [(x(across), y(up)) for across, up in corners if across >= foot]
        parts.append(polyline(line, color, dashes=DASHES))
    label = f"{limits.peak_gflops:.0f} GFLOP/s on {limits.threads} thread{'s' if limits.threads > 1 else ''}"
    parts.append(svg_text(frame.right, y(limits.peak_gflops) - 5, label, "end", muted=True))
    total_seconds = sum(kernel.weighted_seconds for kernel in kernels)
    for kernel, across in zip(points, reach, strict=True):
        share = kernel.weighted_seconds / total_seconds
        tip = f"{kernel.name}: {kernel.gflops:.1f} GFLOP/s, {across:.1f} operations a byte, {share:.1%} of the time"
        # The area of a dot, not its radius, is what eyes compare.
        parts.append(circle(x(across), y(kernel.gflops), 3 + 14 * math.sqrt(share), TUNED, tip, 0.55))
    return svg_figure("Roofline", WIDE, TALL, parts)


def task_charts(facts: RunFacts) -> list[tuple[KernelRow, str]]:
    """The chart of every task that was measured, those that take most of the network's time first."""
    charts = []
    for kernel in facts.tuned:
        chart = task_chart(kernel.name, facts.trials.get(kernel.task_key, ()))
        if chart:
            charts.append((kernel, chart))
    return charts


def _draw_figure(title: str, width: float, height: float, parts: Sequence[str], alone: bool) -> str:
    """A part of a page, or a file with its title above."""
    if not alone:
        return svg_figure(title, width, height, parts)
    return svg_document(title, width, height + 34, ['<g transform="translate(0 34)">', *parts, "</g>"])


def _make_steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The corners of a line that stays level from each point to the x of the next, then steps to its y."""
    steps: list[tuple[float, float]] = []
    # A best so far holds until it is beaten: steps, not slopes.
    for x, y in points:
        if steps:
            steps.append((x, steps[-1][1]))
        steps.append((x, y))
    return steps
