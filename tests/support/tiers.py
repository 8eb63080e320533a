"""Tiers of parametrised tests: a few values belong to the default suite, the others to the long tier."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def long_except(quick: Collection[Any], values: Iterable[Any]) -> list[ParameterSet]:
    """Parameters of a test: all but the `quick` values are marked `long`.

    Raises: ValueError when there is no such quick value.
    """
    every = list(values)
    if missing := [value for value in quick if value not in every]:
        raise ValueError(f"{missing} is not among {every}")
    return [pytest.param(value, marks=() if value in quick else pytest.mark.long) for value in every]
