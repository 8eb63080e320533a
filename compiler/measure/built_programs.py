"""The kernels of each task's fastest programs, kept from their measurement until the network is compiled.

So a program that wins is built once: its confirmation and the compiled network take the kernel that was timed. What is
not kept, such as a record of an earlier run, is built.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retune.compiler.measure.measurer import Builder
from retune.compiler.measure.results import BuiltProgram, Measurement
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask

# One timing of a few ms is too noisy to rank near-equal programs; each program more costs seven passes.
SHORTLIST = 5
"""How many of a task's fastest programs are timed again before one may serve."""


@dataclass(frozen=True, slots=True)
class _Kept:
    rank: tuple[bool, bool, float]
    built: BuiltProgram


class BuiltPrograms:
    """At most `most` built programs of each task, and its default schedule. A plain class, so that Prefect hands it on
    as it is.
    """

    def __init__(self, most: int = SHORTLIST) -> None:
        self._most = most
        self._kept: dict[str, dict[str, _Kept]] = {}

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
                kept[text] = _Kept((text != default, one.censored, min(one.costs)), built)
        has_default = any(not each.rank[0] for each in kept.values())
        for text in sorted(kept, key=lambda each: kept[each].rank)[self._most + has_default :]:
            del kept[text]

    def find(self, task: SearchTask, text: str) -> BuiltProgram | None:
        """The built program with this steps text; None where it is not kept."""
        found = self._kept.get(task.identity, {}).get(text)
        return None if found is None else found.built


class ReusingBuilder:
    """Builds what `kept` has not."""

    def __init__(self, builder: Builder, kept: BuiltPrograms) -> None:
        self._builder = builder
        self._kept = kept

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[BuiltProgram]:
        """See `Builder`."""
        found = [self._kept.find(task, dump_steps(steps)) for steps in candidates]
        missing = [steps for steps, known in zip(candidates, found, strict=True) if known is None]
        built = iter(self._builder.build(task, missing) if missing else ())
        return [next(built) if known is None else known for known in found]
