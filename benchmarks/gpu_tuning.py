"""Tunes a task on a GPU within a budget of programs and seconds, and returns the fastest correct programs.

A round is only as long as the remaining time is likely to permit. One that takes far longer is interrupted, and earlier
results count. A tuning log carries results from one run to the next: the model learns from all of them, and the fastest
programs are measured again first.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from benchmarks.gpu_interleaved import OvertimeError, time_limit
from retune.compiler.core.errors import DeviceError, MeasureError
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial, append_log, read_log
from retune.compiler.measure.measurer import Measurer
from retune.compiler.measure.record import Measurement, MeasureStatus, TaskProgram
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy

BATCH, FIRST = 64, 16
"""Programs of a round, and of the first, whose time is not known yet."""

_GRACE = 30.0
"""Seconds by which a round may take longer than there is time."""

_LETTERS = 300
"""Of the text of a failure."""

_KEPT = 4
"""So many of the fastest programs are remembered, and of an earlier run measured again."""


@dataclass(slots=True)
class Tuned:
    """The result of tuning a task.

    It holds the fastest correct programs with their seconds, best first; the number of programs known before, measured,
    and failed, by reason; wall seconds; and why tuning was interrupted, if it was.
    """

    best: list[tuple[float, tuple[Step, ...]]] = field(default_factory=list)
    known: int = 0
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
        known = {"known": self.known} if self.known else {}
        return {**known, **counts, **usual, **stopped}

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


@dataclass(frozen=True, slots=True)
class TuningLog:
    """What runs on GPUs of one kind have measured, in the file `path`."""

    path: Path

    def trials_of(self, task: SearchTask) -> list[LoggedTrial]:
        """Those of a task, of each program the last one, the fastest first. Raises: LogFormatError."""
        if not self.path.exists():
            return []
        logged = LoggedTask.of(task)
        wanted = logged.workload_key, logged.target_text
        found = [one for one in read_log(self.path) if (one.task.workload_key, one.task.target_text) == wanted]
        return sorted({dump_steps(one.steps): one for one in found}.values(), key=lambda trial: trial.seconds)

    def add(self, task: SearchTask, programs: Sequence[tuple[Step, ...]], found: Sequence[Measurement]) -> None:
        """Keep the results of a round. Raises: LogFormatError."""
        logged, now = LoggedTask.of(task), int(time.time())
        pairs = zip(programs, found, strict=True)
        append_log(
            self.path, (LoggedTrial(logged, steps, one.costs, one.status, one.run_seconds, now) for steps, one in pairs)
        )


def tune(task: SearchTask, measurer: Measurer, trials: int, seconds: float, log: TuningLog | None = None) -> Tuned:
    """Measure at most `trials` programs in at most about `seconds`, at least some; those of `log` are known."""
    policy, tuned, began = SketchPolicy(task, XGBModel(), seed=0), Tuned(), time.monotonic()
    known = log.trials_of(task) if log else []
    tuned.known = len(known)
    policy.tell([TaskProgram("", dump_steps(program.steps), program.seconds) for program in known])
    again = [one.steps for one in known[:_KEPT] if one.costs]
    count, number = FIRST, len(known)
    while tuned.trials < trials:
        started = time.monotonic()
        left = seconds - (started - began)
        if tuned.trials and left <= 0:
            break
        count = min(count, trials - tuned.trials)
        asked = policy.ask(max(count - len(again), 0), number, spent=tuned.trials / trials)
        programs = [*again[:count], *(load_steps(program.steps) for program in asked)]
        again = []
        if not programs:
            break
        try:
            with time_limit(max(left, 0.0) + _GRACE):
                found = measurer.measure(task, programs, tuned.limit)
        except (OvertimeError, MeasureError, DeviceError) as failure:
            tuned.stopped = f"{type(failure).__name__}: {failure}"
            break
        for steps, each in zip(programs, found, strict=True):
            tuned.note(steps, each)
        if log:
            log.add(task, programs, found)
        told = zip(programs, found, strict=True)
        policy.tell([TaskProgram("", dump_steps(steps), min(each.costs, default=inf)) for steps, each in told])
        pace = (time.monotonic() - started) / len(programs)
        left = seconds - (time.monotonic() - began)
        count = max(1, min(BATCH, int(left / max(pace, 1e-6))))
        number += 1
    tuned.seconds = time.monotonic() - began
    return tuned
