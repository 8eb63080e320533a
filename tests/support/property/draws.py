"""Adapter from Hypothesis to the methods of NumPy's generator that the random programs use.

The same program generators serve a seeded sweep (NumPy's generator) and a Hypothesis test (`Drawn`), which can then
shrink a failing program: every draw shrinks toward the first option, "no" and the identity.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

_STEPS = 100


@lru_cache(maxsize=512)
def _between(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=64)
def _orders(count: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(count))


class Drawn:
    """Draws like `numpy.random.Generator`, but from Hypothesis."""

    __slots__ = ("_draw",)

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integers(self, low: int, high: int | None = None) -> int:
        """An integer from `low` up to but without `high`; with one bound, from 0 up to it."""
        first, end = (0, low) if high is None else (low, high)
        number: int = self._draw(_between(int(first), int(end) - 1))
        return number

    def random(self) -> float:
        """A number from 0 to 1; the simplest is close to 1, so `random() < p` becomes False."""
        return 1.0 - (self.integers(_STEPS) + 1) / _STEPS

    def choice(self, options: Sequence[Any], size: int | None = None, replace: bool = True) -> Any:
        """One of the options, or a list of `size` of them."""
        if size is None:
            return options[self.integers(len(options))]
        if replace:
            return [options[self.integers(len(options))] for _ in range(size)]
        return [options[place] for place in self.permutation(len(options))[:size]]

    def permutation(self, count: int) -> list[int]:
        """The numbers below `count` in any order."""
        order: list[int] = self._draw(_orders(count))
        return order


Source = np.random.Generator | Drawn
"""Where random programs come from."""
