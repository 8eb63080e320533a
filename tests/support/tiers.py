"""Tiers of parametrised tests: a few values belong to the default suite, the others to the long tier."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def long_except(quick: Collection[Any], values: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of a test: all but the `quick` values are marked `long`.

    Raises: ValueError when there is no such quick value.
    """
    return long_rows([(value,) for value in quick], [(value,) for value in values])


def long_rows(quick: Collection[tuple[Any, ...]], rows: Iterable[tuple[Any, ...]]) -> list[ParameterSet]:
    """As `long_except`, for a test of several arguments.

    Raises: ValueError when there is no such quick row.
    """
    every = list(rows)
    if missing := [row for row in quick if row not in every]:
        raise ValueError(f"{missing} is not among {every}")
    return [pytest.param(*row, marks=() if row in quick else pytest.mark.long) for row in every]
