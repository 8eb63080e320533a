"""Events: what happens in a run, each a log record that carries it as data.

`str(event)` is a complete line for a log; views read the fields.

A flow calls `announce(event)`. In a deployment the line lands in the flow run's log; at the command line a handler
picks the event from the record and draws it (see `retune.flows.cli.live`).
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

from prefect import get_run_logger

from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.compiler.model import ModelMetrics
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.runtime.readable import BUSY, count, milliseconds
from retune.compiler.tune.tuning import Tuning, contention_of, typical
from retune.compiler.tune.tuning_loop import Budget

EVENT = "retune_event"
"""The attribute of a log record that holds its event."""

LOGGER = "prefect.flow_runs"
"""The logger that Prefect gives to flow runs; a view listens here."""


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A run begins or goes on: `trials` and `elapsed` were spent before, `known` programs come from earlier runs. The
    limits are those of the budget, in trials and seconds.
    """

    run_id: str
    network: str
    folder: str
    resumed: bool
    trials: int
    elapsed: float
    known: int
    tasks: tuple[KernelRow, ...]
    trials_limit: int | None = None
    seconds_limit: float | None = None

    @classmethod
    def of(cls, tuning: Tuning, folder: str, known: int, budget: Budget) -> Self:
        """The event for a run that was just replayed from its records."""
        spent = tuning.summary()
        return cls(
            tuning.run_info.run_id,
            tuning.run_info.network,
            folder,
            spent.trials > 0,
            spent.trials,
            spent.elapsed,
            known,
            spent.rows,
            budget.trials,
            budget.seconds,
        )

    def __str__(self) -> str:
        verb = f"resumed after {self.trials} trials" if self.resumed else "opened"
        warm = f", {self.known} measured programs known from earlier runs" if self.known else ""
        return (
            f"run {self.run_id} {verb}: {self.network}, {count(len(self.tasks), 'task')}{warm}; state in {self.folder}"
        )


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """Task number `index` got the next round."""

    index: int
    task: str
    round: int

    def __str__(self) -> str:
        return f"round {self.round}: {self.task} begins"


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round is stored and learned. `latency` is the estimated network latency without the `untimed` kernels, which
    have no time yet, and `seconds_left` the time left, both in seconds. `contention` is the share of a typical timing
    that other processes took, `model` says how well the cost model predicted the round; that is for the ledger, since
    a small round says little on its own.
    """

    index: int
    task: KernelRow
    round: int
    failed: int
    trials: int
    trials_limit: int | None
    elapsed: float
    latency: float
    untimed: int
    seconds_left: float | None
    contention: float = 0.0
    model: ModelMetrics | None = None

    @classmethod
    def of(cls, tuning: Tuning, index: int, records: Sequence[MeasureRecord], budget: Budget) -> Self:
        """The event for the round of task `index` that was just told with `records`."""
        return cls(
            index,
            tuning.row(index),
            tuning.rounds,
            sum(record.status is not MeasureStatus.OK for record in records),
            tuning.trials,
            budget.trials,
            tuning.elapsed,
            tuning.latency_so_far,
            tuning.untimed,
            budget.seconds_left(tuning.trials, tuning.elapsed),
            typical(contention_of(records)),
            tuning.metrics,
        )

    def row_fields(self) -> dict[str, str | int | float | None]:
        """The round as a row of the ledger (`retune.storage.runs`): times in seconds, None for what is not known."""
        model = asdict(self.model) if self.model else dict.fromkeys(field.name for field in fields(ModelMetrics))
        return {
            "round": self.round - 1,  # from 0 in the ledger
            "task_key": self.task.task_key,
            "task_name": self.task.name,
            "failed": self.failed,
            "trials": self.trials,
            "elapsed": self.elapsed,
            "best_seconds": self.task.best_seconds if math.isfinite(self.task.best_seconds) else None,
            "latency": None if self.untimed else self.latency,
            "contention": self.contention,
            **{f"model_{name}": value for name, value in model.items()},
        }

    def __str__(self) -> str:
        limit = "" if self.trials_limit is None else f"/{self.trials_limit}"
        failed = f" ({self.failed} failed)" if self.failed else ""
        busy = f"; {self.contention:.0%} of its timings lost to others" if self.contention > BUSY else ""
        return (
            f"round {self.round}: {self.task.name}, trials {self.trials}{limit}{failed}, "
            f"best {self.task.gflops:.1f} GFLOP/s, network {self.estimate}, left {duration(self.seconds_left)}"
            f"{busy}{''.join(f'; {text}' for text in self.task.failed_rules if self.task.rounds == 1)}"
        )

    @property
    def estimate(self) -> str:
        """The network's latency for people; while kernels have no time yet it is a lower bound, and says so."""
        if not self.untimed:
            return f"{milliseconds(self.latency)} ms"
        kernels = "1 kernel" if self.untimed == 1 else f"{self.untimed} kernels"
        return f"> {milliseconds(self.latency)} ms ({kernels} not timed yet)"


@dataclass(frozen=True, slots=True)
class TaskStopped:
    """A task gets no further rounds."""

    index: int
    task: str
    reason: str

    def __str__(self) -> str:
        return f"{self.task} is given up: {self.reason}"


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """The run does something other than tuning."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class PhaseAdvanced:
    """Of what the phase consists of, `done` of `total` pieces are done."""

    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.done} of {self.total} done"


Event = RunOpened | RoundStarted | RoundDone | TaskStopped | PhaseStarted | PhaseAdvanced

DETAILS = (RoundStarted, PhaseAdvanced)
"""Events that are of interest while they are fresh, to a person who watches: no log needs them."""


def announce(event: Event) -> None:
    """Log `event` to the current flow run."""
    # Prefect sends INFO and above to its API, a request a batch; details would fill a run's log.
    level = logging.DEBUG if isinstance(event, DETAILS) else logging.INFO
    get_run_logger().log(level, str(event), extra={EVENT: event})


def duration(seconds: float | None) -> str:
    """A span of time for people: `1h02m`, `2m10s`, `7s`, or `?` while it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
