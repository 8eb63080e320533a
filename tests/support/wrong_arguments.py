"""Calls of public functions in which one argument is wrong: each is taken, or refused in one sentence."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from retune.compiler.core.errors import RetuneError

WRONG: tuple[Any, ...] = (
    None, True, 7, -1, 1.5, float("nan"), "no such thing", "a\0b", b"bytes", (), [], [[1], [2, 3]], {}, {"a": 1},
    {7: 7}, np.ones(3), np.ones(4, "U1"), object(), print, int,
)  # fmt: skip


def refusals(
    functions: Iterable[tuple[str, Callable[..., Any]]], good: Mapping[str, Any], fine: Callable[[Exception], bool]
) -> tuple[int, list[str]]:
    """How many such calls were refused, and those that ended in any other way: errors that are not ours, unless they
    are `fine`, and such as say nothing or more than a line. `good` has what fits a parameter of that name.
    """
    refused, raw = 0, []
    for name, function in functions:
        for what, call in _calls(function, good):
            try:
                call()
            except RetuneError as error:
                refused += 1
                if "\n" in str(error) or not str(error):
                    raw.append(f"{name}({what}): {error}")
            except Exception as error:
                if not fine(error):
                    raw.append(f"{name}({what}): {type(error).__name__}: {error}")
    return refused, raw


def _calls(function: Callable[..., Any], good: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls of a function in which one argument is wrong, and which one it is."""
    parameters = inspect.signature(function).parameters
    kinds = inspect.Parameter
    for wrong in WRONG:
        for name, chosen in parameters.items():
            if isinstance(chosen.default, bool):
                continue  # anything is true or false
            args: list[Any] = []
            named: dict[str, Any] = {}
            for each in parameters.values():
                if each.kind is kinds.VAR_KEYWORD:
                    named |= {"x": wrong} if each is chosen else {}
                elif each is chosen or each.default is kinds.empty or each.kind is not kinds.POSITIONAL_ONLY:
                    value = wrong if each is chosen else good[each.name]
                    if each.kind is kinds.KEYWORD_ONLY:
                        named[each.name] = value
                    else:
                        args.append(value)
            yield f"{name}={wrong!r:.40}", partial(function, *args, **named)
