"""The outcome of building and timing a program, as a plain value that travels between processes.

A failure carries its status and a string whose first line is a full description, never an invented cost.
"""

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.measure.record import MeasureStatus
from retune.compiler.runtime.artifact import KernelArtifact


@dataclass(frozen=True, slots=True)
class Measurement:
    """A program, built and timed: `costs` are seconds per call, one per repeat, empty before it was timed and unless
    `status` is OK. `artifact` is its kernel, None where the build failed and in a worker's answer. `censored` and
    `contention` are as in `retune.compiler.measure.record.MeasureRecord`.
    """

    costs: tuple[float, ...] = ()
    status: MeasureStatus = MeasureStatus.OK
    error: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    censored: bool = False
    contention: float | None = None
    artifact: KernelArtifact | None = None

    @property
    def seconds(self) -> float:
        """The fastest repeat; infinite for a failure and before it was timed."""
        return min(self.costs, default=math.inf)


def in_order(builds: Sequence[Measurement], times: Sequence[Measurement]) -> list[Measurement]:
    """One measurement a build: `times` are those of successful builds, in order; others fail as their builds."""
    remaining = iter(times)
    return [
        build
        if build.artifact is None
        else replace(next(remaining), build_seconds=build.build_seconds, artifact=build.artifact)
        for build in builds
    ]


def describe(error: BaseException) -> str:
    """The text of a failure: kind and message in the first line, then the whole traceback."""
    return f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
