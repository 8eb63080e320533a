"""In: the ways a candidate can end. Out: plain frozen results of building, of running, and of both. Always:
picklable; a failure carries its status and a text whose first line says it all, never a made-up cost.
"""

import traceback
from dataclasses import dataclass

from retune.compiler.measure.record import MeasureStatus
from retune.compiler.runtime.artifact import KernelArtifact


@dataclass(frozen=True, slots=True)
class BuildResult:
    """One built candidate: `artifact` is set exactly when `status` is OK. `seconds` is the time the build took."""

    artifact: KernelArtifact | None
    status: MeasureStatus
    error: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """One run candidate: `costs` are seconds per call, one per repeat, empty unless `status` is OK. `censored` and
    `contention` are as in `retune.compiler.measure.record.MeasureRecord`.
    """

    costs: tuple[float, ...]
    status: MeasureStatus
    error: str
    run_seconds: float
    censored: bool = False
    contention: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate, built and run: the fields of its `BuildResult` and its `MeasureResult`."""

    costs: tuple[float, ...]
    status: MeasureStatus
    error: str
    build_seconds: float
    run_seconds: float
    censored: bool = False
    contention: float | None = None


def join(build: BuildResult, run: MeasureResult) -> Measurement:
    """What building and running one candidate came to."""
    return Measurement(
        run.costs, run.status, run.error, build.seconds, run.run_seconds, run.censored, run.contention
    )


def describe(error: BaseException) -> str:
    """The text of a failure: kind and message in the first line, then the whole traceback."""
    return f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
