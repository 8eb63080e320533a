"""The kernels of each task's fastest programs, kept from their measurement until the network is compiled.

A winning program is built and checked once: its confirmation and the compiled network use the kernel that was timed.
Other programs, such as those of earlier runs, are built again.
"""

from collections.abc import Iterable

from retune.compiler.measure.record import DEFAULT_SCHEDULE, TaskProgram
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.task import SearchTask

# One timing of a few ms is too noisy to rank near-equal programs; each additional program costs seven passes.
SHORTLIST = 5
"""Fastest programs of a task that are timed again before any may win."""


class BuiltPrograms:
    """At most `most` programs of each task, and its default schedule. A plain class: Prefect passes it on unchanged."""

    def __init__(self, most: int = SHORTLIST) -> None:
        self._most = most
        self._kept: dict[str, dict[str, tuple[tuple[bool, bool, float], Measurement]]] = {}

    def keep(self, task: SearchTask, programs: Iterable[TaskProgram], measured: Iterable[Measurement]) -> None:
        """Keep the fastest programs of a round, and the default schedule. Censored programs come after all others."""
        kept = self._kept.setdefault(task.identity, {})
        for program, result in zip(programs, measured, strict=True):
            if result.artifact is not None and result.costs:
                # The rank sorts the default schedule first, so that the cut below, with an extra slot for it, never
                # drops it.
                rank = program.mutation != DEFAULT_SCHEDULE, result.censored, result.seconds
                kept[program.steps] = rank, result
        has_default = any(not rank[0] for rank, _ in kept.values())
        for text in sorted(kept, key=lambda key: kept[key][0])[self._most + has_default :]:
            del kept[text]

    def find(self, task: SearchTask, text: str) -> Measurement | None:
        """The program with these steps, as it was built and timed; None where it is not kept."""
        _, result = self._kept.get(task.identity, {}).get(text, (None, None))
        return result
