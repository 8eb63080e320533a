"""Common command line and output of benchmarks: one JSON object per line, and a chart with `--plot`.

Lines go to stdout and to `--out`. Every line names the machine it was measured on, with the FMA peak measured in the
same run.
"""

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Protocol

from benchmarks.peak import measured_peak
from benchmarks.plot import bar_chart
from retune.compiler.core import config
from retune.compiler.runtime.readable import finite

PACKAGES = ("llvmlite", "numpy", "onnxruntime", "xgboost", "prefect", "torch")
"""Whose versions a line names, where they are installed."""

PAUSE_SECONDS = 0.02
"""Between passes: long enough for the idle threads of the contender before to stop spinning."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `backend` is "retune" for ours; `error` is the result's largest difference from the
    reference's, relative to its largest value; `details` are further fields of the line.
    """

    case: str
    backend: str
    threads: int
    metric: str
    value: float
    unit: str
    peak_ratio: float | None = None
    error: float | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    def line(self) -> str:
        """The figure and the machine as one line of JSON; what is not finite becomes null."""
        fields: dict[str, object] = {
            "case": self.case,
            "backend": self.backend,
            "threads": self.threads,
            "metric": self.metric,
            "value": _rounded(self.value),
            "unit": self.unit,
        }
        if self.peak_ratio is not None:
            fields["peak_ratio"] = _rounded(self.peak_ratio)
        if self.error is not None:
            fields["error"] = _rounded(self.error)
        return json.dumps(finite({**fields, **self.details, "machine": machine(self.threads)}), allow_nan=False)


Draw = Callable[[str, Sequence[Figure]], str]
"""A title and figures as the text of an SVG file."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for on the command line. `options` and `texts` hold the program's own options, `draw` makes the
    chart.
    """

    only: str
    threads: tuple[int, ...]
    seconds: float
    out: Path | None
    options: Mapping[str, int]
    plot: Path | None = None
    title: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    draw: Draw = bar_chart
    figures: list[Figure] = field(default_factory=list)

    def wants(self, case: str) -> bool:
        """Whether `--only` lets the case through."""
        return re.search(self.only, case) is not None

    def write(self, figure: Figure) -> None:
        """Print a figure's line, append it to `--out`, and draw the chart of all figures so far."""
        text = figure.line() + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        if self.out:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(text)
        self.figures.append(figure)
        if self.plot:
            drawn = [each for each in self.figures if math.isfinite(each.value)]
            self.plot.write_text(self.draw(self.title, drawn), encoding="utf-8")

    def write_all(self, figures: Iterable[Figure]) -> None:
        """Write each figure as soon as it is there."""
        for figure in figures:
            self.write(figure)

    def write_cases(self, cases: Iterable[str], figures: Callable[[str, int, "Run"], Iterable[Figure]]) -> None:
        """Write `figures(case, threads, run)` of the cases that are wanted, for each number of threads."""
        for threads in self.threads:
            for case in filter(self.wants, cases):
                self.write_all(figures(case, threads, self))


def parse(
    description: str | None,
    argv: Sequence[str] | None,
    *,
    seconds: float,
    seconds_help: str,
    threads: Sequence[int] = (1,),
    options: Mapping[str, tuple[int, str]] | None = None,
    texts: Mapping[str, tuple[str, str]] | None = None,
    flags: Mapping[str, str] | None = None,
    draw: Draw = bar_chart,
) -> Run:
    """Read the options that every program has, and its own.

    `seconds` is the default of `--seconds`. `threads` are the thread counts that the program measures, cut down to what
    the machine has. `options` are further integers by name: default and help; `texts` are further strings, empty by
    default: metavar and help; `flags` are options without a value, by name: help. They are 1 or 0 among the `options`
    of the result. `draw` makes the chart of `--plot`.
    """
    counts = tuple(count for count in threads if count <= config.usable_cores()) or (1,)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="measure only cases whose name matches")
    parser.add_argument("--threads", type=int, choices=counts, metavar="N", help=f"one of {counts}; default: all")
    parser.add_argument("--seconds", type=float, default=seconds, metavar="S", help=f"{seconds_help}; {seconds:g}")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the lines to this file as well")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures into this SVG file")
    own = dict(options or {})
    for name, (default, text) in own.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text}; {default}")
    for name, text in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name, (metavar, text) in (texts or {}).items():
        parser.add_argument(f"--{name}", default="", metavar=metavar, help=text)
    given = parser.parse_args(argv)
    if given.seconds <= 0:
        parser.error("--seconds must be more than 0")
    chosen = (given.threads,) if given.threads else counts
    values = {name: int(getattr(given, name.replace("-", "_"))) for name in (*own, *(flags or {}))}
    words = {name: getattr(given, name) for name in texts or {}}
    title = parser.prog if description is None else description.splitlines()[0].removesuffix(".")
    return Run(given.only, chosen, given.seconds, given.out, values, given.plot, title, words, draw)


def machine(threads: int) -> dict[str, object]:
    """Where a figure comes from. `peak_gflops` is the FMA peak of `threads` threads, measured in this process;
    `load` is the load average of the last minute, other programs included.
    """
    return {
        "cpu": config.device_name(),
        "cores": config.usable_cores(),
        "peak_gflops": _rounded(measured_peak(threads)),
        "load": _rounded(os.getloadavg()[0]),
        "versions": _versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def seconds_of(work: Callable[[], object], *, seconds: float, least: int = 3) -> float:
    """The median seconds of one call, from at least `least` calls and for `seconds`, after one that does not count."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < least or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class TimesItself(Protocol):
    """A contender in another process."""

    def times(self, seconds: float) -> list[float]:
        """Seconds of single calls, timed for about `seconds` after one that does not count."""


def interleaved(
    contenders: Mapping[str, Callable[[], object] | TimesItself],
    *,
    passes: int = 15,
    pass_seconds: float = 0.03,
    figure: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[str, float]:
    """The median seconds, or another `figure`, of one call of every contender, each timed for a short pass after the
    other, again and again.

    So a noisy moment hits all alike. The first call of each pass does not count.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(passes):
        for name, run in contenders.items():
            time.sleep(PAUSE_SECONDS)
            if not callable(run):
                samples[name] += run.times(pass_seconds)
                continue
            run()
            began = start = time.perf_counter()
            while start - began < pass_seconds:
                run()
                end = time.perf_counter()
                samples[name].append(end - start)
                start = end
    return {name: figure(times) for name, times in samples.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, the nearest one that occurs."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@cache
def _versions() -> dict[str, str]:
    found = {"retune": config.engine_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
