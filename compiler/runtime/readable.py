"""Figures and names for people and in JSON, and the warning that a busy machine spoiled timings."""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

# Above the 2% at which a timing pass is repeated (`max_contention`), so that what repeats mend is not reported.
BUSY = 0.05
"""From this share of contention on, timings are rough enough to say so."""


def milliseconds(seconds: float | None, unknown: str = "-") -> str:
    """A time in milliseconds with the three digits that a timing is good for."""
    if seconds is None or not math.isfinite(seconds):
        return unknown
    # Rounded before the digits are counted: 9.996 has two decimals, but prints as 10.0.
    value = float(f"{seconds * 1e3:.3g}")
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits)}f}"


def finite(value: Any) -> Any:
    """The same with null for every number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def html_table(title: str, rows: Iterable[tuple[str, ...]]) -> str:
    """A title above rows of texts, as a notebook shows them."""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<p><b>{escape(title)}</b></p><table>{body}</table>"


def count(number: int, noun: str) -> str:
    """So many of something whose plural ends in s: 1 task, 2 tasks."""
    return f"{number} {noun}{'s' * (number != 1)}"


def cut_middle(name: str, width: int) -> str:
    """The name with part of its middle left out where it is too long: kernels differ at both ends."""
    if len(name) <= width:
        return name
    # Two thirds for the head, where the operator's name is; the end has the number that tells equal ones apart.
    head = (width - 1) * 2 // 3
    return f"{name[:head]}…{name[head + 1 - width :]}"


def busy_warning(contention: float | None) -> str:
    """What to say of timings from which other processes took this share; empty where the machine was quiet."""
    if (contention or 0.0) <= BUSY:
        return ""
    return (
        f"The machine was busy (contention {contention:.0%}): other processes ran during the timings, or its host "
        "slowed it, so these are too long and rough. Stop other programs (`retune doctor` shows the load) and run the "
        "same command again."
    )
