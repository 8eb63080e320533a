"""Protocol between search policies and their callers, and the policy that does not search.

A custom policy is any class with `ask` and `tell`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import CostModel
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.genome import Scores


class Policy(Protocol):
    """Proposes programs of one task and learns from their results."""

    def ask(self, count: int, round_index: int) -> tuple[TaskProgram, ...]:
        """At most `count` unmeasured programs; none when the task is exhausted."""

    def tell(self, results: Sequence[TaskProgram]) -> None:
        """Take in results, of proposed programs or of any others of the task."""


@runtime_checkable
class StateModel(CostModel, Protocol):
    """A cost model over programs instead of features: slow, but free to inspect them.

    The analytical model is not blended with it.
    """

    def predict_states(self, task: SearchTask, states: Sequence[State]) -> Scores:
        """Score programs with their bounds, higher is better."""


class SearchCallback(Protocol):
    """An action on a policy before its search begins."""

    def prepare(self, policy: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PreloadMeasuredStates:
    """Give a policy the results of earlier searches: no program is measured again, and the best seed the populations.
    The cost model learns nothing from them.

    `results` are the task's results, or a function of the task that returns them (from a log, say).
    """

    results: Sequence[TaskProgram] | Callable[[SearchTask], Sequence[TaskProgram]]

    def prepare(self, policy: Any) -> None:
        policy.preload(self.results(policy.task) if callable(self.results) else self.results)


class EmptyPolicy:
    """Measures the unscheduled program once."""

    def __init__(self, task: SearchTask, init_search_callbacks: Sequence[SearchCallback] = ()) -> None:
        self.task = task
        self._observed = False
        for callback in init_search_callbacks:
            callback.prepare(self)

    def ask(self, count: int, round_index: int) -> tuple[TaskProgram, ...]:  # noqa: ARG002
        """The program without steps, until it is measured."""
        if count < 1 or self._observed:
            return ()
        return (TaskProgram(self.task.workload_key, dump_steps(()), mutation=mutation.SAMPLE),)

    def tell(self, results: Sequence[TaskProgram]) -> None:
        self._observed = self._observed or any(not load_steps(result.steps) for result in results)

    def preload(self, results: Sequence[TaskProgram]) -> None:
        """Same as `tell`: there is no model to train."""
        self.tell(results)


def program_id(steps_text: str) -> str:
    """A short name of a program, for lineage: eight hexadecimal digits."""
    return f"{crc32(steps_text.encode()):08x}"
