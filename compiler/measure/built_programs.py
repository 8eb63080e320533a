"""The kernels of each task's fastest programs, kept from their measurement until the network is compiled.

So a program that wins is built and checked once: its confirmation and the compiled network take the kernel that was
timed. What is not kept, such as a record of an earlier run, is built.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retune.compiler.measure.results import BuiltProgram, Measurement
from retune.compiler.schedule.task import SearchTask

# One timing of a few ms is too noisy to rank near-equal programs; each program more costs seven passes.
SHORTLIST = 5
"""How many of a task's fastest programs are timed again before one may serve."""


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program as it was `built` and `measured`. Lower in `rank` are those to keep first."""

    rank: tuple[bool, bool, float]
    built: BuiltProgram
    measured: Measurement


class BuiltPrograms:
    """At most `most` built programs of each task, and its default schedule. A plain class, so that Prefect hands it on
    as it is.
    """

    def __init__(self, most: int = SHORTLIST) -> None:
        self._most = most
        self._kept: dict[str, dict[str, KeptProgram]] = {}

    def keep(
        self, task: SearchTask, texts: Sequence[str], builds: Sequence[BuiltProgram], measured: Iterable[Measurement],
        default: str = "",
    ) -> None:  # fmt: skip
        """Keep the fastest of a round, by their steps strings, and the program with the text `default`. One that was
        too slow for repeats comes after all others.
        """
        kept = self._kept.setdefault(task.identity, {})
        for text, built, one in zip(texts, builds, measured, strict=True):
            if built.artifact is not None and one.costs:
                # The rank sorts the default schedule first, so that the cut below, which has one more place for it,
                # never drops it.
                kept[text] = KeptProgram((text != default, one.censored, min(one.costs)), built, one)
        has_default = any(not each.rank[0] for each in kept.values())
        for text in sorted(kept, key=lambda each: kept[each].rank)[self._most + has_default :]:
            del kept[text]

    def find(self, task: SearchTask, text: str) -> KeptProgram | None:
        """The program with this steps text; None where it is not kept."""
        return self._kept.get(task.identity, {}).get(text)
