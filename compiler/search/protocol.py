"""Protocol between search policies and their callers: candidates, observations, and the policy that does not search.

A custom policy is any class with `ask` and `tell`; nothing here knows how programs are found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

from retune.compiler.cost_model import CostModel
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.genome import Scores


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program to measure."""

    steps: tuple[Step, ...]
    steps_text: str
    predicted: float | None
    """The score that chose it, higher is better."""
    parent: str | None
    """The `program_id` of the program that it was made from."""
    mutation: str
    """How it was made from that."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured program: seconds per call, None or inf for a failure. Those of a disturbed one are much too long."""

    steps_text: str
    seconds: float | None
    is_disturbed: bool = False


class Policy(Protocol):
    """Proposes programs of one task and learns from their results."""

    def ask(self, count: int, round_index: int) -> tuple[Candidate, ...]:
        """At most `count` programs that were not told yet; none when there is nothing left to try."""

    def tell(self, results: Sequence[Observation]) -> None:
        """Take in results, of programs that were asked for or of any others of the task."""


@runtime_checkable
class StateModel(CostModel, Protocol):
    """A cost model that wants to see programs rather than their features: slow, but it may ask them anything.

    The analytical model is not blended with it.
    """

    def predict_states(self, task: SearchTask, states: Sequence[State]) -> Scores:
        """Score programs with their bounds, higher is better."""


class SearchCallback(Protocol):
    """Something to do to a policy before its search begins."""

    def prepare(self, policy: Any) -> None:
        """Change the policy, which has just been made."""


@dataclass(frozen=True, slots=True)
class PreloadMeasuredStates:
    """Tells a policy what was measured in earlier searches: none of it is measured again, and the best of it seeds the
    populations. The cost model learns nothing from it.

    `results` are those of the task, or a function that finds them (in a log, say) when the policy is made.
    """

    results: Sequence[Observation] | Callable[[SearchTask], Sequence[Observation]]

    def prepare(self, policy: Any) -> None:
        """Hand the results to the policy."""
        policy.preload(self.results(policy.task) if callable(self.results) else self.results)


class EmptyPolicy:
    """Measures the unscheduled program once and has nothing else to offer."""

    def __init__(self, task: SearchTask, init_search_callbacks: Sequence[SearchCallback] = ()) -> None:
        self.task = task
        self._observed = False
        for callback in init_search_callbacks:
            callback.prepare(self)

    def ask(self, count: int, round_index: int) -> tuple[Candidate, ...]:  # noqa: ARG002
        """The program without any step, until it was told."""
        if count < 1 or self._observed:
            return ()
        return (Candidate((), dump_steps(()), None, None, mutation.SAMPLE),)

    def tell(self, results: Sequence[Observation]) -> None:
        """Remember that the program was measured."""
        self._observed = self._observed or any(not load_steps(told.steps_text) for told in results)

    def preload(self, results: Sequence[Observation]) -> None:
        """As `tell`: there is no model to keep from learning."""
        self.tell(results)


def program_id(steps_text: str) -> str:
    """A short name of a program, for lineage: eight hexadecimal digits."""
    return f"{crc32(steps_text.encode()):08x}"
