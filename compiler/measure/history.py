"""The best trials of tuning logs for a workload. Failures never count as best.

A trial of another size can stand in where nothing better is known: `distance` says how much slower the workload is
expected to be.

The layout option of a task is no part of its key, as a program fits all three. But its time does not say how fast it is
under another one (laying weights out in every call takes time), so where an option is asked for, trials that were
measured with it come first.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from retune.compiler.errors import LogFormatError
from retune.compiler.measure.log import LoggedTrial, append_log, read_log
from retune.compiler.measure.record import MeasureStatus

_ROUNDED = "-math=tf32"
"""A program for such a target rounds factors of float32, which no other target allows."""


def distance(wanted: str, known: str) -> float:
    """How many times as much work the workload `wanted` is as `known`; infinite when one's programs say nothing of the
    other.

    Two keys compare when they name the same function with as many arguments. Whole numbers must be multiples of what is
    known, everything else equal.
    """
    if wanted == known:
        return 1.0
    try:
        (name, *wanted_args), (known_name, *known_args) = json.loads(wanted), json.loads(known)
    except (ValueError, TypeError, RecursionError):
        return math.inf
    ours, theirs = list(_leaves(wanted_args)), list(_leaves(known_args))
    if name != known_name or len(ours) != len(theirs):
        return math.inf
    factor = 1.0
    for one, other in zip(ours, theirs, strict=True):
        # Work is taken to grow with the product of the extents, as it does for every operator with dense loops.
        factor *= _factor(one, other)
    return factor


def _leaves(value: Any) -> Iterator[Any]:
    """The arguments with lists taken apart; a list's length counts, so that nothing is paired across lists."""
    if isinstance(value, list):
        yield ["of", len(value)]
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _factor(wanted: Any, known: Any) -> float:
    if wanted == known and type(wanted) is type(known):
        return 1.0
    if not all(type(number) is int for number in (wanted, known)) or wanted <= 0 or known <= 0 or wanted % known:
        return math.inf
    return float(wanted // known)


def carries_over(known: str, wanted: str) -> bool:
    """Whether programs for the target `known` are right for `wanted`: both are of one kind, the first word, and
    no product is rounded that may not be.
    """
    theirs, ours = known.split(), wanted.split()
    return theirs[:1] == ours[:1] and (_ROUNDED not in theirs or _ROUNDED in ours)


def best_trial(
    trials: Iterable[LoggedTrial],
    workload_key: str | None = None,
    target: str | None = None,
    *,
    include_compatible: bool = False,
    layout: int | None = None,
) -> LoggedTrial | None:
    """The trial of the lowest cost, the first of equals, or None.

    With `workload_key` only trials of it, or with `include_compatible` also those of smaller sizes, their costs
    multiplied by `distance`. With `target` only trials on targets that carry over to it, see `carries_over`. With
    `layout` trials of other layout options count only when there is none of that one.
    """
    best: LoggedTrial | None = None
    lowest = (True, math.inf)
    for trial in trials:
        if trial.status is not MeasureStatus.OK:
            continue
        if target is not None and not carries_over(trial.task.target_text, target):
            continue
        factor = 1.0 if workload_key is None else distance(workload_key, trial.task.workload_key)
        if factor != 1.0 and not include_compatible:
            continue
        # A tuple: the layout decides first, the cost only among trials of equal standing.
        rank = (layout not in (None, trial.task.layout), trial.seconds * factor)
        if rank < lowest:
            best, lowest = trial, rank
    return best


def best_trials(trials: Iterable[LoggedTrial]) -> list[LoggedTrial]:
    """The best trial of every target, workload and layout option, in the order in which these appear."""
    best: dict[tuple[str, str, int], LoggedTrial] = {}
    for trial in trials:
        if trial.status is MeasureStatus.OK:
            key = (trial.task.target_text, trial.task.workload_key, trial.task.layout)
            if key not in best or trial.seconds < best[key].seconds:
                best[key] = trial
    return list(best.values())


def distill(source: Path, destination: Path) -> int:
    """Rewrite `destination` with the best trials of both logs; how many there are. It need not exist.

    Raises: LogFormatError when one cannot be read, or the result not be written.
    """
    known = read_log(destination) if destination.exists() else iter(())
    found = best_trials([*known, *read_log(source)])
    unfinished = destination.with_name(f"{destination.name}.part")
    unfinished.unlink(missing_ok=True)
    append_log(unfinished, found)
    try:
        # A rename is atomic: a reader sees the old log or the new one, never a part.
        unfinished.replace(destination)
    except OSError as error:
        raise LogFormatError(f"cannot write the log {destination}: {error.strerror}") from error
    return len(found)
