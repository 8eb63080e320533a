"""Versions of packages that are known not to work together, in one table.

`.ci/nightly` finds them; an upper bound in pyproject.toml keeps each from being installed with Retune.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from retune.flows.doctor.finding import Finding, fail, ok


@dataclass(frozen=True, slots=True)
class KnownPair:
    """`package` from the version `since` on does not work with `other`: `why`."""

    package: str
    since: str
    other: str
    why: str


KNOWN_PAIRS = (KnownPair("fastapi", "0.151", "prefect", "Prefect's embedded API does not start"),)


def pairs(version_of: Callable[[str], str | None]) -> Finding:
    """Whether such a pair is installed; `version_of` gives the version of a package, None for one that is missing."""
    for pair in KNOWN_PAIRS:
        found, other = version_of(pair.package), version_of(pair.other)
        if found is not None and other is not None and _numbers(found) >= _numbers(pair.since):
            return fail(
                "pairs",
                f"{pair.package} {found} with {pair.other} {other}: {pair.why}",
                f"pip install '{pair.package}<{pair.since}'",
            )
    return ok("pairs", "no versions that are known not to work together")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 0.151.0rc1 is (0, 151, 0)."""
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", version)[0])))  # type: ignore[index] # matches any text
