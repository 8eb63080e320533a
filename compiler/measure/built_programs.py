"""The kernels of each task's fastest programs, kept from their measurement until the network is compiled.

A winning program is built and checked once: its confirmation and the compiled network use the kernel that was timed.
Other programs, such as those of earlier runs, are built again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retune.compiler.measure.results import BuiltProgram, Measurement
from retune.compiler.schedule.task import SearchTask

# One timing of a few ms is too noisy to rank near-equal programs; each additional program costs seven passes.
SHORTLIST = 5
"""Fastest programs of a task that are timed again before any may win."""


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program as it was `built` and `measured`, ordered by `rank`, lowest first."""

    rank: tuple[bool, bool, float]
    built: BuiltProgram
    measured: Measurement


class BuiltPrograms:
    """At most `most` programs of each task, and its default schedule. A plain class: Prefect passes it on unchanged."""

    def __init__(self, most: int = SHORTLIST) -> None:
        self._most = most
        self._kept: dict[str, dict[str, KeptProgram]] = {}

    def keep(
        self, task: SearchTask, texts: Sequence[str], builds: Sequence[BuiltProgram], measured: Iterable[Measurement],
        default: str = "",
    ) -> None:  # fmt: skip
        """Keep the fastest programs of a round, by the text of their steps, and the program with the text `default`.
        Censored programs come after all others.
        """
        kept = self._kept.setdefault(task.identity, {})
        for text, built, measurement in zip(texts, builds, measured, strict=True):
            if built.artifact is not None and measurement.costs:
                # The rank sorts the default schedule first, so that the cut below, with an extra slot for it, never
                # drops it.
                kept[text] = KeptProgram(
                    (text != default, measurement.censored, min(measurement.costs)), built, measurement
                )
        has_default = any(not program.rank[0] for program in kept.values())
        for text in sorted(kept, key=lambda key: kept[key].rank)[self._most + has_default :]:
            del kept[text]

    def find(self, task: SearchTask, text: str) -> KeptProgram | None:
        """The program with these steps; None where it is not kept."""
        return self._kept.get(task.identity, {}).get(text)
