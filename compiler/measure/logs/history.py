"""The best trials of tuning logs for a workload. Failures never count as best.

A trial of another size can serve where nothing better is known: `distance` estimates how much slower the workload is.

A program fits a task with any of the three layout options, so the option is not part of a task's key. Times differ,
since rewriting weights in every call takes time: trials with the requested option come first.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from retune.compiler.core.errors import LogFormatError
from retune.compiler.measure.logs.log import LoggedTrial, append_log, read_log
from retune.compiler.measure.record import MeasureStatus

_ROUNDED = "-math=tf32"
"""A program for such a target rounds factors of float32, which no other target allows."""


def distance(workload: str, other: str) -> float:
    """How many times as much work `workload` is as `other`; infinite when their programs cannot be compared.

    Two keys compare when they name the same function with as many arguments. Integers must be multiples of those of
    `other`, everything else equal.
    """
    if workload == other:
        return 1.0
    try:
        (name, *wanted_args), (known_name, *known_args) = json.loads(workload), json.loads(other)
    except (ValueError, TypeError, RecursionError):
        return math.inf
    workload_leaves, other_leaves = list(_leaves(wanted_args)), list(_leaves(known_args))
    if name != known_name or len(workload_leaves) != len(other_leaves):
        return math.inf
    factor = 1.0
    for size, other_size in zip(workload_leaves, other_leaves, strict=True):
        # Work is assumed to grow with the product of the extents, as for every operator with dense loops.
        factor *= _factor(size, other_size)
    return factor


def _leaves(value: object) -> Iterator[object]:
    """The arguments with lists flattened; a list's length counts, so that nothing is paired across lists."""
    if isinstance(value, list):
        yield ["of", len(value)]
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _factor(size: object, other: object) -> float:
    if size == other and type(size) is type(other):
        return 1.0
    if type(size) is not int or type(other) is not int or size <= 0 or other <= 0 or size % other:
        return math.inf
    return float(size // other)


def carries_over(source: str, target: str) -> bool:
    """Whether programs for the target `source` are right for `target`: both are of the same kind (first word), and no
    product is rounded that may not be.
    """
    source_words, target_words = source.split(), target.split()
    return source_words[:1] == target_words[:1] and (_ROUNDED not in source_words or _ROUNDED in target_words)


def best_trial(
    trials: Iterable[LoggedTrial],
    workload_key: str | None = None,
    target: str | None = None,
    *,
    include_compatible: bool = False,
    layout: int | None = None,
) -> LoggedTrial | None:
    """The trial of the lowest cost, the first of equals, or None.

    With `workload_key` only its trials, or with `include_compatible` also those of smaller sizes, their costs
    multiplied by `distance`. With `target` only trials on targets that carry over to it, see `carries_over`. With
    `layout` trials of other layout options count only when it has none.
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
        # A tuple: the layout decides first, the cost only among trials of equal layout.
        rank = (layout not in (None, trial.task.layout), trial.seconds * factor)
        if rank < lowest:
            best, lowest = trial, rank
    return best


def best_trials(trials: Iterable[LoggedTrial]) -> list[LoggedTrial]:
    """The best trial of every target, workload and layout option, in their order of appearance."""
    best: dict[tuple[str, str, int], LoggedTrial] = {}
    for trial in trials:
        if trial.status is MeasureStatus.OK:
            key = (trial.task.target_text, trial.task.workload_key, trial.task.layout)
            if key not in best or trial.seconds < best[key].seconds:
                best[key] = trial
    return list(best.values())


def distill(source: Path, destination: Path) -> int:
    """Rewrite `destination`, which may be missing, with the best trials of both logs; returns their number.

    Raises: LogFormatError when a log cannot be read, or the result not be written.
    """
    existing = read_log(destination) if destination.exists() else iter(())
    best = best_trials([*existing, *read_log(source)])
    unfinished = destination.with_name(f"{destination.name}.part")
    unfinished.unlink(missing_ok=True)
    append_log(unfinished, best)
    try:
        # A rename is atomic: a reader sees the old log or the new, never a part.
        unfinished.replace(destination)
    except OSError as error:
        raise LogFormatError(f"cannot write the log {destination}: {error.strerror}") from error
    return len(best)
