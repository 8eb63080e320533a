"""Where the time of a network goes, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from retune.compiler.runtime.kernel_row import NUMERIC, KernelRow, kernel_table
from retune.compiler.runtime.readable import count, html_table, milliseconds


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Where the time of a network goes: the median latency of a run, seconds, and its kernels, the slowest first.

    `print(report)` shows a table; a notebook shows it in HTML.
    """

    name: str
    threads: int
    latency: float
    coverage: str
    kernels: tuple[KernelRow, ...]

    _HEADINGS = ("kernel", "uses", "ms", "share", "GFLOP/s", "origin")

    @property
    def title(self) -> str:
        """The network, its threads and its latency, beside the sum of its kernels."""
        apart = milliseconds(sum(row.weighted_seconds for row in self.kernels))
        return (
            f"{self.name}: {milliseconds(self.latency)} ms on {count(self.threads, 'thread')}; "
            f"kernels timed one by one: {apart} ms"
        )

    def __str__(self) -> str:
        rows = [self._HEADINGS, *kernel_table(self.kernels, self._HEADINGS)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        sides = [">" if heading in NUMERIC else "<" for heading in self._HEADINGS]
        lines = ("  ".join(map("{:{}{}}".format, row, sides, widths)).rstrip() for row in rows)
        return "\n".join([self.title, self.coverage, "", *lines])

    def _repr_html_(self) -> str:
        rows = [self._HEADINGS, *kernel_table(self.kernels, self._HEADINGS)]
        return f"{html_table(self.title, rows)}<p>{escape(self.coverage)}</p>"


def timed_rows(known: Sequence[KernelRow], timed: Mapping[str, tuple[float, int]]) -> tuple[KernelRow, ...]:
    """A row for each kernel, the slowest first, from the seconds of all its calls and their number."""
    rows = {row.name: row for row in known}
    made = (
        replace(rows.get(kernel, KernelRow(kernel)), weight=calls, best_seconds=seconds / calls)
        for kernel, (seconds, calls) in timed.items()
    )
    return tuple(sorted(made, key=lambda row: -row.weighted_seconds))
