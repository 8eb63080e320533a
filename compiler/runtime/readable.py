"""Formats numbers, names and tables for people, and numbers for JSON; also the warning about a busy machine."""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

# Above the 2% at which a timing pass is repeated (`max_contention`), so that successful repeats are not reported.
BUSY = 0.05
"""The share of contention from which on a warning is due."""


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds with three digits, a timing's precision; "-" while it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    # Rounded before the digits are counted: 9.996 has two decimals, but prints as 10.0.
    value = float(f"{seconds * 1e3:.3g}")
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits)}f}"


def finite(value: Any) -> Any:
    """`value` with null for every number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def html_table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A title above rows of texts, for a notebook."""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<p><b>{escape(title)}</b></p><table>{body}</table>"


def count(number: int, noun: str) -> str:
    """A number with a noun whose plural ends in s: 1 task, 2 tasks."""
    return f"{number} {noun}{'s' * (number != 1)}"


def cut_middle(name: str, width: int) -> str:
    """`name` without part of its middle if it is too long: kernels differ at both ends."""
    if len(name) <= width:
        return name
    # Two thirds for the head, with the operator's name; the end has the number that tells equal names apart.
    head = (width - 1) * 2 // 3
    return f"{name[:head]}…{name[head + 1 - width :]}"


def busy_warning(contention: float | None) -> str:
    """The warning about timings that lost this share to other processes; empty for a quiet machine."""
    if (contention or 0.0) <= BUSY:
        return ""
    return (
        f"The machine was busy (contention {contention:.0%}): other processes ran during the timings, or its host "
        "slowed it, so these are too long and rough. Stop other programs (`retune doctor` shows the load) and run the "
        "same command again."
    )
