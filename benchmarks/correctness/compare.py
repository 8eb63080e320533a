"""How results are judged: by type and depth, relative to the largest value, never so loosely that zeros would pass."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

ROUNDOFF = {np.dtype(name): 2.0**-bits for name, bits in (("float64", 53), ("float32", 24), ("float16", 11))}
ROUNDOFF[np.dtype(ml_dtypes.bfloat16)] = 2.0**-8
_EACH = 16
"""Roundings of the largest value that an operator may cost: sums have up to some hundred terms."""
_MOST = 0.1
_NUDGES = 6
"""Runs on inputs that differ by a few roundings; where these differ as much, rounding decides."""

Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed: programs that were right, and a text for each other: `wrong` results and crashes, what was
    `refused`, what could not be tried (`skipped`: no model, or no reference), `unstable` results that a rounding of the
    inputs changes as much, and faults of the `reference`, where a second one agrees with us.
    """

    right: int = 0
    wrong: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()


def tolerance(dtypes: Sequence[np.dtype[np.generic]], depth: int) -> float:
    """The largest difference relative to the largest value, after `depth` operators in the roughest of the types."""
    return min(_MOST, max((ROUNDOFF.get(dtype, 0.0) for dtype in dtypes), default=0.0) * _EACH * (depth + 1))


def mismatch(found: Arrays, wanted: Arrays, allowed: float, spread: Arrays = ()) -> str:
    """How results differ, empty if they do not. `spread` is by how much more each element of each result may differ."""
    if len(found) != len(wanted):
        return f"{len(found)} results, expected {len(wanted)}"
    for place, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"result {place} is {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
        left, right, room = ours, theirs, 0.0
        with np.errstate(invalid="ignore"):
            if theirs.dtype in ROUNDOFF:
                left, right = ours.astype(np.float64), theirs.astype(np.float64)
                room = allowed * float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
                bad = ~((np.isnan(left) & np.isnan(right)) | (left == right) | (np.abs(left - right) <= room))
                if len(spread):
                    bad &= ~np.isnan(spread[place]) & ~(np.abs(left - right) <= room + 2 * spread[place])
            else:
                bad = np.asarray(left != right)
                if len(spread):
                    bad &= spread[place] == 0
        if bad.any():
            at = tuple(int(index) for index in np.argwhere(bad)[0])
            return (
                f"result {place}, {theirs.dtype}{list(theirs.shape)}: {np.count_nonzero(bad)} of {bad.size} elements, "
                f"the first at {list(at)}: {left[at]!r}, expected {right[at]!r} within {room:.3g}"
            )
    return ""


def spread_of(run: Callable[[int], Arrays], wanted: Arrays) -> Arrays:
    """By how much each element of the reference changes when its inputs are nudged; NaN where a NaN or an infinity
    comes or goes.
    """
    spreads = [np.zeros(array.shape) for array in wanted]
    for nudge in range(_NUDGES):
        for spread, array, other in zip(spreads, wanted, run(nudge), strict=True):
            if array.shape != other.shape:
                spread[...] = np.nan
                continue
            left, right = array.astype(np.float64), other.astype(np.float64)
            with np.errstate(invalid="ignore"):
                change = np.where((left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.abs(left - right))
                np.maximum(spread, np.where(np.isfinite(change), change, np.nan), out=spread)
    # An element that few nudges left alone changes as much as the others do; where most stay, none is excused.
    usual = (4 * float(np.median(np.nan_to_num(spread))) if spread.size else 0.0 for spread in spreads)
    return [np.maximum(spread, least) for spread, least in zip(spreads, usual, strict=True)]


def nudged(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Floats changed by up to some roundings; anything else as it is."""
    if array.dtype not in ROUNDOFF:
        return array
    change = 1 + 32 * ROUNDOFF[array.dtype] * rng.uniform(-1, 1, array.shape)
    return np.asarray(array.astype(np.float64) * change).astype(array.dtype)


def judged(
    found: Arrays, wanted: Arrays, allowed: float, second: Callable[[], Arrays], run: Callable[[int], Arrays]
) -> Outcome:
    """Compare results with those of a reference. Before a difference is wrong, ask `second`, another reference, and
    `run`, the first one on the inputs of a nudge.
    """
    text = mismatch(found, wanted, allowed)
    if not text:
        return Outcome(right=1)
    if text.startswith("result ") and " is " in text.partition(":")[0]:
        return Outcome(wrong=(text,))
    try:
        if not mismatch(found, second(), allowed):
            return Outcome(reference=(text,))
    except Exception as error:  # of another library, which may raise anything
        text += f"; no second opinion: {type(error).__name__}"
    left = mismatch(found, wanted, allowed, spread_of(run, wanted))
    return Outcome(wrong=(text,)) if left else Outcome(unstable=(text,))
