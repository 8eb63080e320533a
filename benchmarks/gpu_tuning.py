"""Tunes a task on a GPU within a budget of programs and seconds, and returns the fastest correct programs.

A round is only as long as the remaining time is likely to permit. One that takes far longer is interrupted, and earlier
results count.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from benchmarks.gpu_interleaved import OvertimeError, time_limit
from retune.compiler.cost_model.xgb import XGBModel
from retune.compiler.errors import DeviceError, MeasureError
from retune.compiler.measure.measurer import Measurer
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.protocol import Observation

BATCH, FIRST = 64, 16
"""Programs of a round, and of the first, whose time is not known yet."""

_GRACE = 30.0
"""Seconds by which a round may take longer than there is time."""

_LETTERS = 300
"""Of the text of a failure."""

_KEPT = 4
"""So many of the fastest programs are remembered."""


@dataclass(slots=True)
class Tuned:
    """The result of tuning a task.

    It holds the fastest correct programs with their seconds, best first; the number of programs measured, and failed,
    by reason; wall seconds; and why tuning was interrupted, if it was.
    """

    best: list[tuple[float, tuple[Step, ...]]] = field(default_factory=list)
    trials: int = 0
    failed: int = 0
    seconds: float = 0.0
    stopped: str = ""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def steps(self) -> tuple[Step, ...] | None:
        """The fastest program; None when none was right."""
        return self.best[0][1] if self.best else None

    @property
    def limit(self) -> float:
        """The best seconds so far."""
        return self.best[0][0] if self.best else inf

    @property
    def spent(self) -> dict[str, object]:
        """What a line says of the search."""
        stopped = {"stopped": self.stopped} if self.stopped else {}
        usual = {"usual_failure": self.reasons.most_common(1)[0][0]} if self.reasons else {}
        counts = {"trials": self.trials, "failed": self.failed, "tuning_seconds": round(self.seconds, 1)}
        return {**counts, **usual, **stopped}

    def note(self, steps: tuple[Step, ...], found: Measurement) -> None:
        """Learn what came of a program."""
        right = found.status is MeasureStatus.OK
        self.trials += 1
        self.failed += not right
        if not right:
            line = " ".join(found.error.splitlines()[:2])
            self.reasons[f"{found.status.name}: {line[:_LETTERS]}"] += 1
        else:
            self.best = sorted([*self.best, (min(found.costs), steps)], key=lambda pair: pair[0])[:_KEPT]


def tune(task: SearchTask, measurer: Measurer, trials: int, seconds: float) -> Tuned:
    """Measure at most `trials` programs in at most about `seconds`, at least some."""
    policy, tuned, began = SketchPolicy(task, XGBModel(), seed=0), Tuned(), time.monotonic()
    count, number = FIRST, 0
    while tuned.trials < trials:
        started = time.monotonic()
        left = seconds - (started - began)
        if number and left <= 0:
            break
        candidates = policy.ask(min(count, trials - tuned.trials), number, spent=tuned.trials / trials)
        if not candidates:
            break
        try:
            with time_limit(max(left, 0.0) + _GRACE):
                found = measurer.measure(task, [one.steps for one in candidates], tuned.limit)
        except (OvertimeError, MeasureError, DeviceError) as failure:
            tuned.stopped = f"{type(failure).__name__}: {failure}"
            break
        for candidate, each in zip(candidates, found, strict=True):
            tuned.note(tuple(candidate.steps), each)
        told = zip(candidates, found, strict=True)
        policy.tell([Observation(one.steps_text, min(each.costs, default=inf)) for one, each in told])
        pace = (time.monotonic() - started) / len(candidates)
        left = seconds - (time.monotonic() - began)
        count = max(1, min(BATCH, int(left / max(pace, 1e-6))))
        number += 1
    tuned.seconds = time.monotonic() - began
    return tuned
