"""The result of one check: fine, a warning or a failure; the latter two say what to do."""

from dataclasses import dataclass
from enum import StrEnum

from retune.compiler.core.errors import without_passwords


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, what was found, and what to do about it, if anything."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        """Found are URLs too: their passwords are not shown."""
        object.__setattr__(self, "found", without_passwords(self.found))


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, Verdict.OK, found)


def warn(name: str, found: str, advice: str) -> Finding:
    """Retune works, but worse than it could."""
    return Finding(name, Verdict.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Finding:
    """Retune cannot work like this."""
    return Finding(name, Verdict.FAIL, found, advice)
