"""The outcome of building and timing a program, as plain values that travel between processes.

A failure carries its status and a string whose first line is a full description, never an invented cost.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.measure.record import MeasureStatus
from retune.compiler.runtime.artifact import KernelArtifact


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program after its build of `seconds`: `artifact` is set exactly when `status` is OK."""

    artifact: KernelArtifact | None
    status: MeasureStatus
    error: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """A program, built and timed: `costs` are seconds per call, one per repeat, empty unless `status` is OK. `censored`
    and `contention` are as in `retune.compiler.measure.record.MeasureRecord`.
    """

    costs: tuple[float, ...]
    status: MeasureStatus
    error: str
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    censored: bool = False
    contention: float | None = None


def in_order(builds: Sequence[BuiltProgram], times: Sequence[Measurement]) -> list[Measurement]:
    """One measurement a build: `times` are those of successful builds, in order; others fail as their builds."""
    remaining = iter(times)
    return [
        replace(next(remaining), build_seconds=build.seconds)
        if build.artifact is not None
        else Measurement((), build.status, build.error, build.seconds)
        for build in builds
    ]


def describe(error: BaseException) -> str:
    """The text of a failure: kind and message in the first line, then the whole traceback."""
    return f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
